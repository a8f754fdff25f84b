// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/test/model"
)

// Model is a small world; an exploration visits all its states.
type Model struct {
	Name string
	// Set describes the set, in words.
	Set string
	// Fresh starts with the CloneSet alone; otherwise its Pods are already in service.
	Fresh bool
	// Edits are made in their order, at any time.
	Edits []string
	// Faults happen once each, in any order, at any time.
	Faults []string
	// Interfere limits how many actions of others happen during one pass, unless it is Unbounded.
	// Default: 1.
	Interfere int
	Unbounded bool
	// Slow makes the kubelet read, stop, start and report one after the other.
	Slow bool
	// Timed lets time pass between passes.
	Timed bool
	// Stale makes a process run a second pass on caches that are as old as the beginning of the first
	// one.
	Stale bool
	// Lossy reports whether the user may make Pods end without their hooks.
	Lossy bool
	// NamesFirst gives new Pods names that sort before the existing ones, not after
	// them.
	NamesFirst bool
	// Reverse reverses the actions of a pass: the real controller runs them in
	// parallel.
	Reverse bool
	// Cold makes the node lack the images that no Pod has run.
	Cold bool
	// Finds names mutants that this model finds.
	Finds []string
	// Change alters the controller.
	Change func(*Config) `json:"-"`
}

// Exploration is the result of exploring a model.
type Exploration struct {
	// States counts all states, Idle those without a pass in progress, and Goals those in
	// which the last edit is fulfilled and no pass does anything.
	States, Idle, Goals int
	// Transitions counts the transitions from one state to another.
	Transitions int
	// Violation is the broken rule; nil if there is none.
	Violation *Violation
	// Path leads to the violation, one line per step.
	Path []string
	// Complete reports whether every state was visited, none dropped for their number.
	Complete bool
}

// noOp marks a transition that has not been followed yet.
const noOp = -1

type node struct {
	key    string
	state  *cluster
	parent int32
	depth  int32
	// op is the state that the next request of the pass leads to.
	op   int32
	done bool
	// quiet reports whether a pass does nothing, goal that nothing is missing either.
	quiet, goal bool
	// asks reports whether a pass that did nothing requests a later one.
	asks bool
}

type edge struct {
	from, to int32
	actor    actor
	// noEvent reports whether the controller gets no event for it.
	noEvent bool
}

// explorer visits the states of a model.
type explorer struct {
	*interner
	model  Model
	sim    *Simulation
	server *model.Server
	acting *Process
	uid    types.UID // of the CloneSet
	// cold is the node at first, in a model that is Cold.
	cold *corev1.Node

	// state is the current state, whose objects are on the server; commits are the commits since it was
	// loaded.
	state   cluster
	commits []*model.Commit

	nodes   []node
	index   map[string]int32
	edges   []edge
	buckets [][]int32
	// found is the violation with the shortest path; that ends at node.
	found     *Violation
	foundAt   int32
	foundWith int32
}

func newExplorer(m Model) *explorer {
	config := Calm()
	x := &explorer{interner: newInterner(), model: m, index: map[string]int32{}}
	if m.Cold {
		config.Nodes.Pull = time.Second
		x.cold = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(0), Annotations: map[string]string{}}}
	}
	if m.Change != nil {
		m.Change(&config)
	}
	x.sim = empty(config, client.ObjectKeyFromObject(NewSet(m.Set)))
	x.sim.closing = m.Cold // no pull Pod is refused
	if m.NamesFirst {
		x.offset = downFrom
	}
	x.server, x.sim.unprotected = x.sim.Server, m.Lossy
	x.server.Observers = []func(*model.Commit){x.committed}
	return x
}

// committed receives every commit.
func (x *explorer) committed(c *model.Commit) {
	x.commits = append(x.commits, c)
	x.sim.World.record(c)
	if x.acting != nil && c.Actor == x.acting.name {
		x.sim.judge(x.acting, c)
		x.judgeEnd(c)
	}
}

// judgeEnd: when a pass removes the finalizer of the deleted set, its preDelete hook holds no Pod that
// the collector would delete.
func (x *explorer) judgeEnd(c *model.Commit) {
	set, ok := c.Old.(*apps.CloneSet)
	if !ok || c.New != nil {
		return
	}
	hook := lifecycle.FromSpec(set.Spec.Lifecycle).PreDelete
	for _, pod := range model.List[*corev1.Pod](x.server.Objects) {
		if pod.DeletionTimestamp == nil && model.OwnerOf(pod) == string(set.UID) && hook.Holds(pod.Labels, pod.Finalizers) {
			x.sim.World.fail(ruleCollected, "the set goes, and the preDelete hook holds Pod %s", pod.Name)
		}
	}
}

// load makes a state current.
func (x *explorer) load(c *cluster) {
	x.state = *c
	x.state.running = maps.Clone(c.running)
	x.server.Objects = c.objects.Clone()
	x.server.Version = 100
	x.server.Log = map[model.Kind][]*model.Commit{}
	x.commits, x.acting = nil, nil
	x.sim.edited = 1 + int64(c.edits)
	x.sim.World.story.lines, x.sim.World.failure, x.sim.templates = nil, nil, nil
	x.sim.nodes.pods = map[types.UID]*running{}
	for uid, run := range c.running {
		x.sim.nodes.pods[uid] = &running{Run: *run}
	}
	if c.pass != nil {
		for _, r := range c.pass.results {
			x.remember(r)
		}
	}
	x.warm()
	x.refuse()
}

// refuses reports whether the API server may refuse something in this model.
func (m *Model) refuses() bool {
	return slices.ContainsFunc(m.Edits, func(edit string) bool { return refusedBy(edit) != "" })
}

// refusedBy returns the image that an edit makes the API server refuse; "" if there is none.
func refusedBy(edit string) string {
	word, image, _ := strings.Cut(edit, " ")
	if word == "refuse" || word == "invalid" {
		return image
	}
	return ""
}

// refuse makes the API server refuse the image that it refuses in the present state.
func (x *explorer) refuse() {
	x.sim.refusal = refusal{}
	for i, edit := range x.model.Edits[:min(int(x.state.edits), len(x.model.Edits))] {
		if image := refusedBy(edit); image != "" {
			known := slices.Contains(x.model.Edits[:i], "image "+image)
			x.sim.refusal = refusal{image: image, policy: strings.HasPrefix(edit, "refuse "), fresh: !known}
		}
	}
}

// now returns the state that the current one has become, with a pass in progress or without.
func (x *explorer) now(pass *passInProgress) *cluster {
	out := x.state.during(pass)
	out.objects, out.running = x.server.Objects.Clone(), maps.Clone(x.state.running)
	return out
}

// remember adds a write of the current pass to the server's log.
func (x *explorer) remember(r *result) {
	pod, ok := r.written.(*corev1.Pod)
	if !ok {
		return
	}
	c := &model.Commit{At: epoch, Actor: actorUsher, Kind: model.Pods, Old: pod, New: pod}
	if r.gone {
		c.New = nil
	}
	x.server.Log[model.Pods] = append(x.server.Log[model.Pods], c)
}

// number makes the next object get the UID that belongs to its name, if it is a Pod.
func (x *explorer) number(kind model.Kind, name string) {
	x.server.UIDs = 5000
	switch end := name[max(len(name)-2, 0):]; {
	case kind == model.Pods && strings.Contains(name, "-pull-"):
		x.server.UIDs = 7000 + 16*int(end[0]) + int(end[1])
	case kind == model.Pods:
		x.server.UIDs = numberOf(name) - 1
	}
}

// Explore visits every state of a model, up to a limit.
func Explore(m Model, most int) Exploration {
	x := newExplorer(m)
	start, v := x.start()
	if v != nil {
		return Exploration{Violation: v, Path: []string{"(while the set was brought up)"}}
	}
	x.add(start, -1, 0)
	complete := x.visit(most)
	out := Exploration{
		States: len(x.nodes), Transitions: len(x.edges), Complete: complete,
		Idle:  len(x.those(func(id int32) bool { return x.nodes[id].state.pass == nil })),
		Goals: len(x.those(func(id int32) bool { return x.nodes[id].goal })),
	}
	if x.found == nil && complete {
		x.checkGraph()
	}
	if out.Violation = x.found; x.found != nil {
		out.Path = x.path()
	}
	return out
}

// start returns the first state of the exploration.
func (x *explorer) start() (*cluster, *Violation) {
	x.server.UIDs = 9000
	x.uid = must(x.server.Create("user", NewSet(x.model.Set), false)).GetUID()
	if x.cold != nil {
		must(x.server.Create("kubelet", x.cold, false))
	}
	c := x.now(nil)
	for range 1000 {
		key, state := x.canonical(c)
		if x.model.Fresh {
			return state, nil
		}
		next, v := x.advance(key, state)
		if v != nil || next == nil {
			return state, v
		}
		c = next
	}
	return nil, &Violation{Rule: ruleConverge, What: "the set is not brought up in 1000 steps", At: epoch}
}

// advance takes one step of a settling cluster; nil if there is none.
func (x *explorer) advance(key string, c *cluster) (*cluster, *Violation) {
	r := x.runPass(c.begin())
	if r.end == nil {
		return nil, x.sim.World.failure
	}
	if !x.is(r.end, key) {
		return r.end, nil
	}
	for _, h := range x.transitions(c) {
		if h.actor.fair() && !x.is(h.next, key) {
			return h.next, nil
		}
	}
	return nil, nil
}

// is reports whether a state is the one with the key.
func (x *explorer) is(c *cluster, key string) bool {
	its, _ := x.canonical(c)
	return its == key
}

// visit visits the states by their distance from the first one.
func (x *explorer) visit(most int) bool {
	for depth := 0; depth < len(x.buckets); depth++ {
		for i := 0; i < len(x.buckets[depth]); i++ {
			id := x.buckets[depth][i]
			if n := &x.nodes[id]; n.done || int(n.depth) != depth {
				continue
			}
			if x.found != nil && depth+1 >= int(x.foundWith) {
				return true
			}
			if len(x.nodes) > most {
				return false
			}
			x.expand(id)
		}
		x.buckets[depth] = nil
	}
	return true
}

// add finds a state, or adds it as new, reached from another one.
func (x *explorer) add(c *cluster, parent, depth int32) int32 {
	key, state := x.canonical(c)
	id, ok := x.index[key]
	if !ok {
		id = int32(len(x.nodes)) // memory runs out long before
		x.index[key] = id
		x.nodes = append(x.nodes, node{key: key, state: state, parent: parent, depth: depth, op: noOp})
	} else if n := &x.nodes[id]; n.done || n.depth <= depth {
		return id
	} else {
		n.parent, n.depth = parent, depth
	}
	for len(x.buckets) <= int(depth) {
		x.buckets = append(x.buckets, nil)
	}
	x.buckets[depth] = append(x.buckets[depth], id)
	return id
}

// lead adds the state that another one leads to, and the transition.
func (x *explorer) lead(from int32, to *cluster, by actor, noEvent bool) int32 {
	id := x.add(to, from, x.nodes[from].depth+1)
	if from != id {
		x.edges = append(x.edges, edge{from, id, by, noEvent})
	}
	return id
}

// expand finds all transitions from a state.
func (x *explorer) expand(id int32) {
	n := &x.nodes[id]
	n.done = true
	c := n.state
	switch {
	case c.pass == nil:
		x.beginPass(id, c)
	case n.op == noOp:
		x.follow(id, x.runPass(c))
	}
	if c.pass != nil && len(c.pass.results) > 0 {
		x.lead(id, c.during(nil), byCrash, false)
	}
	for _, h := range x.transitions(c) {
		x.lead(id, h.next, h.actor, !h.woken)
	}
}

// beginPass starts a pass in a state without one.
func (x *explorer) beginPass(id int32, c *cluster) {
	r := x.runPass(c.begin())
	if r.end != nil && !r.touched && x.is(r.end, x.nodes[id].key) {
		n := &x.nodes[id]
		n.quiet, n.asks = true, r.result.RequeueAfter > 0
		x.checkQuiet(id, r)
		return
	}
	begun := x.lead(id, c.begin(), byPass, false)
	if x.nodes[begun].op == noOp {
		x.follow(begun, r)
	}
}

// follow adds the states of a pass without interference.
func (x *explorer) follow(id int32, r *passRun) {
	failure, steps := x.sim.World.failure, r.steps()
	if failure != nil && len(steps) == 0 {
		x.violate(failure, id, x.nodes[id].depth)
		return
	}
	for i, c := range steps {
		if failure != nil && i == len(steps)-1 {
			x.violate(failure, id, x.nodes[id].depth+1)
			return
		}
		next := x.lead(id, c, byPass, false)
		x.nodes[id].op = next
		if c.pass == nil {
			break
		}
		if id = next; x.nodes[id].op != noOp {
			return
		}
	}
	if x.model.Stale && r.end != nil && !r.start.pass.second {
		again := *r.start.pass
		again.results, again.second = r.results, true
		x.lead(id, r.end.during(&again), byPass, false)
	}
}

// steps returns the states after each new request; if the pass ran to its end, the last one is the
// state after the pass.
func (r *passRun) steps() []*cluster {
	if r.end == nil {
		return r.chain
	}
	return append(slices.Clone(r.chain[:max(len(r.chain)-1, 0)]), r.end)
}

// violate records a violation in the step after a state.
func (x *explorer) violate(v *Violation, at, depth int32) {
	x.nodes[at].op = at
	if x.found == nil || depth < x.foundWith {
		x.found, x.foundAt, x.foundWith = v, at, depth
	}
}

// String reports the numbers.
func (e Exploration) String() string {
	text := fmt.Sprintf("%d states (%d between passes, %d at a goal), %d transitions", e.States, e.Idle, e.Goals, e.Transitions)
	if !e.Complete {
		text += ", and more that were left out"
	}
	if e.Violation != nil {
		text = fmt.Sprintf("%s\n%s: %s", text, e.Violation.Rule, e.Violation.What)
		text += "\n  " + strings.Join(e.Path, "\n  ")
	}
	return text
}
