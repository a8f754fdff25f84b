// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/internal/cloneset/plan"
)

func inState(state apps.LifecycleState) *corev1.Pod {
	return podOf(nil, "", func(p *corev1.Pod) { p.Labels[apps.LabelLifecycleState] = string(state) })
}

// compare compares metrics with their text form in testdata.
func compare(t *testing.T, c prometheus.Collector, name string) {
	t.Helper()
	want, err := os.Open("testdata/metrics-" + name + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = want.Close() }() // it was only read
	if err := testutil.CollectAndCompare(c, want); err != nil {
		t.Error(err)
	}
}

// TestSetMetrics: which Pods wait, at which gate, for which key and for how long by now;
// a deleted set leaves nothing behind.
func TestSetMetrics(t *testing.T) {
	at := now
	m := newMetrics(func() time.Time { return at })
	set := &apps.CloneSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
	leaving := inState(apps.StateNormal)
	leaving.DeletionTimestamp = deletedNow()
	left := &plan.Snapshot{Now: now, PodInfos: plan.ReadPods([]*corev1.Pod{
		inState(""), inState(apps.StateNormal), inState(apps.StatePreparingDelete), inState("Strange"), leaving,
	}, nil)}
	blocked := []plan.Blocked{
		{Pod: "a", Gate: "preDelete", Keys: []string{"x", "y"}, Since: now.Add(-time.Minute)},
		{Pod: "b", Gate: "preDelete", Keys: []string{"x"}, Since: now},
		{Pod: "c", Gate: "preNormal", Keys: []string{"x"}},
		stuckPod("ImagePullBackOff", time.Minute), // a stuck container stands for a gate
	}
	m.passed(set, nil, blocked, nil, left)
	at = now.Add(time.Second)
	compare(t, m.sets, "set")
	m.passed(set, nil, nil, nil, &plan.Snapshot{Now: now, PodInfos: left.PodInfos[:1]})
	compare(t, m.sets, "set-alone")
	m.passed(set, nil, nil, nil, &plan.Snapshot{Now: now, Pods: left.Pods, Deletion: plan.LetGo})
	if n := testutil.CollectAndCount(m.sets); n != 0 {
		t.Errorf("%d series of a set that is gone", n)
	}
}

// TestPassMetrics: what was planned, and how long an update in place took.
func TestPassMetrics(t *testing.T) {
	m := newMetrics(func() time.Time { return now })
	drained := func(status corev1.ConditionStatus) *corev1.Pod {
		return podOf(nil, "a", inUpdate(status, now.Add(-7*time.Second)))
	}
	done := func(reason string, pod *corev1.Pod, err error) outcome {
		return outcome{action: plan.Action{Verb: plan.Move, Reason: reason, Pod: pod}, pod: pod, err: err}
	}
	outcomes := []outcome{
		done(lifecycle.ReasonUpdateDone, drained(corev1.ConditionFalse), nil),
		done(lifecycle.ReasonUpdateDone, drained(corev1.ConditionFalse), errors.New("no")),
		done(lifecycle.ReasonUpdateDone, drained(corev1.ConditionTrue), nil),
		done(lifecycle.ReasonUpdateDropped, drained(corev1.ConditionFalse), nil),
		{action: plan.Action{Verb: plan.Create}},
	}
	var actions []plan.Action
	for _, o := range outcomes {
		actions = append(actions, o.action)
	}
	m.passed(&apps.CloneSet{}, actions, nil, outcomes, &plan.Snapshot{Now: now})
	compare(t, m.actions, "actions")
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(m.updates)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if updates := families[0].GetMetric()[0].GetHistogram(); updates.GetSampleCount() != 1 || updates.GetSampleSum() != 7 {
		t.Errorf("updates in place: %v", updates)
	}
}

// TestWriteMetrics: every write of a pass is counted, by verb and result.
func TestWriteMetrics(t *testing.T) {
	set := claimed()
	set.Spec.Replicas, set.Spec.RevisionHistoryLimit = new(int32(2)), new(int32(0))
	r, _ := reconcilerOn(server(t, set, revisionObject(set, "web-old", `{}`), podOf(nil, "web-a")))
	passes(t, r, set)
	_ = r.metrics.wrote("patch", apierrors.NewConflict(corev1.Resource("pods"), "a", errors.New("changed")))
	_ = r.metrics.wrote("delete", apierrors.NewTooManyRequests("it drains", 7))
	if gone := errors.New("gone"); !errors.Is(r.metrics.wrote("delete", gone), gone) {
		t.Error("another error comes back")
	}
	// Created: a revision, a claim and a Pod, of which the latter two are tried before. Deleted: the
	// old revision. Patched: the Pod without an owner, the conditions of the new one, the status.
	compare(t, r.metrics.writes, "writes")
}

// TestMetricsFollowConventions: names and units follow Prometheus, and a second
// controller of a process takes over the metrics of the first.
func TestMetricsFollowConventions(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	first, second := newMetrics(time.Now), newMetrics(time.Now)
	if err := errors.Join(first.register(registry), second.register(registry)); err != nil {
		t.Fatal(err)
	}
	if first.sets != second.sets || first.writes != second.writes {
		t.Error("the second one counts apart")
	}
	first.sets.put(keyOf(&apps.CloneSet{}), []plan.Blocked{{Gate: "preDelete", Keys: []string{"x"}, Since: now}}, plan.ReadPods([]*corev1.Pod{inState("")}, nil))
	first.writes.WithLabelValues("patch", "ok").Inc()
	first.actions.WithLabelValues("move").Inc()
	problems, err := testutil.GatherAndLint(registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("problems: %v, %v", problems, err)
	}
}
