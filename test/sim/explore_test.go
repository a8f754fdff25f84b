// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"flag"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/test/model"
)

var (
	deep   = flag.Bool("deep", false, "TestExplore visits the large models too, and TestMutantsAreFound all of its mutants")
	states = flag.Int("states", 1000000, "how many states TestExplore visits of each model at most")
)

// TestExplore visits every state of small worlds, for every order in which the
// controller, the kubelets, the hook operator and the user act, and for every point at
// which the controller can crash.
func TestExplore(t *testing.T) {
	worlds := smallModels()
	if *deep {
		worlds = append(worlds, largeModels()...)
	}
	for _, model := range worlds {
		t.Run(model.Name, func(t *testing.T) {
			t.Parallel()
			e := Explore(model, *states)
			t.Log(e)
			switch {
			case e.Violation != nil:
				t.Fail()
			case !e.Complete:
				t.Errorf("not all states were visited: make -states larger than %d", *states)
			case e.Goals == 0:
				t.Error("the set is nowhere at its goal: the model explores nothing")
			}
		})
	}
}

// found maps each mutant to a small model that finds it.
var found = []struct{ mutant, model string }{
	{"ignores the surge limit", "roll back, label hooks"},
	{"drops the drain", "roll back, label hooks"},
	{"advances the current revision early", "roll back, label hooks"},
	{"writes without preconditions", "roll back, label hooks"},
	{"ignores the inPlaceUpdate hook", "roll back, label hooks"},
	{"believes an update done at once", "roll back, label hooks"},
	{"leaves the gate open before a second update", "roll back, label hooks"},
	{"never leaves Updated", "roll back, label hooks"},
	{"never brings a drained Pod back", "lifecycle added mid-way"},
	{"never lifts the mark", "update two with marked hooks"},
	{"ignores maxUnavailable", "update two with marked hooks"},
	{"never wakes up by itself", "roll back with a grace period"},
	{"ignores the grace period", "roll back with a grace period"},
	{"ignores minReadySeconds", "minReadySeconds"},
	{"ignores the pause", "pause and go on"},
	{"overruns the partition", "canary by partition"},
	{"makes every new Pod of the update revision", "scale out with a partition"},
	{"restores Pods without their hooks", "scale in and take it back"},
	{"never restores", "scale in and take it back"},
	{"deletes held Pods", "a Pod is labelled for deletion"},
	{"ignores the preDelete hook", "a Pod is labelled for deletion"},
	{"updates what is to be updated by hand", "OnDelete"},
	{"never cleans up", "a Pod is evicted"},
	{"forgets what it wrote", "stale caches, scale in and out"},
	{"goes to and fro", "roll back, label hooks"},
	{"acts on a change without an event", "somebody annotates a Pod"},
	{"acts on its own status", "metadata only"},
}

// graphMutants have bugs that only all states together can show.
func graphMutants() []mutant {
	return []mutant{
		{name: "goes to and fro", caught: []string{ruleEnds}, after: func(s *plan.Snapshot, p *plan.Plan) {
			label(s, p, func(pod *corev1.Pod) bool {
				return model.State(pod) == apps.StatePreparingUpdate && pod.Labels["hook/flag"] == ""
			})
		}},
		{name: "acts on its own status", caught: []string{ruleNothing}, before: func(p *Process, s *plan.Snapshot) {
			if p.pass.set.Status.ObservedGeneration > 0 {
				s.Spec.Replicas++
			}
		}},
		{name: "acts on a change without an event", caught: []string{ruleEvents}, after: func(s *plan.Snapshot, p *plan.Plan) {
			label(s, p, func(pod *corev1.Pod) bool { return pod.Annotations["other/note"] != "" })
		}},
	}
}

// label adds a label to Pods that need nothing else, or removes it.
func label(s *plan.Snapshot, p *plan.Plan, wanted func(*corev1.Pod) bool) {
	for _, pod := range s.Pods {
		taken := slices.ContainsFunc(p.Actions, func(a plan.Action) bool { return a.Pod == pod })
		_, has := pod.Labels["hook/flag"]
		if taken || pod.DeletionTimestamp != nil || wanted(pod) == has {
			continue
		}
		a := plan.Action{Verb: plan.Move, Reason: "Flag", Pod: pod, Labels: map[string]*string{"hook/flag": nil}}
		if yes := "yes"; wanted(pod) {
			a.Labels["hook/flag"] = &yes
		}
		p.Actions = append(p.Actions, a)
	}
}

// TestMutantsAreFound: an explorer that finds nothing proves something only if it finds
// known bugs.
func TestMutantsAreFound(t *testing.T) {
	all := append(mutants(), graphMutants()...)
	graph := []string{ruleStuck, ruleWakes}
	for _, f := range found {
		t.Run(f.mutant, func(t *testing.T) {
			t.Parallel()
			m := all[slices.IndexFunc(all, func(m mutant) bool { return m.name == f.mutant })]
			worlds := smallModels()
			model := worlds[slices.IndexFunc(worlds, func(w Model) bool { return w.Name == f.model })]
			model.Change = m.sabotage
			e := Explore(model, *states)
			t.Log(e)
			if e.Violation == nil || !slices.Contains(append(graph, m.caught...), e.Violation.Rule) {
				t.Errorf("the explorer misses it in %q", model.Name)
			}
		})
	}
}
