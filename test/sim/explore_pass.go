// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/test/model"
)

// passRun is one run of the real Reconciler over a pass in progress: requests that were
// answered before get the same answers again, and the rest goes to the server.
type passRun struct {
	x       *explorer
	start   *cluster
	process *Process
	// requests counts the requests so far.
	requests int
	results  []result
	// chain holds the state after each new request.
	chain []*cluster
	// touched reports whether a new request was about anything other than the CloneSet.
	touched bool
	// lines describe the decisions and new requests, if somebody asked.
	lines []string
	// end is the state after the pass; nil if it broke a rule.
	end    *cluster
	result reconcile.Result
}

// begin is the state at the start of a pass.
func begin(c *cluster) *cluster {
	return &cluster{
		objects: c.objects, running: c.running, edits: c.edits, faults: c.faults, pass: &passInProgress{base: c.objects},
	}
}

// runPass runs a pass from where it is to its end without interference.
func (x *explorer) runPass(c *cluster) *passRun {
	x.load(c)
	r := &passRun{x: x, start: c, results: c.pass.results}
	r.process = x.process(c.pass)
	reconciler := x.reconciler(r)
	passes := 1
	if c.pass.second {
		passes = 2
	}
	for range passes {
		r.process.pass = pass{}
		// The next pass, which is another transition, retries failures.
		r.result, _ = reconciler.Reconcile(context.Background(), reconcile.Request{NamespacedName: x.sim.key})
	}
	if x.sim.World.failure == nil {
		r.end = &cluster{objects: x.server.Objects.Clone(), running: c.running, edits: c.edits, faults: c.faults}
	}
	return r
}

// process is a controller process whose caches show the state at the start of a pass.
func (x *explorer) process(f *passInProgress) *Process {
	p := &Process{
		world: x.sim.World, server: x.server, name: actorUsher, nodes: x.sim.nodes, config: ProcessConfig{Careless: x.config.Process.Careless},
		caches: map[model.Kind]*watch{}, learned: map[types.UID]*corev1.Pod{}, absent: map[types.UID]bool{}, deleted: map[types.UID]bool{},
	}
	for _, kind := range kinds {
		p.caches[kind] = &watch{Cache: &model.Cache{Objects: f.base[kind]}}
	}
	x.acting = p
	return p
}

const actorUsher = "usher-a"

func (x *explorer) reconciler(r *passRun) *cloneset.Reconciler {
	p := r.process
	cached, live := p.clients(r.send)
	out := cloneset.New(cached, live, silent{}, cloneset.Options{Parallel: 1, Clock: x.sim.World.Clock})
	p.reconciler = out
	used, step, last := r.taken(), 1, 0
	if x.model.NamesFirst {
		step, last = -1, x.offset+1
	}
	out.NewID = func() string {
		for last += step; used[last]; last += step {
		}
		return podID(last)
	}
	out.Plan = func(s *plan.Snapshot) plan.Plan {
		s.Starts = x.config.Process.Starts
		p.pass.learned, p.pass.absent, p.pass.going = maps.Clone(p.learned), maps.Clone(p.absent), p.going()
		p.pass.plan = x.config.Process.Planner(p, s)
		if x.model.Reverse {
			reverse(p.pass.plan.Actions)
		}
		if x.describing {
			for i := range p.pass.plan.Actions {
				r.lines = append(r.lines, decides+p.pass.plan.Actions[i].String())
			}
		}
		return p.pass.plan
	}
	return out
}

// reverse reverses what a pass runs in parallel: the creates among themselves, and the
// rest before and after them.
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

// taken are the numbers that no new Pod gets: those of the Pods at the start of the
// pass, or of Pods that the user named.
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

// silent records no events.
type silent struct{}

// Eventf does nothing.
func (silent) Eventf(_, _ runtime.Object, _, _, _, _ string, _ ...any) {}

// send answers a request as before, or sends it now. A dry run does not matter here.
func (r *passRun) send(request *model.Request, do func() error) error {
	if request.Cached {
		return r.process.send(request, do)
	}
	if request.DryRun {
		return nil
	}
	r.requests++
	if known := r.start.pass.results; r.requests <= len(known) {
		return r.again(&known[r.requests-1], request)
	}
	if r.x.sim.World.failure != nil {
		return errDead
	}
	commits := len(r.x.commits)
	if request.Verb == model.VerbCreate {
		r.x.number(request.Kind, request.At.Name)
	}
	err := r.process.send(request, do)
	r.touched = r.touched || request.Kind != model.CloneSets
	answer := result{kind: request.Kind, err: err, seen: request.Answer}
	if len(r.x.commits) > commits {
		c := r.x.commits[commits]
		answer.written, answer.gone = c.Object(), c.New == nil
	}
	r.record(request, commits, err)
	r.results = append(slices.Clip(slices.Clone(r.results)), answer)
	f := *r.start.pass
	f.results = r.results
	r.chain = append(r.chain, &cluster{
		objects: r.x.server.Objects.Clone(), running: r.start.running, edits: r.start.edits, faults: r.start.faults, pass: &f,
	})
	return err
}

// record describes a request, if somebody asked.
func (r *passRun) record(request *model.Request, commits int, err error) {
	if !r.x.describing {
		return
	}
	for _, c := range r.x.commits[commits:] {
		r.lines = append(r.lines, describe(c))
	}
	switch {
	case err != nil:
		r.lines = append(r.lines, fmt.Sprintf("asks for %s %s and is refused: %v", request.Kind, request.At.Name, err))
	case len(r.x.commits) == commits:
		r.lines = append(r.lines, fmt.Sprintf("reads %s %s from the server", request.Kind, request.At.Name))
	}
}

// again repeats an earlier answer and notes what the process learns from it.
func (r *passRun) again(answer *result, request *model.Request) error {
	if request.Kind != answer.kind || (answer.written != nil && answer.written.GetName() != request.At.Name) {
		r.process.world.fail(ruleSame, "request %d is about %s %s now, and was about %s", r.requests, request.Kind, request.At.Name, answer.kind)
		return errDead
	}
	if apierrors.IsNotFound(answer.err) || (request.Verb == model.VerbList && answer.err == nil) {
		r.missing(request, answer)
	}
	if answer.err != nil {
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

// learnAgain notes what the process learns from an object in an earlier answer.
func (p *Process) learnAgain(object client.Object, request *model.Request) {
	if !request.Writes() {
		p.learn(object)
	} else if set, ok := object.(*apps.CloneSet); ok {
		p.learnedSet = set
	}
}

// missing notes which Pods were absent from an answer.
func (r *passRun) missing(request *model.Request, answer *result) {
	if request.Kind != model.Pods {
		return
	}
	known := model.Sorted(r.start.pass.base[model.Pods])
	for i := range r.start.pass.results[:r.requests-1] {
		if object := r.start.pass.results[i].written; object != nil {
			known = append(known, object)
		}
	}
	for _, object := range known {
		shown := slices.ContainsFunc(answer.seen, func(o client.Object) bool { return o.GetUID() == object.GetUID() })
		if !shown && (request.Verb == model.VerbList || request.At == client.ObjectKeyFromObject(object)) {
			r.process.absent[object.GetUID()] = true
		}
	}
}
