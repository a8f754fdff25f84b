// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
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
	again := x.runPass(begin(r.end))
	if len(again.chain) > 0 {
		x.violate(&Violation{Rule: ruleNothing, What: fmt.Sprintf("the second pass at the goal makes %d requests", len(again.chain)), At: epoch}, id, n.depth+1)
	}
}

// checkGraph checks what only all states together can show.
func (x *explorer) checkGraph() {
	for _, check := range []func(){x.checkStuck, x.checkEnds, x.checkWakes, x.checkEvents} {
		if check(); x.found != nil {
			return
		}
	}
}

// shallowest notes a violation in the state, of several, that is reached first.
func (x *explorer) shallowest(bad func(int32) bool, rule string, what func(int32) string) {
	worst := int32(noOp)
	for id := range int32(len(x.nodes)) { // memory runs out long before
		if bad(id) && (worst == noOp || x.nodes[id].depth < x.nodes[worst].depth) {
			worst = id
		}
	}
	if worst == noOp {
		return
	}
	x.violate(&Violation{Rule: rule, What: what(worst), At: epoch}, worst, x.nodes[worst].depth)
}

// links are the fair transitions, by the state that they lead from or to.
type links struct {
	first []int32
	to    []int32
}

func (x *explorer) links(from, to func(*edge) int32) links {
	l := links{first: make([]int32, len(x.nodes)+1)}
	for i := range x.edges {
		if x.edges[i].actor.fair() {
			l.first[from(&x.edges[i])+1]++
		}
	}
	for i := range x.nodes {
		l.first[i+1] += l.first[i]
	}
	l.to = make([]int32, l.first[len(x.nodes)])
	next := slices.Clone(l.first)
	for i := range x.edges {
		if x.edges[i].actor.fair() {
			at := from(&x.edges[i])
			l.to[next[at]] = to(&x.edges[i])
			next[at]++
		}
	}
	return l
}

func (l *links) of(id int32) []int32 { return l.to[l.first[id]:l.first[id+1]] }

func fromOf(e *edge) int32 { return e.from }
func toOf(e *edge) int32   { return e.to }

// checkStuck goes backwards from the goals along the transitions of passes, kubelets,
// the operator and time: it must reach every state.
func (x *explorer) checkStuck() {
	before := x.links(toOf, fromOf)
	reaches := make([]bool, len(x.nodes))
	var queue []int32
	for i := range x.nodes {
		if x.nodes[i].goal {
			reaches[i] = true
			queue = append(queue, int32(i)) // memory runs out long before
		}
	}
	for len(queue) > 0 {
		id := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		for _, from := range before.of(id) {
			if !reaches[from] {
				reaches[from] = true
				queue = append(queue, from)
			}
		}
	}
	x.shallowest(func(id int32) bool { return !reaches[id] }, ruleStuck, func(id int32) string {
		c := x.decode(x.nodes[id].key)
		x.load(c)
		return "from here it cannot; " + x.sim.missing() + "\n    " + strings.Join(x.picture(c), "\n    ")
	})
}

// checkEnds looks for a cycle in the transitions of passes, kubelets, the operator and
// time: such a cycle writes forever.
func (x *explorer) checkEnds() {
	after, before := x.links(fromOf, toOf), x.links(toOf, fromOf)
	open := make([]int32, len(x.nodes))
	var queue []int32
	for id := range int32(len(x.nodes)) { // memory runs out long before
		if open[id] = int32(len(before.of(id))); open[id] == 0 { // memory runs out long before
			queue = append(queue, id)
		}
	}
	for len(queue) > 0 {
		id := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		for _, to := range after.of(id) {
			if open[to]--; open[to] == 0 {
				queue = append(queue, to)
			}
		}
	}
	x.shallowest(func(id int32) bool { return open[id] > 0 }, ruleEnds, func(id int32) string {
		return "what follows goes round: " + strings.Join(x.round(id, &before, open), "; ")
	})
}

// round describes a cycle near a state.
func (x *explorer) round(id int32, before *links, open []int32) []string {
	seen := map[int32]int{}
	var way []int32
	for {
		if at, ok := seen[id]; ok {
			way = way[at:]
			break
		}
		seen[id] = len(way)
		way = append(way, id)
		for _, from := range before.of(id) {
			if open[from] > 0 {
				id = from
				break
			}
		}
	}
	var out []string
	for i := len(way) - 1; i >= 0; i-- {
		out = append(out, x.step(way[i], way[(i+len(way)-1)%len(way)])...)
	}
	return out
}

// checkWakes: where only time leads on, the pass has to request a later one.
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
		if e.noEvent && e.actor != byTime && from.quiet && to.idle && !to.quiet {
			x.violate(&Violation{Rule: ruleEvents, What: "the last step requires a pass, and causes no event", At: epoch}, e.to, to.depth)
		}
	}
}

// decides starts the lines that describe the decisions of a pass.
const decides = "decides to "

// path describes the path to the violation.
func (x *explorer) path() []string {
	var way []int32
	for id := x.foundAt; id >= 0; id = x.nodes[id].parent {
		way = append(way, id)
	}
	slices.Reverse(way)
	out := x.picture(x.decode(x.nodes[way[0]].key))
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
	c := x.decode(x.nodes[x.foundAt].key)
	if c.pass == nil {
		c = begin(c)
	}
	x.describing = true
	defer func() { x.describing = false }()
	r := x.runPass(c)
	return linesOf("usher", r.lines)
}

func linesOf(who string, lines []string) []string {
	out := make([]string, len(lines))
	for i, line := range lines {
		out[i] = fmt.Sprintf("%-9s %s", who, line)
	}
	return out
}

// step describes how one state leads to another.
func (x *explorer) step(from, to int32) []string {
	x.describing = true
	defer func() { x.describing = false }()
	c := x.decode(x.nodes[from].key)
	goal := x.nodes[to].key
	if c.pass == nil && x.encode(begin(c)) == goal {
		return linesOf("usher", []string{"begins a pass"})
	}
	for _, h := range x.transitions(c) {
		if x.encode(h.next) == goal {
			return linesOf(h.actor.String(), h.lines)
		}
	}
	if x.nodes[from].op == to {
		r := x.runPass(c)
		lines := r.lines
		if len(c.pass.results) > 0 {
			lines = slices.DeleteFunc(lines, func(line string) bool { return strings.HasPrefix(line, decides) })
		}
		if x.nodes[to].idle {
			lines = append(lines, "ends the pass")
		}
		return linesOf("usher", x.untilFirst(lines, len(r.chain) > 1))
	}
	if c.pass != nil && x.nodes[to].idle {
		return linesOf("usher", []string{"dies"})
	}
	return linesOf("usher", []string{"begins another pass on the caches of the first"})
}

// untilFirst keeps the lines of a pass that belong to its first request.
func (x *explorer) untilFirst(lines []string, more bool) []string {
	if !more {
		return lines
	}
	for i, line := range lines {
		if !strings.HasPrefix(line, decides) {
			return lines[:i+1]
		}
	}
	return lines
}

// String names the actor.
func (a actor) String() string {
	return [...]string{"usher", "kubelet", "operator", "collector", "time", "user", "fate", "crash"}[a]
}

// picture describes a state.
func (x *explorer) picture(c *cluster) []string {
	var out []string
	if set := setOf(c.objects); set != nil {
		out = append(out, fmt.Sprintf("CloneSet %s: %s", set.Name, describeSpec(set)))
	}
	for _, object := range model.Sorted(c.objects[model.Pods]) {
		pod, _ := object.(*corev1.Pod)
		facts := []string{string(model.State(pod)), "of " + hash(pod.Labels[apps.LabelRevision]), imagesOf(pod)}
		for _, kind := range []corev1.PodConditionType{corev1.PodReady, apps.ConditionInPlaceUpdateReady, apps.ConditionPodReady} {
			if status := model.Condition(pod, kind).Status; status != "" {
				facts = append(facts, fmt.Sprintf("%s=%s", kind, status))
			}
		}
		if pod.DeletionTimestamp != nil {
			facts = append(facts, "being deleted")
		}
		for _, key := range sortedKeys(pod.Labels, nil) {
			if strings.HasPrefix(key, hookPrefix) {
				facts = append(facts, key+"="+pod.Labels[key])
			}
		}
		out = append(out, fmt.Sprintf("Pod %s: %s %v, runs %v", pod.Name, strings.Join(facts, ", "), pod.Finalizers, runOf(c.running, pod).Containers))
	}
	return out
}
