// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/model"
)

// The rules for all states together.
const (
	ruleConverge = "it converges"
	ruleSame     = "the same answers lead to the same requests"
	ruleNothing  = "a pass at the goal does nothing"
	ruleStuck    = "from every state the goal can be reached without the user"
	ruleEnds     = "passes come to an end"
	ruleWakes    = "where only time leads on, a pass has requested a later one"
	ruleEvents   = "every change that requires a pass causes an event"
)

// checkQuiet checks a state in which a pass wrote nothing but the status.
func (x *explorer) checkQuiet(id int32, r *passRun) {
	n := &x.nodes[id]
	x.load(r.end)
	n.goal = x.sim.missing() == ""
	if !n.goal {
		return
	}
	again := x.runPass(r.end.begin())
	if requests := len(again.chain) - again.tried; requests > 0 {
		x.violate(&Violation{Rule: ruleNothing, What: fmt.Sprintf("the second pass at the goal makes %d requests", requests), At: epoch}, id, n.depth+1)
	}
}

// checkGraph checks the rules that only all states together can break.
func (x *explorer) checkGraph() {
	for _, check := range []func(){x.checkStuck, x.checkEnds, x.checkWakes, x.checkEvents} {
		if check(); x.found != nil {
			return
		}
	}
}

// shallowest records a violation in the nearest of several states.
func (x *explorer) shallowest(bad func(int32) bool, rule string, what func(int32) string) {
	if all := x.those(bad); len(all) > 0 {
		worst := slices.MinFunc(all, func(a, b int32) int { return cmp.Compare(x.nodes[a].depth, x.nodes[b].depth) })
		x.violate(&Violation{Rule: rule, What: what(worst), At: epoch}, worst, x.nodes[worst].depth)
	}
}

// links returns the fair transitions: for each state the states that it leads to or, backwards, the
// states that lead to it.
func (x *explorer) links(backwards bool) [][]int32 {
	out := make([][]int32, len(x.nodes))
	for i := range x.edges {
		from, to := x.edges[i].from, x.edges[i].to
		if backwards {
			from, to = to, from
		}
		if x.edges[i].actor.fair() {
			out[from] = append(out[from], to)
		}
	}
	return out
}

// spread visits states along links, and continues from those for which enter returns true.
func spread(queue []int32, links [][]int32, enter func(int32) bool) {
	for len(queue) > 0 {
		id := queue[len(queue)-1]
		queue = append(queue[:len(queue)-1], list.Only(links[id], enter)...)
	}
}

// those lists the states that satisfy has.
func (x *explorer) those(has func(int32) bool) (out []int32) {
	for id := range int32(len(x.nodes)) { // memory runs out long before
		if has(id) {
			out = append(out, id)
		}
	}
	return out
}

// checkStuck goes backwards from the goals along the transitions of passes, kubelets,
// the operator and time: it must reach every state.
func (x *explorer) checkStuck() {
	stuck := make([]bool, len(x.nodes))
	for i := range x.nodes {
		stuck[i] = !x.nodes[i].goal
	}
	spread(x.those(func(id int32) bool { return !stuck[id] }), x.links(true), func(id int32) bool {
		was := stuck[id]
		stuck[id] = false
		return was
	})
	x.shallowest(func(id int32) bool { return stuck[id] }, ruleStuck, func(id int32) string {
		c := x.nodes[id].state
		x.load(c)
		return "from here it cannot; " + x.sim.missing() + "\n    " + strings.Join(x.picture(c), "\n    ")
	})
}

// checkEnds looks for a cycle in the transitions of passes, kubelets, the operator and
// time: such a cycle writes forever.
func (x *explorer) checkEnds() {
	before, open := x.links(true), make([]int, len(x.nodes))
	for id := range before {
		open[id] = len(before[id])
	}
	spread(x.those(func(id int32) bool { return open[id] == 0 }), x.links(false), func(id int32) bool {
		open[id]--
		return open[id] == 0
	})
	x.shallowest(func(id int32) bool { return open[id] > 0 }, ruleEnds, func(id int32) string {
		return "what follows goes round: " + strings.Join(x.round(id, before, open), "; ")
	})
}

// round describes a cycle near a state.
func (x *explorer) round(id int32, before [][]int32, open []int) []string {
	var way []int32
	for !slices.Contains(way, id) {
		way = append(way, id)
		from := slices.IndexFunc(before[id], func(from int32) bool { return open[from] > 0 })
		id = before[id][from]
	}
	way = way[slices.Index(way, id):]
	var out []string
	for i := len(way) - 1; i >= 0; i-- {
		out = append(out, x.step(way[i], way[(i+len(way)-1)%len(way)])...)
	}
	return out
}

// checkWakes: if only time leads on from a state, the pass has to request a later one.
func (x *explorer) checkWakes() {
	others, time := make([]bool, len(x.nodes)), make([]bool, len(x.nodes))
	for i := range x.edges {
		e := &x.edges[i]
		switch {
		case e.actor == byTime:
			time[e.from] = !x.nodes[e.to].quiet
		case e.actor.fair():
			others[e.from] = true
		}
	}
	x.shallowest(func(id int32) bool {
		n := &x.nodes[id]
		return n.quiet && !n.asks && time[id] && !others[id]
	}, ruleWakes, func(int32) string { return "a pass does nothing, and does not say when another one is due" })
}

// checkEvents: a change without an event makes no difference to the controller.
func (x *explorer) checkEvents() {
	for i := range x.edges {
		e := &x.edges[i]
		from, to := &x.nodes[e.from], &x.nodes[e.to]
		if e.noEvent && e.actor != byTime && from.quiet && to.state.pass == nil && !to.quiet {
			x.violate(&Violation{Rule: ruleEvents, What: "the last step requires a pass, and causes no event", At: epoch}, e.to, to.depth)
		}
	}
}

// path describes the path to the violation.
func (x *explorer) path() []string {
	var way []int32
	for id := x.foundAt; id >= 0; id = x.nodes[id].parent {
		way = append(way, id)
	}
	slices.Reverse(way)
	out := x.picture(x.nodes[way[0]].state)
	for i := range way[1:] {
		out = append(out, x.step(way[i], way[i+1])...)
	}
	if x.foundWith > x.nodes[x.foundAt].depth {
		out = append(out, x.lastStep()...)
	}
	return out
}

// lastStep describes the step that broke a rule.
func (x *explorer) lastStep() []string {
	c := x.nodes[x.foundAt].state
	if c.pass == nil {
		c = c.begin()
	}
	x.runPass(c)
	return x.sim.World.story.text()
}

// step describes how one state leads to another.
func (x *explorer) step(from, to int32) []string {
	c, goal := x.nodes[from].state, &x.nodes[to]
	if c.pass == nil && x.is(c.begin(), goal.key) {
		return []string{"usher begins a pass"}
	}
	for _, h := range x.transitions(c) {
		if x.is(h.next, goal.key) {
			return h.story.text()
		}
	}
	switch {
	case x.nodes[from].op == to:
		r := x.runPass(c)
		story := x.sim.World.story
		if len(r.chain) > 1 {
			story.lines = story.lines[:r.first]
		}
		lines := story.text()
		if goal.state.pass == nil {
			lines = append(lines, "usher ends the pass")
		}
		return lines
	case c.pass != nil && goal.state.pass == nil:
		return []string{"usher dies"}
	}
	return []string{"usher begins another pass on the caches of the first"}
}

// picture describes a state.
func (x *explorer) picture(c *cluster) []string {
	var out []string
	if set := setOf(c.objects); set != nil {
		out = append(out, fmt.Sprintf("CloneSet %s: %s", set.Name, strings.Join(changes(&apps.CloneSet{}, set), ", ")))
	}
	for _, pod := range model.List[*corev1.Pod](c.objects) {
		out = append(out, fmt.Sprintf("Pod %s: %s, runs %v",
			pod.Name, strings.Join(podChanges(&corev1.Pod{}, pod), ", "), runOf(c.running, pod).Containers))
	}
	return out
}
