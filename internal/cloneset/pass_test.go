// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/scenariotest"
)

// passOver makes a pass over a new set of one Pod with more revisions than it keeps, on
// an API server that fails as configured.
func passOver(t *testing.T, failing interceptor.Funcs) (*apps.CloneSet, []string, error) {
	t.Helper()
	set := web()
	set.Generation, set.Spec.Replicas, set.Spec.RevisionHistoryLimit = 1, new(int32(1)), new(int32(0))
	c := server(t, set, revisionObject(set, "web-old", `{"spec":{"template":{"spec":{"x":1}}}}`))
	r, events := reconcilerOn(interceptor.NewClient(c, failing))
	_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: keyOf(set)})
	return read(t, c, set), events.reasons, err
}

// TestPause: if it takes long to plan, the next pass over the set begins later, but not much.
func TestPause(t *testing.T) {
	for took, pause := range map[time.Duration]time.Duration{
		0: 0, 300 * time.Microsecond: 0, time.Millisecond: 29 * time.Millisecond, 70 * time.Millisecond: 30 * time.Millisecond,
	} {
		set, passes := web(), 0
		r, _ := reconcilerOn(server(t, set))
		clock := r.Clock.(*testclock.FakePassiveClock)
		r.Plan = func(s *plan.Snapshot) plan.Plan {
			passes++
			clock.SetTime(clock.Now().Add(took))
			return plan.Make(s)
		}
		var result reconcile.Result
		for range 2 {
			result = checktest.Must(r.Reconcile(t.Context(), reconcile.Request{NamespacedName: keyOf(set)}))(t)
		}
		if paused := passes == 1; paused != (pause > 0) || (paused && result.RequeueAfter != pause) {
			t.Errorf("a plan took %s, and the next pass is due %s later, after %d passes", took, result.RequeueAfter, passes)
		}
	}
}

// TestLateFailures: a failure after the Pods were written prevents neither the status nor
// the events.
func TestLateFailures(t *testing.T) {
	broken := errors.New("broken for good")
	for name, test := range map[string]struct {
		failing interceptor.Funcs
		status  bool
	}{
		"a revision cannot be pruned": {interceptor.Funcs{
			Delete: func(_ context.Context, _ client.WithWatch, object client.Object, _ ...client.DeleteOption) error {
				return fmt.Errorf("delete %s: %w", object.GetName(), broken)
			},
		}, true},
		"the status cannot be written": {interceptor.Funcs{
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, object client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
				if _, ok := object.(*apps.CloneSet); ok {
					return broken
				}
				return c.SubResource(sub).Patch(ctx, object, patch, options...)
			},
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			set, reasons, err := passOver(t, test.failing)
			if !errors.Is(err, broken) {
				t.Errorf("error %v: it is not tried again", err)
			}
			checktest.Same(t, "the status is written", test.status, set.Status.Replicas == 1)
			if !slices.Contains(reasons, "Normal SuccessfulCreate") {
				t.Errorf("events %q", reasons)
			}
		})
	}
}

// TestTerminatingNamespace: nothing can be created in a terminating namespace, and that
// is no error.
func TestTerminatingNamespace(t *testing.T) {
	going := apierrors.NewForbidden(corev1.Resource("pods"), "x", errors.New("the namespace is being terminated"))
	going.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for name, refused := range map[string]func(client.Object) bool{
		"no revision": func(object client.Object) bool { _, ok := object.(*appsv1.ControllerRevision); return ok },
		"no Pod":      func(object client.Object) bool { _, ok := object.(*appsv1.ControllerRevision); return !ok },
	} {
		t.Run(name, func(t *testing.T) {
			_, reasons, err := passOver(t, interceptor.Funcs{
				Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
					if refused(object) {
						return going
					}
					return c.Create(ctx, object, options...)
				},
			})
			if err != nil || slices.Contains(reasons, "Warning FailedCreate") {
				t.Errorf("error %v, events %q", err, reasons)
			}
		})
	}
}

// TestNoMoreCreations: after one answer that the namespace is terminating, passes create no more.
func TestNoMoreCreations(t *testing.T) {
	set, creations := web(), 0
	set.Generation, set.Spec.Replicas = 1, new(int32(1))
	r, _ := reconcilerOn(interceptor.NewClient(server(t, set), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
			tried := len((&client.CreateOptions{}).ApplyOptions(options).DryRun) > 0
			if tried || object.GetObjectKind().GroupVersionKind().Kind != "Pod" {
				return c.Create(ctx, object, options...)
			}
			creations++
			err := apierrors.NewForbidden(corev1.Resource("pods"), "x", errors.New("the namespace is being terminated"))
			err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
			return err
		},
	}))
	for range 3 {
		checktest.Must(r.Reconcile(t.Context(), reconcile.Request{NamespacedName: keyOf(set)}))(t)
		r.Clock.(*testclock.FakePassiveClock).SetTime(r.Clock.Now().Add(time.Minute))
	}
	checktest.Same(t, "creations", 1, creations)
}

// states counts the sets of which something is known.
func states(r *Reconciler) (count int) {
	r.states.Range(func(any, any) bool { count++; return true })
	return count
}

// TestForget: nothing is kept about a deleted set, whether or not a pass has seen its end.
func TestForget(t *testing.T) {
	set := web()
	r, _ := reconcilerOn(server(t))
	r.passState(keyOf(set)).uid = set.UID
	r.revisions.noteCreated(set, revisionObject(set, "web-6f", `{}`), now)
	r.pods.noteDeleted(set, podWithSecret("web-a"), now)
	r.claims.noteCreated(set, claimOf(set, "data-web-x", "x"), now)
	r.forget(keyOf(set))
	if left := states(r) + len(r.pods.sets) + len(r.claims.sets) + len(r.revisions.sets); left > 0 {
		t.Errorf("%d things left: %+v", left, r)
	}
}

// TestObservationAfter: the observation after a pass has the answers to writes; after a failed write,
// the Pod is as before.
func TestObservationAfter(t *testing.T) {
	at := func(name, version string) *corev1.Pod { return podOf(nil, name, at(version)) }
	failure := errors.New("no")
	a, b, c, d, e := at("a", "1"), at("b", "1"), at("c", "1"), at("d", "1"), at("e", "1")
	s := &plan.Snapshot{Set: "web", Pods: []*corev1.Pod{a, b, c, d, e}}
	before := &observation{snapshot: s}
	after := before.With(&results{outcomes: []outcome{
		{action: plan.Action{Verb: plan.Move, Pod: a}, pod: at("a", "2")},
		{action: plan.Action{Verb: plan.Update, Pod: b}, pod: b, err: failure},
		{action: plan.Action{Verb: plan.Delete, Pod: c}, pod: c},
		{action: plan.Action{Verb: plan.Delete, Pod: d}, pod: d, err: failure},
		{action: plan.Action{Verb: plan.Create}, pod: at("f", "1")},
		{action: plan.Action{Verb: plan.Create}, err: failure},
	}})
	checktest.Same(t, "Pods", "a 2, b 1, d 1, e 1, f 1", shown(after.snapshot.Pods))
	checktest.Same(t, "the set", "web", after.snapshot.Set)
	checktest.Same(t, "the Pods before", "a 1, b 1, c 1, d 1, e 1", shown(before.snapshot.Pods))
}

// TestPodInfosOfAnIdleSet: PodInfos are kept only while there is something to do.
func TestPodInfosOfAnIdleSet(t *testing.T) {
	set := web()
	set.Spec.Replicas = new(int32(1))
	c := server(t, set)
	r, _ := reconcilerOn(c)
	for pass, want := range []int{1, 0} {
		if pass == 1 {
			pods, err := r.ListPods(t.Context(), set.Namespace, string(set.UID))
			if err != nil || len(pods) != 1 {
				t.Fatalf("Pods %v: %v", pods, err)
			}
			pods[0].Labels[apps.LabelLifecycleState] = string(apps.StateNormal)
			checktest.NoError(t, c.Update(t.Context(), pods[0]))
		}
		checktest.Must(r.pass(t.Context(), read(t, c, set)))(t)
		checktest.Same(t, fmt.Sprint("Pods after pass ", pass+1), want, len(r.passState(keyOf(set)).podInfos))
	}
}

// TestGoneSet: a set that the API server no longer has is left alone for as long as the cache
// shows it.
func TestGoneSet(t *testing.T) {
	set := web()
	set.Spec.Replicas = new(int32(1))
	cache, live := server(t, set), server(t)
	r, events := reconcilerOn(live)
	r.Client = reading{live, cache}
	for range 3 {
		checktest.Must(r.Reconcile(t.Context(), reconcile.Request{NamespacedName: keyOf(set)}))(t)
		// The garbage collector deletes what the first pass has created.
		checktest.NoError(t, live.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace(set.Namespace)))
	}
	checktest.Same(t, "how often Pods were created", 1, len(slices.DeleteFunc(events.reasons, func(reason string) bool { return reason != "Normal SuccessfulCreate" })))
	checktest.NoError(t, cache.Delete(t.Context(), set))
	if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: keyOf(set)}); err != nil || states(r) > 0 {
		t.Errorf("something is kept: %v", err)
	}
}

// reading is a client that reads CloneSets from a cache.
type reading struct {
	client.Client
	cache client.Client
}

func (c reading) Get(ctx context.Context, at client.ObjectKey, object client.Object, options ...client.GetOption) error {
	if _, ok := object.(*apps.CloneSet); ok {
		return c.cache.Get(ctx, at, object, options...)
	}
	return c.Client.Get(ctx, at, object, options...)
}

type podEntry = overlayEntry[*corev1.Pod]

// shown lists Pods as "name version".
func shown(pods []*corev1.Pod) string {
	return strings.Join(list.Map(pods, func(pod *corev1.Pod) string { return pod.Name + " " + pod.ResourceVersion }), ", ")
}

// TestMerge: the objects that a pass sees if the cache does not show all answers, and the answers that
// it verifies at once.
func TestMerge(t *testing.T) {
	scenariotest.Table(t, "testdata/merge.txt", func(_ *testing.T, test struct {
		// Created, Deleted and Released are answers, each a Pod and its version; Cached are Pods in the
		// cache.
		Created, Deleted, Released string
		Cached                     []string
	}) string {
		pod := func(owner *apps.CloneSet, text string) *corev1.Pod {
			name, version, _ := strings.Cut(text, " ")
			return podOf(owner, name, at(version))
		}
		o, cached := newOverlay[*corev1.Pod](nil), []*corev1.Pod(nil)
		if test.Created != "" {
			o.note("set", podEntry{object: pod(web(), test.Created), created: true, at: now})
		}
		if gone, owner := cmp.Or(test.Deleted, test.Released), map[bool]*apps.CloneSet{true: web()}[test.Deleted != ""]; gone != "" {
			o.note("set", podEntry{object: pod(owner, gone), deleted: true, at: now})
		}
		for _, text := range test.Cached {
			cached = append(cached, pod(web(), text))
		}
		pods, unverified := o.merge("set", cached, now.Add(time.Second))
		return cmp.Or(shown(pods), "nothing") + map[bool]string{true: "; verifies"}[len(unverified) > 0]
	})
}

// TestVerificationIsDue: an answer that the cache has not confirmed triggers a pass, since
// no event may.
func TestVerificationIsDue(t *testing.T) {
	entry := func(name string, age time.Duration, created, deleted bool) podEntry {
		return podEntry{object: podOf(nil, name, at("5")), created: created, deleted: deleted, at: now.Add(-age)}
	}
	for name, test := range map[string]struct {
		entries []podEntry
		want    time.Time
	}{
		"nothing":              {},
		"the oldest one":       {[]podEntry{entry("a", time.Second, true, false), entry("b", 3*time.Second, true, false)}, now.Add(verifyAfter - 3*time.Second)},
		"one that goes":        {[]podEntry{entry("a", 0, false, true)}, now.Add(verifyAfter)},
		"made, and gone again": {[]podEntry{entry("a", 0, true, true)}, time.Time{}},
	} {
		o := newOverlay[*corev1.Pod](nil)
		for _, e := range test.entries {
			o.note("set", e)
		}
		o.note("another", entry("c", time.Hour, true, false))
		if got := o.verifyAt("set"); !got.Equal(test.want) {
			t.Errorf("%s: due at %v, want %v", name, got, test.want)
		}
		if _, unverified := o.merge("set", nil, o.verifyAt("set")); len(unverified) != 0 != (name == "the oldest one") {
			t.Errorf("%s: to be verified then: %v", name, unverified)
		}
	}
}

// TestStaleCacheIsVerified: if the cache has lagged for too long, a pass verifies the
// entry and decides on what it finds, not on the entry.
func TestStaleCacheIsVerified(t *testing.T) {
	for name, test := range map[string]struct {
		live []client.Object
		want string
	}{
		"it is as it was answered":      {[]client.Object{podOf(web(), "web-a", at("3"))}, "web-a 3"},
		"it has changed since":          {[]client.Object{podOf(web(), "web-a", at("4"))}, "web-a 4"},
		"it belongs to nobody any more": {[]client.Object{podOf(nil, "web-a", at("4"))}, ""},
		"it is gone":                    {nil, ""},
	} {
		r, _ := reconcilerOn(server(t, podOf(web(), "web-a", at("2"))))
		r.Reader = server(t, test.live...)
		r.pods.note("set", podEntry{object: podOf(web(), "web-a", at("3")), at: now.Add(-verifyAfter - time.Second)})
		pods, err := r.ownPods(t.Context(), web(), now)
		if got := shown(pods); err != nil || got != test.want {
			t.Errorf("%s: the pass sees %q, want %q; %v", name, got, test.want, err)
		}
	}
}

// TestDrainCountsFromWhenItIsRead: a pass may read Pods that are newer than its start, so a drain that
// it finds counts from the time of the reading, not from the start of the pass.
func TestDrainCountsFromWhenItIsRead(t *testing.T) {
	r, _ := reconcilerOn(server(t, web(), podOf(web(), "web-a", inUpdate(corev1.ConditionFalse, now))))
	before := checktest.Must(r.observe(t.Context(), web(), now.Add(-3*time.Second)))(t)
	if got := before.snapshot.Drained[types.UID("uid-web-a")]; !got.Equal(now) {
		t.Errorf("drained since %s, want %s", got, now)
	}
}

// TestNewPodGoneAtOnce: a Pod that is deleted before its gates are opened no longer
// counts, and the next pass follows at once.
func TestNewPodGoneAtOnce(t *testing.T) {
	r, _ := reconcilerOn(server(t))
	pod := podOf(web(), "web-a", at("5"))
	pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: apps.ConditionInPlaceUpdateReady}}
	r.pods.noteCreated(web(), pod, now)
	made, err := r.openGates(t.Context(), web(), pod)
	if made != nil || !(outcome{action: plan.Action{Verb: plan.Create}, err: err}).conflicted() {
		t.Errorf("made %v: %v", made, err)
	}
	if pods, _ := r.pods.merge("set", nil, now); len(pods) > 0 {
		t.Errorf("the next pass sees %s", shown(pods))
	}
}

// TestPodTakenAwayMidAction: a Pod that someone releases while an action on it is under
// way is left alone from then on, in this pass and the next.
func TestPodTakenAwayMidAction(t *testing.T) {
	seen, c := podOf(web(), "web-a"), server(t, podOf(nil, "web-a"))
	r, _ := reconcilerOn(c)
	done := performed(t, r, web(), plan.Action{
		Verb: plan.Update, Pod: seen, To: apps.StateUpdating, Revision: &revision.Revision{Name: "web-2"}, Change: &inplace.Change{},
		Conditions: []plan.Condition{{Type: apps.ConditionInPlaceUpdateReady, Status: corev1.ConditionTrue, Reason: plan.ReasonInService}},
	})
	if !done.conflicted() {
		t.Errorf("the action ends with %v, not with a conflict", done.err)
	}
	checktest.Same(t, "its state", "", read(t, c, seen).Labels[apps.LabelLifecycleState])
	if pods, _ := r.pods.merge("set", []*corev1.Pod{seen}, now); len(pods) > 0 {
		t.Error("the next pass, with a cache that lags, takes it for the set's")
	}
}

// TestDrains: a drain counts from when it was known to be in effect, not from the time in its
// condition.
func TestDrains(t *testing.T) {
	scenariotest.Table(t, "testdata/drains.txt", func(t *testing.T, looks []struct {
		// At is when a pass reads the Pod; Since is the time in the condition, and Is its status.
		At, Since metav1.Duration
		Is        corev1.ConditionStatus
	}) string {
		shared, known := (&Reconciler{}).shared(keyOf(web())), []string(nil)
		for _, look := range looks {
			pod := podOf(nil, "a", inUpdate(look.Is, now.Add(look.Since.Duration)))
			since, drained := shared.recordDrains(plan.ReadPods([]*corev1.Pod{pod}, nil), now.Add(look.At.Duration))["uid-a"]
			known = append(known, map[bool]string{true: "since " + since.Sub(now).String(), false: "not drained"}[drained])
		}
		if shared.recordDrains(nil, now); len(shared.drains) > 0 {
			t.Errorf("a Pod that is gone is remembered: %v", shared.drains)
		}
		return strings.Join(known, ", ")
	})
}
