// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/scenariotest"
)

// TestProgressingCondition follows the condition from pass to pass, one pass a line, with its time and
// the changes before it. Each pass knows only the status that the previous one wrote. The messages are
// OpenKruise's, letter for letter.
func TestProgressingCondition(t *testing.T) {
	scenariotest.Run(t, "testdata/progressing.txt", func(_ *testing.T, lines []string) (out []string) {
		r := &revision.Revision{Name: "web-r1"}
		set, s := &apps.CloneSet{}, &plan.Snapshot{Spec: plan.Spec{Replicas: 1, ProgressDeadline: time.Minute}, Current: r, Update: r}
		for _, line := range lines {
			after, change, _ := strings.Cut(line, " ")
			switch change {
			case "paused", "resumed":
				s.Spec.Paused = change == "paused"
			case "scaled to 0":
				s.Spec.Replicas = 0
			case "without a deadline":
				s.Spec.ProgressDeadline = 0
			}
			s.Now = now.Add(scenariotest.Duration(after))
			next, due := nextStatus(set, s, tally(s), &revisions{current: r, update: r}, nil)
			set.Status = next
			text := "no condition"
			if c := next.Condition(apps.ConditionProgressing); c != nil {
				text = fmt.Sprint(c.Status, " ", c.Reason, ": ", c.Message)
			}
			if !due.IsZero() {
				text += "; due at " + due.Sub(now).String()
			}
			out = append(out, text)
		}
		return out
	})
}

// TestNoDeadline: the largest number means no deadline, as for a Deployment.
func TestNoDeadline(t *testing.T) {
	set := web()
	for seconds, want := range map[int32]time.Duration{math.MaxInt32: 0, math.MaxInt32 - 1: (math.MaxInt32 - 1) * time.Second} {
		set.Spec.ProgressDeadlineSeconds = &seconds
		checktest.Same(t, fmt.Sprintf("the deadline of %d seconds", seconds), want, checktest.Must(plan.SpecOf(set))(t).ProgressDeadline)
	}
}

// TestDeadlineIsReportedOnce: one event reports that the deadline has passed.
func TestDeadlineIsReportedOnce(t *testing.T) {
	r, events := reconcilerOn(server(t))
	status := func(reason string) apps.CloneSetStatus {
		return apps.CloneSetStatus{Conditions: []apps.CloneSetCondition{{Type: apps.ConditionProgressing, Reason: reason}}}
	}
	set := web()
	set.Spec.ProgressDeadlineSeconds = new(int32(60))
	for _, step := range []struct {
		reason string
		want   int
	}{{plan.ProgressUpdated, 0}, {plan.ProgressDeadlineExceeded, 1}, {plan.ProgressDeadlineExceeded, 1}, {plan.ProgressAvailable, 1}} {
		next := status(step.reason)
		r.recordProgress(set, &next)
		set.Status = next
		checktest.Same(t, step.reason+": events", step.want, len(events.reasons))
	}
}

// TestFailureConditionsClear: a condition becomes False when its problem is gone.
func TestFailureConditionsClear(t *testing.T) {
	r := &revision.Revision{Name: "web-r1"}
	known := &revisions{current: r, update: r}
	set := &apps.CloneSet{}
	s := &plan.Snapshot{Now: now, Current: r, Update: r}
	unknown := &plan.Plan{Problems: []plan.Problem{{Reason: plan.ProblemNoSuchPod, Message: "no Pod x"}}}
	set.Status, _ = nextStatus(set, s, tally(s), known, find(unknown, nil, nil))
	if c := set.Status.Condition(apps.ConditionFailedScale); c == nil || c.Status != corev1.ConditionTrue || c.Message != "no Pod x" {
		t.Errorf("FailedScale = %+v", c)
	}
	checktest.Same(t, "FailedUpdate, while nothing fails to update", nil, set.Status.Condition(apps.ConditionFailedUpdate))
	set.Status, _ = nextStatus(set, s, tally(s), known, find(&plan.Plan{}, nil, nil))
	if c := set.Status.Condition(apps.ConditionFailedScale); c == nil || c.Status != corev1.ConditionFalse || c.Message != "" {
		t.Errorf("FailedScale = %+v, want it cleared", c)
	}
}

func tally(s *plan.Snapshot) plan.Counts {
	counts, _ := plan.Review(s)
	return counts
}

// TestStatusThatCanWait: in a large set, counters are written in steps while the rollout continues.
// Everything else that is left to a later pass has a time by which it is due: see TestReportEvery.
func TestStatusThatCanWait(t *testing.T) {
	scenariotest.Table(t, "testdata/can-wait.txt", func(t *testing.T, test struct {
		// Change is merged into the status of 1,000 Pods, of which 7 are updated.
		Change json.RawMessage
		// Did is the result of the pass's action.
		Did string
	}) string {
		was := &apps.CloneSetStatus{Replicas: 1000, ReadyReplicas: 1000, UpdatedReplicas: 7}
		next := was.DeepCopy()
		checktest.NoError(t, json.Unmarshal(test.Change, next))
		was.Replicas = next.Replicas
		before := was.DeepCopy()
		waits := canWait(was, next, map[string][]outcome{"something": {{}}, "something in vain": {{err: errGone}}, "nothing, but learned": {{async: true}}}[test.Did])
		checktest.Same(t, "the status before", before, was)
		return map[bool]string{true: "can wait", false: "cannot wait"}[waits]
	})
}

// TestReportEvery: while the Pods of a small set change their states, its status and the events of the
// writes are written together, every two seconds, and the beginning of a rollout at once; if many sets
// report at the same time, both are later, a beginning by at most ten seconds. Everything else, and the
// end, is written at once, and then nothing is due.
func TestReportEvery(t *testing.T) {
	stored := web()
	stored.Status = apps.CloneSetStatus{Replicas: 5, ReadyReplicas: 5, Conditions: []apps.CloneSetCondition{{Type: apps.ConditionProgressing}}}
	updated := func(name string) []outcome {
		pod := podOf(web(), name)
		return []outcome{{action: plan.Action{Verb: plan.Update, Reason: plan.ReasonInPlace, Pod: pod}, pod: pod}}
	}
	scenariotest.Table(t, "testdata/report-every.txt", func(t *testing.T, test struct {
		After metav1.Duration // the last time
		// Set and Status are merged into the set and its status.
		Set, Status json.RawMessage
		Idle        bool
		Others      int  // sets that report at the same time
		Waits       bool // since then, because so many reported
	}) string {
		set := stored.DeepCopy()
		r, events := reconcilerOn(server(t, set.DeepCopy()))
		checktest.NoError(t, r.Client.Get(t.Context(), keyOf(set), set))
		r.passState(keyOf(set)).status = statusState{lastStatus: now, pending: updated("web-a")}
		next := set.Status.DeepCopy()
		next.ReadyReplicas--
		checktest.NoError(t, errors.Join(json.Unmarshal(test.Set, set), json.Unmarshal(test.Status, next)))
		at := now.Add(test.After.Duration)
		if test.Waits {
			r.progress.AllowN(now, progressBurst)
			_ = checktest.Must(r.reportStatus(t.Context(), set, &status{next: *next}, nil, now))(t)
		}
		for range test.Others {
			r.progress.AllowN(at, 1)
		}
		due, err := r.reportStatus(t.Context(), set, &status{next: *next, idle: test.Idle}, updated("web-b"), at)
		checktest.NoError(t, err)
		got := &apps.CloneSet{}
		checktest.NoError(t, r.Client.Get(t.Context(), keyOf(set), got))
		written := due.IsZero()
		checktest.Same(t, "the status was written", written, got.Status.ReadyReplicas == 4)
		checktest.Same(t, "the events were recorded", written, strings.Contains(strings.Join(events.notes, " "), "web-a, web-b"))
		if written {
			return "written"
		}
		return "due in " + due.Sub(now).String()
	})
}

// recordedEvents returns what a pass with these outcomes records.
func recordedEvents(t *testing.T, decided *plan.Plan, blocked []plan.Blocked, outcomes ...outcome) *recorder {
	r, events := reconcilerOn(server(t))
	r.recordOutcomes(web(), outcomes)
	r.recordEvents(web(), decided, blocked, now)
	return events
}

// TestEventReasons: each kind of action is reported with OpenKruise's reason, for success
// or failure; an action that only met a change is not reported.
func TestEventReasons(t *testing.T) {
	broken := errors.New("no")
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "a", broken)
	scenariotest.Table(t, "testdata/events.txt", func(t *testing.T, test struct {
		Verb                   plan.Verb
		Reason, Because, Fails string
	}) string {
		pod, err := podWithSecret("web-a"), map[string]error{"yes": broken, "conflict": conflict}[test.Fails]
		action := plan.Action{Verb: test.Verb, Reason: test.Reason, Because: test.Because, Pod: pod}
		events := recordedEvents(t, &plan.Plan{}, nil, outcome{action: action, pod: pod, err: err})
		if test.Because != "" {
			checktest.Says(t, "the notes", events.notes, "("+test.Because+")")
		}
		for _, note := range events.notes {
			if strings.Contains(note, secret) || !strings.Contains(note, "Pod web-a") {
				t.Errorf("note %q", note)
			}
		}
		return cmp.Or(strings.Join(events.reasons, ", "), "nothing")
	})
}

func atPreDelete(pod string, since time.Duration) []plan.Blocked {
	return []plan.Blocked{{Pod: pod, Gate: "preDelete", State: apps.StatePreparingDelete, Keys: []string{"k"}, Since: now.Add(-since)}}
}

// stuckPod returns a Pod with a container that cannot start.
func stuckPod(reason string, since time.Duration) plan.Blocked {
	return plan.Blocked{
		Pod: "web-a", Gate: plan.GateContainer, State: apps.StateUpdating, Keys: []string{reason}, Since: now.Add(-since),
		Stuck: &plan.Stuck{Container: "main", Image: "web:v2", Reason: reason},
	}
}

// TestEventsOfAPlan: the events about problems in the plan itself.
func TestEventsOfAPlan(t *testing.T) {
	for name, test := range map[string]struct {
		plan    plan.Plan
		blocked []plan.Blocked
		want    []string
	}{
		"nothing":           {},
		"bounded":           {plan: plan.Plan{ScaleUpLimited: 3}, want: []string{"Warning ScaleUpLimited"}},
		"a problem":         {plan: plan.Plan{Problems: []plan.Problem{{Reason: plan.ProblemNoSuchPod, Message: "m"}}}, want: []string{"Warning PodsToDeleteUnknown"}},
		"a short wait":      {blocked: atPreDelete("web-a", longWait-time.Second)},
		"a long wait":       {blocked: atPreDelete("web-a", longWait), want: []string{"Normal Blocked"}},
		"a stuck container": {blocked: []plan.Blocked{stuckPod("ImagePullBackOff", longWait)}, want: []string{"Warning Blocked"}},
	} {
		checktest.Same(t, name+": events", test.want, recordedEvents(t, &test.plan, test.blocked).reasons)
	}
}

// TestBlockedIsReportedOnce: each wait causes one event, however many passes it lasts. A wait for a
// stuck container remains the same, also with another reason of the kubelet, until there is another
// image.
func TestBlockedIsReportedOnce(t *testing.T) {
	stuck := func(reason string, since time.Duration) []plan.Blocked {
		return []plan.Blocked{stuckPod(reason, since)}
	}
	other := stuck("ImagePullBackOff", longWait)
	other[0].Stuck.Image = "web:v3"
	r, events := reconcilerOn(server(t))
	for i, step := range []struct {
		blocked []plan.Blocked
		want    int // events so far
	}{
		{atPreDelete("a", longWait-time.Second), 0}, {atPreDelete("a", longWait), 1}, {atPreDelete("a", longWait), 1},
		{nil, 1}, {atPreDelete("b", longWait), 2}, {atPreDelete("b", longWait), 2}, {atPreDelete("b", longWait+time.Minute), 3},
		{stuck("ImagePullBackOff", longWait-time.Second), 3}, {stuck("ImagePullBackOff", longWait), 4}, {stuck("CrashLoopBackOff", longWait), 4}, {other, 5},
	} {
		r.recordBlocked(web(), step.blocked, now)
		checktest.Same(t, fmt.Sprint("events after pass ", i+1), step.want, len(events.reasons))
	}
}

// TestManyPodsAreOneEvent: an event names only a few Pods, however many there are.
func TestManyPodsAreOneEvent(t *testing.T) {
	var outcomes []outcome
	for i := range 1000 {
		pod := podWithSecret(fmt.Sprintf("web-%04d", i))
		outcomes = append(outcomes, outcome{action: plan.Action{Verb: plan.Create, Reason: plan.ReasonScaleOut}, pod: pod})
	}
	events := recordedEvents(t, &plan.Plan{}, nil, outcomes...)
	if !slices.Equal(events.reasons, []string{"Normal SuccessfulCreate"}) {
		t.Fatalf("events %q", events.reasons)
	}
	if !strings.Contains(events.notes[0], "1000 Pods: web-0000, ") || !strings.HasSuffix(events.notes[0], "and 992 more (ScaleOut)") {
		t.Errorf("note %q", events.notes[0])
	}
}

// TestStuckFinding: the condition has its own reason, and counts the others.
func TestStuckFinding(t *testing.T) {
	hook := plan.Blocked{Pod: "web-b", Gate: "preDelete", Keys: []string{"k"}, Since: now}
	got := findBlocked([]plan.Blocked{stuckPod("CrashLoopBackOff", time.Minute), hook})
	if got.Reason != ReasonContainerStuck || !strings.Contains(got.Message, "Pod web-a") || !strings.HasSuffix(got.Message, "; 1 other Pod waits too") {
		t.Errorf("found %+v", got)
	}
	for message, blocked := range map[string][]plan.Blocked{"; 1 other Pod waits at a gate": {hook, hook}, "; 2 other Pods wait at a gate": {hook, hook, hook}} {
		if got := findBlocked(blocked); got.Reason != ReasonWaitingForHook || !strings.HasSuffix(got.Message, message) {
			t.Errorf("found %+v", got)
		}
	}
}

func inState(state apps.LifecycleState) *corev1.Pod {
	return podOf(nil, "", func(p *corev1.Pod) { p.Labels[apps.LabelLifecycleState] = string(state) })
}

// compare compares metrics with their text form in testdata.
func compare(t *testing.T, c prometheus.Collector, name string) {
	t.Helper()
	want := checktest.Must(os.Open("testdata/metrics-" + name + ".txt"))(t)
	defer func() { _ = want.Close() }() // it was only read
	checktest.NoError(t, testutil.CollectAndCompare(c, want))
}

// TestSetMetrics: metrics count the waiting Pods by gate and key, with the present length of the
// longest wait; a deleted set has no series.
func TestSetMetrics(t *testing.T) {
	at := now
	m := newMetrics(func() time.Time { return at })
	set := &apps.CloneSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
	leaving := inState(apps.StateNormal)
	leaving.DeletionTimestamp = deletedNow()
	after := &plan.Snapshot{Now: now, PodInfos: plan.ReadPods([]*corev1.Pod{
		inState(""), inState(apps.StateNormal), inState(apps.StatePreparingDelete), inState("Strange"), leaving,
	}, nil)}
	blocked := []plan.Blocked{
		{Pod: "a", Gate: "preDelete", Keys: []string{"x", "y"}, Since: now.Add(-time.Minute)},
		{Pod: "b", Gate: "preDelete", Keys: []string{"x"}, Since: now},
		{Pod: "c", Gate: "preNormal", Keys: []string{"x"}},
		stuckPod("ImagePullBackOff", time.Minute), // a stuck container stands for a gate
	}
	m.passed(set, nil, blocked, nil, after)
	at = now.Add(time.Second)
	compare(t, m.sets, "set")
	m.passed(set, nil, nil, nil, &plan.Snapshot{Now: now, PodInfos: after.PodInfos[:1]})
	compare(t, m.sets, "set-alone")
	m.passed(set, nil, nil, nil, &plan.Snapshot{Now: now, Pods: after.Pods, Deletion: plan.LetGo})
	checktest.Same(t, "series of a set that is gone", 0, testutil.CollectAndCount(m.sets))
}

// TestPassMetrics: metrics count the planned actions, and the time of an update in place, which begins
// when a hook began to hold the Pod, if one did.
func TestPassMetrics(t *testing.T) {
	m := newMetrics(func() time.Time { return now })
	drained := func(status corev1.ConditionStatus) *corev1.Pod {
		return podOf(nil, "a", inUpdate(status, now.Add(-7*time.Second)))
	}
	done := func(reason string, pod *corev1.Pod, err error) outcome {
		return outcome{action: plan.Action{Verb: plan.Move, Reason: reason, Pod: pod}, pod: pod, err: err}
	}
	led := drained(corev1.ConditionFalse)
	led.Annotations = map[string]string{apps.AnnotationInPlaceUpdateState: inplace.State{Left: metav1.NewTime(now.Add(-18 * time.Second))}.String()}
	outcomes := []outcome{
		done(lifecycle.ReasonUpdateDone, drained(corev1.ConditionFalse), nil),
		done(lifecycle.ReasonUpdateDone, led, nil),
		done(lifecycle.ReasonUpdateDone, drained(corev1.ConditionFalse), errors.New("no")),
		done(lifecycle.ReasonUpdateDone, drained(corev1.ConditionTrue), nil),
		done(lifecycle.ReasonUpdateDropped, drained(corev1.ConditionFalse), nil),
		{action: plan.Action{Verb: plan.Create}},
	}
	actions := list.Map(outcomes, func(o outcome) plan.Action { return o.action })
	m.passed(&apps.CloneSet{}, actions, nil, outcomes, &plan.Snapshot{Now: now})
	compare(t, m.actions, "actions")
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(m.updates)
	families := checktest.Must(registry.Gather())(t)
	if updates := families[0].GetMetric()[0].GetHistogram(); updates.GetSampleCount() != 2 || updates.GetSampleSum() != 7+18 {
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
	// Created: a revision, a claim and a Pod; the latter two are first tried in a dry run. Deleted: the
	// old revision. Patched: the Pod without an owner, the conditions of the new one, the status.
	compare(t, r.metrics.writes, "writes")
}

// TestMetricsFollowConventions: names and units follow Prometheus, and a second
// controller of a process takes over the metrics of the first.
func TestMetricsFollowConventions(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	first, second := newMetrics(time.Now), newMetrics(time.Now)
	checktest.NoError(t, errors.Join(first.register(registry), second.register(registry)))
	if first.sets != second.sets || first.writes != second.writes {
		t.Error("the second one counts apart")
	}
	first.passed(&apps.CloneSet{}, nil, []plan.Blocked{{Gate: "preDelete", Keys: []string{"x"}, Since: now}}, nil,
		&plan.Snapshot{Now: now, PodInfos: plan.ReadPods([]*corev1.Pod{inState("")}, nil)})
	first.writes.WithLabelValues("patch", "ok").Inc()
	first.actions.WithLabelValues("move").Inc()
	problems, err := testutil.GatherAndLint(registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("problems: %v, %v", problems, err)
	}
}

// TestConditionsAreNotObeyed is an attack: an admission webhook, or an API server's error that repeats
// what somebody wrote, ends up in a condition. It is one bounded line, and written once.
func TestConditionsAreNotObeyed(t *testing.T) {
	status := &apps.CloneSetStatus{}
	said := plan.Problem{Reason: ReasonWriteFailed, Message: "refused: \x1b]0;owned\x07\n\u202e" + strings.Repeat("x", 64<<10)}
	setCondition(status, apps.ConditionFailedUpdate, said, time.Time{})
	have := status.Condition(apps.ConditionFailedUpdate).Message
	if !strings.HasPrefix(have, "refused: �]0;owned� �x") || len(have) > maxMessage {
		t.Errorf("the condition says %d bytes: %.40q", len(have), have)
	}
	if !holdsFinding(status, apps.ConditionFailedUpdate, said) {
		t.Error("the next pass reports it anew")
	}
}
