// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"flag"
	"maps"
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
	worlds := load[[]Model]("models/small.yaml")
	if *deep {
		worlds = append(worlds, load[[]Model]("models/large.yaml")...)
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

// graphMutants have bugs that only all states together can show.
var graphMutants = map[string]mutant{
	"goes to and fro": {after: func(s *plan.Snapshot, p *plan.Plan) {
		label(s, p, func(pod *corev1.Pod) bool {
			return model.State(pod) == apps.StatePreparingUpdate && pod.Labels["hook/flag"] == ""
		})
	}},
	"acts on its own status": {before: func(p *Process, s *plan.Snapshot) {
		if p.pass.set.Status.ObservedGeneration > 0 {
			s.Spec.Replicas++
		}
	}},
	"acts on a change without an event": {after: func(s *plan.Snapshot, p *plan.Plan) {
		label(s, p, func(pod *corev1.Pod) bool { return pod.Annotations["other/note"] != "" })
	}},
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
	all := simMutants(t)
	maps.Copy(all, mutants(t, "mutants-explored.yaml", graphMutants))
	graph := []string{ruleStuck, ruleWakes}
	for _, model := range load[[]Model]("models/small.yaml") {
		for _, name := range model.Finds {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				m, broken := all[name], model
				broken.Change = m.sabotage
				e := Explore(broken, *states)
				t.Log(e)
				if e.Violation == nil || !slices.Contains(append(graph, m.Caught...), e.Violation.Rule) {
					t.Errorf("the explorer misses it in %q", model.Name)
				}
			})
		}
	}
}
