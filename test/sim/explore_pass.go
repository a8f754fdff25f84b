// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/test/model"
)

// passRun is one run of the real Reconciler over a pass in progress: requests that were
// answered before get the same answers again, and the rest goes to the server.
type passRun struct {
	x       *explorer
	start   *cluster
	process *Process
	// requests counts the requests so far, and first the lines of the story up to the first
	// new one.
	requests, first int
	results         []*result
	// chain holds the state after each new request.
	chain []*cluster
	// tried counts the dry runs among them.
	tried int
	// touched reports whether a new request was about anything other than the CloneSet.
	touched bool
	// end is the state after the pass; nil if it broke a rule.
	end    *cluster
	result reconcile.Result
}

// runPass runs a pass to its end, from the answers that it has so far, without interference.
func (x *explorer) runPass(c *cluster) *passRun {
	x.load(c)
	r := &passRun{x: x, start: c, results: c.pass.results}
	r.prepare()
	x.acting = r.process
	passes := 1
	if c.pass.second {
		passes = 2
	}
	for range passes {
		r.process.pass = &pass{}
		// The next pass, which is another transition, retries failures.
		r.result, _ = r.process.reconciler.Reconcile(context.Background(), reconcile.Request{NamespacedName: x.sim.key})
	}
	if x.sim.World.failure == nil {
		r.end = x.now(nil)
	}
	return r
}

const actorUsher = "usher-a"

// prepare makes a controller process whose caches show the state at the start of the pass.
func (r *passRun) prepare() {
	x, is := r.x, r.x.sim.config.Process
	config := ProcessConfig{Starts: is.Starts, Planner: is.Planner, Careless: is.Careless} // its requests take no time
	p := x.sim.assemble(actorUsher, config, func(*Process) func(*model.Request, func() error) error { return r.send })
	for _, kind := range kinds {
		p.caches[kind] = &watch{Cache: &model.Cache{Objects: r.start.pass.base[kind]}}
	}
	used, step, last := r.taken(), 1, 0
	if x.model.NamesFirst {
		step, last = -1, x.offset+1
	}
	p.reconciler.NewID = func() string {
		for last += step; used[last]; last += step {
		}
		return podID(last)
	}
	p.reconciler.Plan = func(s *plan.Snapshot) plan.Plan {
		decided := p.decide(s)
		p.pass.decidedAt = 0 // the log has the writes of the pass from its beginning
		if x.model.Reverse {
			reverse(decided.Actions)
		}
		return decided
	}
	r.process = p
}

// reverse reverses the actions that a pass runs in parallel: the creates among themselves, and the
// others before and after them.
func reverse(actions []plan.Action) {
	for len(actions) > 0 {
		part := 1
		for part < len(actions) && (actions[part].Verb == plan.Create) == (actions[0].Verb == plan.Create) {
			part++
		}
		slices.Reverse(actions[:part])
		actions = actions[part:]
	}
}

// taken returns the numbers that no new Pod gets: those of the Pods at the start of the pass, and of
// Pods that the user named.
func (r *passRun) taken() map[int]bool {
	out := map[int]bool{}
	for _, pod := range r.start.pass.base[model.Pods] {
		out[numberOf(pod.GetName())] = true
	}
	for _, o := range []model.Objects{r.start.pass.base, r.start.objects} {
		if set := setOf(o); set != nil {
			for _, name := range set.Spec.ScaleStrategy.PodsToDelete {
				out[numberOf(name)] = true
			}
		}
	}
	return out
}

// ignores reports whether a request is a dry run in a model that refuses nothing.
func (r *passRun) ignores(request *model.Request) bool {
	return request.DryRun && (!r.x.model.refuses() || request.Verb != model.VerbPatch)
}

// remember records an answer, and the state after it.
func (r *passRun) remember(answer *result) {
	r.results = append(slices.Clip(r.results), answer)
	pass := *r.start.pass
	pass.results = r.results
	r.chain = append(r.chain, r.x.now(&pass))
	if len(r.chain) == 1 {
		r.first = len(r.x.sim.World.story.lines)
	}
}

// send answers a request as before, or sends it now. A dry run does not matter in a model that refuses
// nothing.
func (r *passRun) send(request *model.Request, do func() error) error {
	x := r.x
	if request.Cached {
		return r.process.send(request, do)
	}
	if r.ignores(request) {
		return nil
	}
	r.requests++
	if known := r.start.pass.results; r.requests <= len(known) {
		x.sim.World.story.lines = nil // it belongs to an earlier step
		return r.again(known[r.requests-1], request)
	}
	if x.sim.World.failure != nil {
		return errDead
	}
	commits := len(x.commits)
	if request.Verb == model.VerbCreate {
		x.number(request.Kind, request.At.Name)
	}
	absent := maps.Clone(r.process.known.absent)
	err := r.process.send(request, do)
	answer := &result{kind: request.Kind, err: err}
	if request.DryRun {
		r.tried++
	} else {
		r.touched, answer.seen = r.touched || request.Kind != model.CloneSets, request.Answer
	}
	gone := slices.Collect(maps.Keys(r.process.known.absent))
	answer.absent = slices.DeleteFunc(gone, func(uid types.UID) bool { return absent[uid] })
	switch {
	case len(x.commits) > commits:
		c := x.commits[commits]
		answer.written, answer.gone = c.Object(), c.New == nil
	case err == nil && !request.DryRun:
		x.sim.World.say(actorUsher, "reads %s %s from the server", request.Kind, request.At.Name)
	}
	r.remember(answer)
	return err
}

// again repeats an earlier answer and records what the process learns from it.
func (r *passRun) again(answer *result, request *model.Request) error {
	if request.Kind != answer.kind || (answer.written != nil && answer.written.GetName() != request.At.Name) {
		r.process.World.fail(ruleSame, "request %d is about %s %s now, and was about %s", r.requests, request.Kind, request.At.Name, answer.kind)
		return errDead
	}
	for _, uid := range answer.absent {
		r.process.known.absent[uid] = true
	}
	if answer.err != nil || request.DryRun {
		return answer.err
	}
	for _, object := range answer.seen {
		r.process.learnAgain(object, request)
	}
	if request.Out == nil {
		return nil
	}
	return request.Receive(answer.seen)
}

// learnAgain records what the process learns from an object in an earlier answer.
func (p *Process) learnAgain(object client.Object, request *model.Request) {
	if !request.Writes() {
		p.learn(object)
	} else if set, ok := object.(*apps.CloneSet); ok {
		p.learnedSet = set
	}
}
