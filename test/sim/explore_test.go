// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"flag"
	"maps"
	"slices"
	"testing"
)

var deep = flag.Bool("deep", false, "TestExplore visits the large models too, and TestMutantsAreFound all of its mutants")
var states = flag.Int("states", 1000000, "how many states TestExplore visits of each model at most")

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

// TestMutantsAreFound: an explorer that finds nothing proves something only if it finds
// known bugs.
func TestMutantsAreFound(t *testing.T) {
	all := mutants(t, "mutants.txt")
	maps.Copy(all, mutants(t, "mutants-explored.txt"))
	graph := []string{ruleStuck, ruleWakes}
	for _, model := range load[[]Model]("models/small.yaml") {
		for _, name := range model.Finds {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				m, broken := all[name], model
				broken.Change = m.sabotage
				e := Explore(broken, *states)
				t.Log(e)
				if e.Violation == nil || !slices.Contains(append(graph, m.caught...), e.Violation.Rule) {
					t.Errorf("the explorer misses it in %q", model.Name)
				}
			})
		}
	}
}
