// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"math/rand"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
)

// rollout is a set that goes from r1 to r2.
type rollout struct {
	name     string
	replicas int
	options  []option
	// edit changes the set at one step of the rollout; may be nil.
	edit func(s *Snapshot)
	// end is how many Pods should have which revision in the end.
	end map[string]int
}

var allNew = map[string]int{"web-r2": 6}

func rollouts() []rollout {
	percents := func(unavailable, surge int) option {
		return func(s *Snapshot) { s.Spec.MaxUnavailable, s.Spec.MaxSurge = percent(unavailable), percent(surge) }
	}
	inPlace, hooked, preDeleteOnly := method(InPlaceIfPossible), hooks(gates(true)), hooks(preDelete())
	return []rollout{
		{"recreate", 6, nil, nil, allNew},
		{"recreate, two at a time", 6, []option{maxUnavailable(2)}, nil, allNew},
		{"recreate, surge only", 6, []option{maxUnavailable(0), maxSurge(1)}, nil, allNew},
		{"recreate, surge and unavailable", 6, []option{maxUnavailable(2), maxSurge(2)}, nil, allNew},
		{"recreate, percentages", 6, []option{percents(25, 25)}, nil, allNew},
		{"recreate, all at once", 6, []option{percents(100, 0)}, nil, allNew},
		{"recreate, hooks", 6, []option{hooked}, nil, allNew},
		{"recreate, hooks, surge", 6, []option{hooked, maxUnavailable(0), maxSurge(2)}, nil, allNew},
		{"recreate, hooks, excluded from replicas", 6, []option{hooked, excludePreparing}, nil, allNew},
		{"recreate, minReadySeconds", 6, []option{func(s *Snapshot) { s.Spec.MinReady = 3 * time.Second }}, nil, allNew},
		{"recreate, few starts a pass", 6, []option{percents(100, 0), starts(2)}, nil, allNew},
		{"recreate, partition", 6, []option{partition(4)}, nil, map[string]int{"web-r1": 4, "web-r2": 2}},
		{"recreate, partition, surge", 6, []option{partition(4), maxUnavailable(0), maxSurge(3)}, nil, map[string]int{"web-r1": 4, "web-r2": 2}},
		{"in place", 6, []option{inPlace}, nil, allNew},
		{"in place, three at a time", 6, []option{inPlace, maxUnavailable(3)}, nil, allNew},
		{"in place, grace", 6, []option{inPlace, grace(5 * time.Second)}, nil, allNew},
		{"in place, hooks", 6, []option{inPlace, hooked}, nil, allNew},
		{"in place, hooks, grace", 6, []option{inPlace, hooked, grace(2 * time.Second)}, nil, allNew},
		{"in place, surge", 6, []option{inPlace, maxUnavailable(0), maxSurge(1)}, nil, allNew},
		{"in place, hooks, surge, partition", 6, []option{inPlace, hooked, maxUnavailable(0), maxSurge(2), partition(2)}, nil, map[string]int{"web-r1": 2, "web-r2": 4}},
		{"in place only", 6, []option{method(InPlaceOnly), hooked, maxUnavailable(2)}, nil, allNew},
		{"in place, metadata only", 6, []option{inPlace, hooked, toRevision(rev(2, onlyLabel))}, nil, allNew},
		{"in place, cpu", 6, []option{inPlace, hooked, withSized, toRevision(rev(2, withCPU("200m")))}, nil, allNew},
		{"in place, cpu, rolled back on the way", 6, []option{inPlace, hooked, maxUnavailable(2), withSized, toRevision(rev(2, withCPU("200m")))},
			func(s *Snapshot) { toRevision(s.Revisions["r1"])(s) }, map[string]int{"web-r1": 6}},
		{"in place, by priority", 6, []option{inPlace, hooked, withRanked, toRevision(rev(2, withBase(2)))}, nil, allNew},
		{"in place, by priority, rolled back on the way", 6, []option{inPlace, maxUnavailable(2), withRanked, toRevision(rev(2, withBase(2)))},
			func(s *Snapshot) { toRevision(s.Revisions["r1"])(s) }, map[string]int{"web-r1": 6}},
		{"in place, by priority, paused on the way", 6, []option{inPlace, hooked, partition(2), withRanked, toRevision(rev(2, withBase(2)))},
			func(s *Snapshot) { s.Spec.Paused = true }, nil},
		{"in place where it cannot be", 6, []option{inPlace, hooked, toRevision(rev(2, newEnv))}, nil, allNew},
		{"on delete", 6, []option{method(OnDelete)}, nil, map[string]int{"web-r1": 6}},
		{"paused", 6, []option{paused, maxSurge(2)}, nil, map[string]int{"web-r1": 6}},
		{"one broken Pod", 6, []option{inPlace, func(s *Snapshot) { unready(s.Pods[3]) }}, nil, allNew},
		{"rolled back on the way", 6, []option{inPlace, hooked, maxUnavailable(2)}, func(s *Snapshot) { toRevision(rev(1))(s) }, map[string]int{"web-r1": 6}},
		{"recreate, rolled back on the way", 6, []option{preDeleteOnly, maxUnavailable(2)}, func(s *Snapshot) { toRevision(rev(1))(s) }, map[string]int{"web-r1": 6}},
		{"a third revision on the way", 6, []option{inPlace, hooked, maxUnavailable(2)}, func(s *Snapshot) { toRevision(rev(3))(s) }, map[string]int{"web-r3": 6}},
		{"lifecycle removed on the way", 6, []option{inPlace, hooked, maxUnavailable(2)}, func(s *Snapshot) { s.Spec.Hooks = lifecycle.Hooks{} }, allNew},
		{"recreate, lifecycle removed on the way", 6, []option{hooked, maxUnavailable(2)}, func(s *Snapshot) { s.Spec.Hooks = lifecycle.Hooks{} }, allNew},
		{"paused on the way", 6, []option{inPlace, hooked, partition(2)}, func(s *Snapshot) { s.Spec.Paused = true }, nil},
		{"scaled in on the way", 6, []option{hooked, maxUnavailable(2)}, func(s *Snapshot) { s.Spec.Replicas = 2 }, map[string]int{"web-r2": 2}},
		{"scaled in and out on the way", 6, []option{inPlace, hooked, maxUnavailable(2)}, func(s *Snapshot) { s.Spec.Replicas = 9 }, map[string]int{"web-r2": 9}},
		{"partition raised on the way", 6, []option{inPlace, hooked, maxUnavailable(1)}, func(s *Snapshot) { s.Spec.Partition = Count{Value: 5} }, nil},
		{"Pods named on the way", 6, []option{hooked, maxUnavailable(1), maxSurge(1)}, func(s *Snapshot) { s.Spec.PodsToDelete = []string{"b", "e"} }, allNew},
	}
}

func (r rollout) snapshot() *Snapshot {
	names := []string{"a", "b", "c", "d", "e", "f"}[:r.replicas]
	var list []*corev1.Pod
	for _, name := range names {
		list = append(list, pod(name, 1, registered))
	}
	return snap(r.replicas, append([]option{toRevision(rev(2)), with(list...), maxUnavailable(1)}, r.options...)...)
}

// check returns what a plan breaks, before it is executed, of what users are promised.
func check(s *Snapshot, p Plan) error {
	taken, made := 0, 0
	for _, a := range p.Actions {
		made += one(a.Verb == Create)
		if takesDown(a) {
			var v podState
			s.read(&v, newPodInfo(a.Pod))
			taken += one(v.available && v.active())
		}
	}
	if left := tally(s).Available - taken; taken > 0 && left < s.Spec.Replicas-s.Spec.maxUnavailable() {
		return fmt.Errorf("%d Pods would serve, %d shall: %v", left, s.Spec.Replicas-s.Spec.maxUnavailable(), describe(p))
	}
	if c := tally(s); made > 0 && c.Replicas+made > s.Spec.Replicas+s.Spec.maxSurge() && !s.ExcludePreparingDelete {
		return fmt.Errorf("%d Pods, and %d more: %v", c.Replicas, made, describe(p))
	}
	return nil
}

func takesDown(a Action) bool {
	switch a.Verb {
	case Delete:
		return true
	case Update:
		return a.Change.Drains()
	}
	return a.Reason == ReasonPrepareUpdate || a.Reason == ReasonStartInPlace || a.LeavesService()
}

// run leads a rollout to its end, in name order or in a random one.
func run(t *testing.T, r rollout, random *rand.Rand) {
	t.Helper()
	s := r.snapshot()
	w := &cluster{s: s}
	editAt := 3
	if random != nil {
		editAt = random.Intn(12)
	}
	for step := range 2000 {
		if step == editAt && r.edit != nil {
			r.edit(s)
		}
		p := decide(t, s)
		if err := check(s, p); err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		w.carryOut(p)
		moved := w.turn(random) || len(p.Actions) > 0
		s.Now = s.Now.Add(time.Second)
		if !moved && p.RequeueAt.IsZero() && step > editAt {
			end(t, r, s)
			return
		}
	}
	t.Fatalf("no end; the last plan: %v", describe(Make(s)))
}

// end checks the final state of a rollout.
func end(t *testing.T, r rollout, s *Snapshot) {
	t.Helper()
	got := map[string]int{}
	for _, p := range s.Pods {
		got[podRevision(p)]++
	}
	if r.end != nil && fmt.Sprint(got) != fmt.Sprint(r.end) {
		t.Errorf("ended with %v, want %v", got, r.end)
	}
	c := tally(s)
	if c.Available != s.Spec.Replicas || c.Replicas != s.Spec.Replicas {
		t.Errorf("ended with %+v of %d replicas", c, s.Spec.Replicas)
	}
}

// Test_RollingUpdateSequences leads every kind of rollout to its end: in a fixed order,
// and in 100 random orders of kubelets and hook operators.
func Test_RollingUpdateSequences(t *testing.T) {
	for _, r := range rollouts() {
		t.Run(r.name, func(t *testing.T) {
			run(t, r, nil)
			for seed := range int64(100) {
				if !t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { run(t, r, rand.New(rand.NewSource(seed))) }) {
					return
				}
			}
		})
	}
}
