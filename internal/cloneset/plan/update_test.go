// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/internal/cloneset/revision"
)

const readyFalse = " InPlaceUpdateReady=False"

func recreates(name string) string { return "delete " + name + " (Recreate)" }

func updatesA(n int) string {
	return fmt.Sprintf("update a (InPlaceUpdate) to Updating%s revision web-r%d", readyFalse, n)
}

// five Pods of r1, in a set that rolls out r2 one at a time.
func five(options ...option) *Snapshot {
	all := []option{toRevision(rev(2)), maxUnavailable(1), with(pods(1, "a", "b", "c", "d", "e")...)}
	return snap(5, append(all, options...)...)
}

func TestMethods(t *testing.T) {
	unlike := toRevision(rev(2, newEnv))
	inPlace := method(InPlaceIfPossible)
	expect(t, five(), recreates("a"))
	expect(t, five(inPlace), updatesA(2))
	expect(t, five(inPlace, unlike), recreates("a"))
	expect(t, five(method(InPlaceOnly)), updatesA(2))
	expect(t, five(method(OnDelete)))
	expect(t, five(method(OnDelete), with(pod("e2", 1)), func(s *Snapshot) { s.Pods = s.Pods[1:4] }), create2, create2)
	expectProblem(t, expect(t, five(method(InPlaceOnly), unlike)), ProblemNotInPlace, "containers[main].env")
}

func TestPartitionHolds(t *testing.T) {
	expect(t, five(partition(5)))
	expect(t, five(partition(7)))
	expect(t, five(partition(3), maxUnavailable(5)), recreates("a"), recreates("b"))
	s := five(maxUnavailable(5))
	s.Spec.Partition = percent(50) // of 5: 3 stay
	expect(t, s, recreates("a"), recreates("b"))
	s.Spec.Partition = percent(99) // at least one is updated
	expect(t, s, recreates("a"))
	// Pods that are already new count.
	expect(t, snap(3, toRevision(rev(2)), partition(1), maxUnavailable(3), with(pod("a", 2), pod("b", 1), pod("c", 1))), recreates("b"))
	expect(t, snap(3, toRevision(rev(2)), partition(1), maxUnavailable(3), with(pod("a", 2), pod("b", 1), pod("c", 2))))
}

func TestPaused(t *testing.T) {
	expect(t, five(paused))
	expect(t, five(paused, maxSurge(2)))
	// Replicas are kept, and states refreshed.
	s := five(paused, method(InPlaceIfPossible))
	s.Pods = []*corev1.Pod{pod("a", 1), pod("b", 1, terminating), pod("c", 1), pod("d", 1), pod("e", 1, updating(2), restarted)}
	expect(t, s, "move e (UpdateDone) to Normal InPlaceUpdateReady=True", create2)
	// A Pod that waits for its update is brought back, not left out of service.
	s = five(paused, method(InPlaceIfPossible), hooks(gates(true)), grace(time.Minute))
	s.Pods[0] = pod("a", 1, registered, state(apps.StatePreparingUpdate), condition(apps.ConditionPodReady, corev1.ConditionFalse, ""))
	s.Pods[1] = pod("b", 1, registered, out(2, time.Second))
	expect(t, s, "move a (UpdateDropped) to Normal KruisePodReady=True", "move b (Conditions) InPlaceUpdateReady=True")
}

// TestUpdateBudget: available Pods leave while enough others serve; unavailable ones are
// free, as long as not too many of the new revision are unavailable.
func TestUpdateBudget(t *testing.T) {
	expectEach(t, []planCase{
		{"two at a time", five(maxUnavailable(2)), []string{recreates("a"), recreates("b")}},
		{"one is unavailable already", five(with(pod("f", 1, unready)), func(s *Snapshot) { s.Pods = append(s.Pods[1:5:5], s.Pods[5]) }),
			[]string{recreates("f")}},
		{"one new Pod is not available yet", five(func(s *Snapshot) { s.Pods[0] = pod("a", 2, unready) }), nil},
		{"unavailable ones are bounded too", five(maxUnavailable(2), func(s *Snapshot) {
			for i := range s.Pods {
				unready(s.Pods[i])
			}
		}), []string{recreates("a"), recreates("b")}},
		{"unavailable, and the new revision is no better", five(maxUnavailable(2), func(s *Snapshot) {
			s.Pods[0], s.Pods[1] = pod("a", 2, unready), pod("b", 2, unready)
			unready(s.Pods[2])
		}), nil},
		{"missing Pods use the budget", five(func(s *Snapshot) { s.Pods = s.Pods[:4] }), []string{create2}},
		{"minReadySeconds", five(func(s *Snapshot) { s.Spec.MinReady = time.Minute; s.Pods[0] = pod("a", 2, readyFor(time.Second)) }), nil},
		{"updates may have half of a pass's starts", five(maxUnavailable(5), starts(4)), []string{recreates("a"), recreates("b")}},
		{"surge first", five(maxUnavailable(0), maxSurge(2)), []string{create2, create2}},
		{"surge there", five(maxUnavailable(0), maxSurge(1), with(pod("f", 2))), []string{recreates("a")}},
		{"surge no larger than the need", five(maxUnavailable(0), maxSurge(3), partition(4)), []string{create2}},
		{"the last old Pod over replicas is scaled in", snap(3, toRevision(rev(2)), maxUnavailable(0), maxSurge(1), method(InPlaceIfPossible),
			with(pods(2, "a", "b", "c")...), with(pod("o", 1))), []string{"delete o (ScaleIn)"}},
		{"in place with surge", five(maxUnavailable(0), maxSurge(1), method(InPlaceIfPossible), with(pod("f", 2))), []string{updatesA(2)}},
	})
}

func TestUpdateOrder(t *testing.T) {
	order := func(s *Snapshot) []string {
		toRevision(rev(2))(s)
		var out []string
		for _, v := range s.orderForUpdate(slices.DeleteFunc(newPass(s).pods, func(v *podState) bool { return v.isUpdated })) {
			out = append(out, v.pod.Name)
		}
		return out
	}
	weights := func(s *Snapshot) {
		for value, weight := range map[string]int{"gold": 10, "silver": 5} {
			s.Spec.Priority.Weights = append(s.Spec.Priority.Weights, WeightTerm{Weight: weight, Selector: labels.SelectorFromSet(labels.Set{"class": value})})
		}
		s.Spec.Priority.Weights = append(s.Spec.Priority.Weights, WeightTerm{Weight: 6, Selector: labels.SelectorFromSet(labels.Set{"zone": "z"})})
	}
	keys := func(s *Snapshot) { s.Spec.Priority.OrderKeys = []string{"order", "second"} }
	scattered := func(s *Snapshot) { s.Spec.Scatter = []ScatterTerm{{Key: "app", Value: "db"}} }
	class := func(value string) podOption { return label("class", value) }
	ten := func(s *Snapshot) {
		for i := range 10 {
			p := pod(fmt.Sprintf("p%d", i), 1)
			if i < 3 {
				label("app", "db")(p)
			}
			with(p)(s)
		}
	}
	for _, test := range []struct {
		name string
		s    *Snapshot
		want string
	}{
		{"least useful first", snap(5, with(pod("a", 1), pod("b", 1, unready), pod("c", 1, phase(corev1.PodUnknown), unready),
			pod("d", 1, phase(corev1.PodPending), unready), pod("e", 1, pending))), "e d c b a"},
		{"ties by name", snap(3, with(pods(1, "c", "a", "b")...)), "a b c"},
		{"weights add up", snap(4, weights, with(pod("a", 1), pod("b", 1, class("silver")), pod("c", 1, class("gold")), pod("d", 1, class("silver"), label("zone", "z")))), "d c b a"},
		{"readiness before weights", snap(2, weights, with(pod("a", 1, class("gold")), pod("b", 1, unready))), "b a"},
		{"trailing number, larger first", snap(4, keys, with(pod("a", 1, label("order", "x-9")), pod("b", 1, label("order", "x-10")), pod("c", 1), pod("d", 1, label("order", "none")))), "b a d c"},
		{"first listed key wins", snap(3, keys, with(pod("a", 1, label("second", "99")), pod("b", 1, label("order", "1")), pod("c", 1, label("second", "100")))), "b c a"},
		{"scatter: 3 of 10", snap(10, ten, scattered), "p0 p3 p4 p5 p6 p1 p7 p8 p9 p2"},
		{"scatter on: the first is updated", snap(10, ten, scattered, func(s *Snapshot) { s.Pods[0] = pod("p0", 2, label("app", "db")) }), "p3 p4 p5 p6 p1 p7 p8 p9 p2"},
		{"scatter on: ahead of its place", snap(10, ten, scattered, func(s *Snapshot) {
			s.Pods[0], s.Pods[1] = pod("p0", 2, label("app", "db")), pod("p1", 2, label("app", "db"))
		}), "p3 p4 p5 p6 p7 p8 p9 p2"},
		{"scatter on: behind its place", snap(4, scattered, with(pod("a", 2), pod("b", 2), pod("c", 1), pod("d", 1, label("app", "db")))), "d c"},
		{"scatter nothing", snap(2, scattered, with(pods(1, "a", "b")...)), "a b"},
		{"scatter all", snap(2, scattered, with(pod("a", 1, label("app", "db")), pod("b", 1, label("app", "db")))), "a b"},
		{"scatter one", snap(3, scattered, with(pod("a", 1), pod("b", 1, label("app", "db")), pod("c", 1))), "b a c"},
		{"begun ones stay first", snap(3, weights, with(pod("a", 1, class("gold")), pod("b", 1, unready), pod("c", 1, state(apps.StatePreparingUpdate)))), "c b a"},
	} {
		t.Run(test.name, func(t *testing.T) {
			for range 3 { // the order does not matter
				if got := strings.Join(order(test.s), " "); got != test.want {
					t.Errorf("order = %s, want %s", got, test.want)
				}
				slices.Reverse(test.s.Pods)
			}
		})
	}
}

// TestInPlaceSteps leads one Pod through an update, with and without a hook.
func TestInPlaceSteps(t *testing.T) {
	inPlace := method(InPlaceIfPossible)
	one := func(p *corev1.Pod, options ...option) *Snapshot {
		return snap(1, append([]option{toRevision(rev(2)), inPlace, with(p)}, options...)...)
	}
	hooked := hooks(lifecycle.Hooks{InPlaceUpdate: gates(true).InPlaceUpdate})
	marked := condition(apps.ConditionPodReady, corev1.ConditionFalse, `[{"userAgent":"Lifecycle","key":"preUpdateHook"}]`)
	expectEach(t, []planCase{
		{"no hook", one(pod("a", 1)), []string{updatesA(2)}},
		{"no state label counts as Normal", one(pod("a", 1, state(""))), []string{updatesA(2)}},
		{"hook set, but not on the Pod", one(pod("a", 1), hooked), []string{updatesA(2)}},
		{"hook holds", one(pod("a", 1, finalizers(keyUpdate)), hooked), []string{"move a (PrepareUpdate) to PreparingUpdate KruisePodReady=False"}},
		{"new, hook holds", one(pod("a", 1, finalizers(keyUpdate), state(apps.StatePreparingNormal)), hooked),
			[]string{"move a (Scheduled) to Normal"}},
		{"held", one(pod("a", 1, finalizers(keyUpdate), state(apps.StatePreparingUpdate), marked), hooked), nil},
		{"released", one(pod("a", 1, state(apps.StatePreparingUpdate), marked), hooked), []string{updatesA(2)}},
		{"under way", one(pod("a", 1, updating(2), marked), hooked), nil},
		{"done, hook not back", one(pod("a", 1, updating(2), restarted, marked), hooked),
			[]string{"move a (UpdateDone) to Updated InPlaceUpdateReady=True KruisePodReady=True"}},
		{"done, hook never went", one(pod("a", 1, updating(2), restarted, finalizers(keyUpdate)), hooked),
			[]string{"move a (UpdateDone) to Normal InPlaceUpdateReady=True"}},
		{"Updated, waiting", one(pod("a", 2, state(apps.StateUpdated)), hooked), nil},
		{"Updated, hook back", one(pod("a", 2, state(apps.StateUpdated), finalizers(keyUpdate)), hooked),
			[]string{"move a (HookRestored) to Normal"}},
		{"grace begins", one(pod("a", 1), grace(time.Minute)), []string{"move a (StartInPlaceUpdate)" + readyFalse}},
		{"in grace", one(pod("a", 1, out(2, 59*time.Second)), grace(time.Minute)), nil},
		{"perhaps still in grace", one(pod("a", 1, out(2, time.Minute)), grace(time.Minute)), nil},
		{"grace over", one(pod("a", 1, out(2, time.Minute+time.Second)), grace(time.Minute)), []string{"update a (InPlaceUpdate) to Updating revision web-r2"}},
		{"grace of another revision starts over", one(pod("a", 1, out(3, time.Minute)), grace(time.Minute)), []string{"move a (StartInPlaceUpdate)" + readyFalse}},
		{"no node yet", one(pod("a", 1, fresh)), []string{"update a (InPlaceUpdate) InPlaceUpdateReady=True KruisePodReady=True revision web-r2"}},
		{"conditions give way to the update", one(pod("a", 1, condition(apps.ConditionPodReady, corev1.ConditionFalse, "")), hooked),
			[]string{updatesA(2)}},
		{"grace and hook", one(pod("a", 1, state(apps.StatePreparingUpdate), marked), hooked, grace(time.Minute)),
			[]string{"move a (StartInPlaceUpdate)" + readyFalse}},
		{"metadata only: nobody leaves service", one(pod("a", 1), toRevision(rev(2, onlyLabel))), []string{"update a (InPlaceUpdate) revision web-r2"}},
		{"metadata only, hook holds", one(pod("a", 1, finalizers(keyUpdate)), hooked, toRevision(rev(2, onlyLabel))),
			[]string{"move a (PrepareUpdate) to PreparingUpdate KruisePodReady=False"}},
		{"metadata only, released", one(pod("a", 1, state(apps.StatePreparingUpdate), marked), hooked, toRevision(rev(2, onlyLabel))),
			[]string{"update a (InPlaceUpdate) to Updated KruisePodReady=True revision web-r2"}},
		{"somebody took the state away, and the kubelet still works", one(pod("a", 1, updating(2), state(""))), nil},
		{"held, and named for deletion: not led back first", snap(2, inPlace, toRevision(rev(2)), hooked, named("a"), maxUnavailable(1),
			with(pod("a", 1, state(apps.StatePreparingUpdate), marked), pod("b", 2, created(time.Hour), unready))), nil},
		{"PreparingDelete is never updated", one(pod("a", 1, state(apps.StatePreparingDelete), label(apps.LabelSpecifiedDelete, "true"), finalizers(keyDelete)),
			hooks(preDelete())), nil},
	})
	expectRequeue(t, Make(one(pod("a", 1, out(2, 40*time.Second)), grace(time.Minute))), 21*time.Second)
}

// TestRemovedCondition: without its condition, a Pod stays out of service until its update
// is done.
func TestRemovedCondition(t *testing.T) {
	removed := func(p *corev1.Pod) {
		p.Status.Conditions = slices.DeleteFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == apps.ConditionInPlaceUpdateReady })
	}
	noGate := func(p *corev1.Pod) { p.Spec.ReadinessGates = p.Spec.ReadinessGates[1:] }
	inPlace := method(InPlaceIfPossible)
	expectEach(t, []planCase{
		{"in service", snap(1, with(pod("a", 1, removed))), []string{"move a (Conditions) InPlaceUpdateReady=True"}},
		{"under way", snap(1, inPlace, toRevision(rev(2)), with(pod("a", 1, updating(2), removed))), []string{"move a (Conditions) InPlaceUpdateReady=False"}},
		{"under way, without the gate", snap(1, inPlace, toRevision(rev(2)), with(pod("a", 1, noGate, updating(2), removed))), []string{"move a (Conditions) InPlaceUpdateReady=False"}},
		{"done", snap(1, inPlace, toRevision(rev(2)), with(pod("a", 1, updating(2), restarted, removed))), []string{"move a (UpdateDone) to Normal InPlaceUpdateReady=True"}},
		{"a resize is due", sizedSet(pod("a", 1, hasCPU("100m"), resizing(false), removed)), []string{resizesA + readyFalse}},
		{"the next containers are due", rankedSet(pod("a", 1, hasBase, inBatch, baseRuns(true), removed)), []string{nextA + readyFalse}},
		{"a newer revision", snap(1, inPlace, toRevision(rev(2)), toRevision(rev(3)), with(pod("a", 1, updating(2), removed))), []string{updatesA(3)}},
	})
	p := Make(snap(1, toRevision(rev(2)), with(pod("a", 1, updating(2), removed))))
	if c := p.Actions[0].Conditions[0]; c.Message != "web-r2" {
		t.Errorf("the condition names %q, not the revision of the update", c.Message)
	}
}

// TestNotTooManyAtOnce: Pods that have just left service for an update are waited for, at
// most a second, before others follow.
func TestNotTooManyAtOnce(t *testing.T) {
	leaving := func(name string) *corev1.Pod { return pod(name, 1, out(2, time.Second), updating(2)) }
	for _, test := range []struct {
		name string
		out  []time.Duration
		want int
		wake time.Duration
	}{
		{"nobody is out", nil, 1, 0},
		{"one has just left", []time.Duration{400 * time.Millisecond}, 1, 600 * time.Millisecond},
		{"two have just left", []time.Duration{400 * time.Millisecond, 700 * time.Millisecond}, 0, 300 * time.Millisecond},
		{"two are slow", []time.Duration{time.Second, 3 * time.Second}, 1, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := snap(8, method(InPlaceIfPossible), toRevision(rev(2)), maxUnavailable(8), starts(2))
			s.Drained = map[types.UID]time.Time{}
			for i, since := range test.out {
				p := leaving(fmt.Sprintf("u%d", i))
				s.Drained[p.UID] = now.Add(-since)
				with(p)(s)
			}
			for i := range 8 - len(test.out) {
				with(pod(fmt.Sprintf("v%d", i), 1))(s)
			}
			p := Make(s)
			if started := count(p, func(a Action) bool { return a.Verb == Update }); started != test.want {
				t.Errorf("%d Pods leave, want %d: %v", started, test.want, p.Actions)
			}
			expectRequeue(t, p, test.wake)
		})
	}
}

// TestRestartsAreBoundedToo: Pods that their hook has released restart a few at a time,
// before others are led to their gates.
func TestRestartsAreBoundedToo(t *testing.T) {
	s := snap(6, method(InPlaceIfPossible), toRevision(rev(2)), maxUnavailable(6), starts(4), hooks(gates(false)))
	for _, name := range []string{"a", "b", "c"} {
		with(pod(name, 1, state(apps.StatePreparingUpdate), finalizers(keyNormal)))(s)
	}
	for _, name := range []string{"d", "e", "f"} {
		with(pod(name, 1, finalizers(keyNormal, keyUpdate)))(s)
	}
	p := expect(t, s,
		"update a (InPlaceUpdate) to Updating InPlaceUpdateReady=False revision web-r2",
		"update b (InPlaceUpdate) to Updating InPlaceUpdateReady=False revision web-r2")
	if !p.More {
		t.Error("nothing asks for the pass that goes on")
	}
}

// TestRollbackAtEachStep: the template is r1 again while the Pod is on its way to r2.
func TestRollbackAtEachStep(t *testing.T) {
	hooked := hooks(lifecycle.Hooks{InPlaceUpdate: gates(true).InPlaceUpdate})
	marked := condition(apps.ConditionPodReady, corev1.ConditionFalse, `[{"userAgent":"Lifecycle","key":"preUpdateHook"}]`)
	for _, test := range []struct {
		name string
		pod  *corev1.Pod
		want []string
	}{
		{"held at the gate", pod("a", 1, finalizers(keyUpdate), state(apps.StatePreparingUpdate), marked), []string{"move a (UpdateDropped) to Normal KruisePodReady=True"}},
		{"released", pod("a", 1, state(apps.StatePreparingUpdate), marked), []string{"move a (UpdateDropped) to Updated KruisePodReady=True"}},
		{"in grace at the gate", pod("a", 1, state(apps.StatePreparingUpdate), marked, out(2, time.Second)),
			[]string{"move a (UpdateDropped) to Updated InPlaceUpdateReady=True KruisePodReady=True"}},
		{"in grace", pod("a", 1, finalizers(keyUpdate), out(2, time.Second)), []string{"move a (Conditions) InPlaceUpdateReady=True"}},
		{"the kubelet works", pod("a", 1, updating(2), marked), []string{"update a (InPlaceUpdate) to Updating revision web-r1"}},
		{"the kubelet is done", pod("a", 1, updating(2), restarted, marked), []string{"move a (UpdateDone) to Updated InPlaceUpdateReady=True KruisePodReady=True"}},
		{"Updated", pod("a", 2, state(apps.StateUpdated)), []string{"move a (PrepareUpdate) to PreparingUpdate KruisePodReady=False"}},
		{"all done", pod("a", 2, finalizers(keyUpdate)), []string{"move a (PrepareUpdate) to PreparingUpdate KruisePodReady=False"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := snap(1, method(InPlaceIfPossible), grace(time.Minute), hooked, with(test.pod))
			toRevision(rev(2))(s)
			toRevision(rev(1))(s)
			expect(t, s, test.want...)
		})
	}
}

// TestNewerRevisionAtEachStep: r3 arrives while the Pod is on its way to r2.
func TestNewerRevisionAtEachStep(t *testing.T) {
	hooked := hooks(lifecycle.Hooks{InPlaceUpdate: gates(false).InPlaceUpdate})
	for _, test := range []struct {
		name string
		pod  *corev1.Pod
		want []string
	}{
		{"held at the gate", pod("a", 1, finalizers(keyUpdate), state(apps.StatePreparingUpdate)), nil},
		{"released", pod("a", 1, state(apps.StatePreparingUpdate)), []string{updatesA(3)}},
		{"the kubelet works", pod("a", 1, updating(2)), []string{"update a (InPlaceUpdate) to Updating revision web-r3"}},
		{"the kubelet is done", pod("a", 1, updating(2), restarted), []string{"move a (UpdateDone) to Updated InPlaceUpdateReady=True"}},
		{"Updated", pod("a", 2, state(apps.StateUpdated)), []string{"move a (PrepareUpdate) to PreparingUpdate"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := snap(1, method(InPlaceIfPossible), hooked, toRevision(rev(2)), toRevision(rev(3)), with(test.pod))
			p := expect(t, s, test.want...)
			if test.name == "Updated" && !slices.Equal(p.Actions[0].AddFinalizers, []string{keyUpdate}) {
				t.Error("the hook's finalizer does not come back with the state, so the gate stands open")
			}
		})
	}
	t.Run("metadata only, the kubelet still works", func(t *testing.T) {
		s := snap(1, method(InPlaceIfPossible), toRevision(rev(2)), with(pod("a", 1, updating(2))))
		toRevision(rev(3, onlyLabel, withImage("app:2")))(s)
		expect(t, s, "update a (InPlaceUpdate) revision web-r3") // stays Updating, out of service
	})
}

// TestLifecycleRemoved: without its hooks a Pod leaves every state.
func TestLifecycleRemoved(t *testing.T) {
	marked := condition(apps.ConditionPodReady, corev1.ConditionFalse, "held by the inPlaceUpdate hook")
	for _, paused := range []bool{false, true} {
		for at, want := range map[apps.LifecycleState]string{
			apps.StatePreparingNormal: "move a (Scheduled) to Normal KruisePodReady=True",
			apps.StatePreparingUpdate: "update a (InPlaceUpdate) to Updating InPlaceUpdateReady=False revision web-r2",
			apps.StateUpdated:         "move a (HookRestored) to Normal KruisePodReady=True",
			apps.StateNormal:          "update a (InPlaceUpdate) to Updating InPlaceUpdateReady=False revision web-r2",
			"Nonsense":                "move a (UnknownState) to Normal KruisePodReady=True",
		} {
			s := snap(1, method(InPlaceIfPossible), toRevision(rev(2)), with(pod("a", 1, state(at), registered, marked)))
			s.Spec.Paused = paused
			switch {
			case at == apps.StatePreparingUpdate && paused:
				want = "move a (UpdateDropped) to Normal KruisePodReady=True"
			case at == apps.StateNormal && paused:
				want = "move a (Conditions) KruisePodReady=True"
			}
			expect(t, s, want)
		}
	}
	expect(t, snap(1, method(InPlaceIfPossible), toRevision(rev(2)), with(pod("a", 1, state(apps.StatePreparingUpdate)))), updatesA(2))
	expect(t, snap(1, with(pod("a", 1, registered, marked, updating(1), restarted))), "move a (UpdateDone) to Normal InPlaceUpdateReady=True KruisePodReady=True")
	expect(t, snap(0, with(pod("a", 1, registered, state(apps.StatePreparingDelete)))), "delete a (PreDeleteReleased)")
}

// TestUnreadableRevision: it never turns an in-place update into a recreate.
func TestUnreadableRevision(t *testing.T) {
	broken := func(s *Snapshot) {
		s.Revisions["r1"] = &revision.Revision{Name: "web-r1", Number: 1}
	}
	for _, m := range []Method{InPlaceIfPossible, InPlaceOnly} {
		expectProblem(t, expect(t, five(method(m), broken)), ProblemRevision, "web-r1")
	}
	expect(t, five(broken), recreates("a"))
	gone := func(s *Snapshot) { delete(s.Revisions, "r1") }
	expect(t, five(method(InPlaceIfPossible), gone), recreates("a"))
	expectProblem(t, expect(t, five(method(InPlaceOnly), gone)), ProblemNotInPlace)
}

// TestRefusedTemplate: it costs no Pod, and is reported.
func TestRefusedTemplate(t *testing.T) {
	for _, m := range []Method{Recreate, InPlaceIfPossible} {
		expectProblem(t, expect(t, five(method(m), refused)), ProblemTemplate)
	}
}

// TestRecreateThroughTheHook: the Pod is marked, held, and replaced when it is deleted.
func TestRecreateThroughTheHook(t *testing.T) {
	s := five(hooks(gates(true)), with(pod("x", 2, registered)), func(s *Snapshot) { s.Pods = []*corev1.Pod{pod("a", 1, registered)} })
	s.Spec.Replicas = 1
	p := expect(t, s, "move a (Recreate) to PreparingDelete KruisePodReady=False")
	if got := p.Actions[0].Labels[apps.LabelSpecifiedDelete]; got == nil || *got != "true" {
		t.Error("the Pod is not marked, so it would be restored")
	}
}

// TestRevisionLabelForms: a Pod with the short form, or with the other label, has the
// revision.
func TestRevisionLabelForms(t *testing.T) {
	expect(t, snap(2, with(
		pod("a", 1, label(apps.LabelRevision, "r1")),
		pod("b", 1, func(p *corev1.Pod) { delete(p.Labels, apps.LabelRevision) }),
	)))
}

// TestChangeIsWorkedOutOnce for all Pods of a revision.
func TestChangeIsWorkedOutOnce(t *testing.T) {
	p := newPass(five(method(InPlaceIfPossible)))
	first, err := p.change(p.pods[0])
	second, _ := p.change(p.pods[1])
	if err != nil || first != second {
		t.Errorf("two changes for one revision: %p %p %v", first, second, err)
	}
	p = newPass(five(method(InPlaceIfPossible), toRevision(rev(2, newEnv))))
	var refusal *inplace.Refusal
	if _, err := p.change(p.pods[0]); !errors.As(err, &refusal) {
		t.Errorf("err = %v, want a refusal", err)
	}
}

// TestWorkedExample runs the example of the package's comment.
func TestWorkedExample(t *testing.T) {
	inPlace := func(name string) string {
		return "update " + name + " (InPlaceUpdate) to Updating InPlaceUpdateReady=False revision web-r2"
	}
	var all []*corev1.Pod
	for i := range 10 {
		all = append(all, pod(fmt.Sprintf("web-%d", i), 1))
	}
	all[3] = pod("web-3", 1, unready)
	s := snap(10, maxUnavailable(2), method(InPlaceIfPossible), toRevision(rev(2)), with(all...))
	expect(t, s, inPlace("web-3"), inPlace("web-0"))
	s.Pods[0], s.Pods[3] = pod("web-0", 2), pod("web-3", 2, unready)
	expect(t, s, inPlace("web-1"))
	s.Pods[1] = pod("web-1", 2, unready)
	expect(t, s)
}
