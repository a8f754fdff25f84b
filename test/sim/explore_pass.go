// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset"
	"github.com/usher-dev/usher/internal/cloneset/plan"
)

// passRun is one run of the real Reconciler over a pass under way: requests that were
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
	// told describes the decisions and new requests, if somebody asked.
	told []string
	// end is the state after the pass; nil if it broke a rule.
	end    *cluster
	result reconcile.Result
}

// begin is the state at the start of a pass.
func begin(c *cluster) *cluster {
	return &cluster{
		objects: c.objects, running: c.running, wishes: c.wishes, faults: c.faults, flight: &flight{base: c.objects},
	}
}

// fly runs a pass from where it is to its end without interference.
func (x *explorer) fly(c *cluster) *passRun {
	x.load(c)
	r := &passRun{x: x, start: c, results: c.flight.results}
	r.process = x.process(c.flight)
	reconciler := x.reconciler(r)
	passes := 1
	if c.flight.second {
		passes = 2
	}
	for range passes {
		r.process.pass = pass{}
		// The next pass, which is another transition, retries failures.
		r.result, _ = reconciler.Reconcile(context.Background(), reconcile.Request{NamespacedName: x.sim.key})
	}
	if x.sim.World.failure == nil {
		r.end = &cluster{objects: objects(x.server.objects).clone(), running: c.running, wishes: c.wishes, faults: c.faults}
	}
	return r
}

// process is a controller process whose caches show the state at the start of a pass.
func (x *explorer) process(f *flight) *Process {
	p := &Process{
		world: x.sim.World, server: x.server, name: actorUsher, nodes: x.sim.nodes, careless: x.config.Process.Careless,
		caches: map[Kind]*cache{}, learned: map[types.UID]*corev1.Pod{}, absent: map[types.UID]bool{}, deleted: map[types.UID]bool{},
	}
	for _, kind := range kinds {
		p.caches[kind] = &cache{world: x.sim.World, server: x.server, kind: kind, objects: f.base[kind]}
	}
	x.acting = p
	return p
}

const actorUsher = "usher-a"

func (x *explorer) reconciler(r *passRun) *cloneset.Reconciler {
	p := r.process
	live := &apiClient{process: p}
	c := &passClient{Client: live, run: r}
	out := cloneset.New(c, &passReader{run: r, live: &liveReader{p}}, silent{}, cloneset.Options{Parallel: 1, Clock: x.sim.World.Clock})
	out.ListPods = p.listPods
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
		p.pass.learned, p.pass.absent = maps.Clone(p.learned), maps.Clone(p.absent)
		p.pass.plan = x.config.Process.Planner(p, s)
		if x.model.Reverse {
			reverse(p.pass.plan.Actions)
		}
		if x.telling {
			for i := range p.pass.plan.Actions {
				r.told = append(r.told, decides+p.pass.plan.Actions[i].String())
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
	for _, pod := range r.start.flight.base[Pods] {
		out[numberOf(pod.GetName())] = true
	}
	for _, o := range []objects{r.start.flight.base, r.start.objects} {
		if set := o.set(); set != nil {
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

// request is one request of a pass: answered as before, or sent now.
func (r *passRun) request(kind Kind, at types.NamespacedName, out any, do func() error) error {
	r.requests++
	if known := r.start.flight.results; r.requests <= len(known) {
		return r.again(&known[r.requests-1], kind, at, out)
	}
	if r.x.sim.World.failure != nil {
		return errDead
	}
	commits := len(r.x.commits)
	err := do()
	r.touched = r.touched || kind != Sets
	answer := result{kind: kind, err: err}
	if err == nil {
		answer.seen = r.seen(kind, at, out)
	}
	if len(r.x.commits) > commits {
		c := r.x.commits[commits]
		answer.written, answer.gone = c.object(), c.New == nil
		if answer.gone {
			answer.written = c.Old
		}
	}
	r.tell(kind, at, commits, err)
	r.results = append(slices.Clip(slices.Clone(r.results)), answer)
	f := *r.start.flight
	f.results = r.results
	r.chain = append(r.chain, &cluster{
		objects: objects(r.x.server.objects).clone(), running: r.start.running, wishes: r.start.wishes, faults: r.start.faults, flight: &f,
	})
	return err
}

// tell describes a request.
func (r *passRun) tell(kind Kind, at types.NamespacedName, commits int, err error) {
	if !r.x.telling {
		return
	}
	for _, c := range r.x.commits[commits:] {
		r.told = append(r.told, describe(c))
	}
	switch {
	case err != nil:
		r.told = append(r.told, fmt.Sprintf("asks for %s %s and is refused: %v", kind, at.Name, err))
	case len(r.x.commits) == commits:
		r.told = append(r.told, fmt.Sprintf("reads %s %s from the server", kind, at.Name))
	}
}

// seen lists the objects in an answer.
func (r *passRun) seen(kind Kind, at types.NamespacedName, out any) []client.Object {
	switch o := out.(type) {
	case *unstructured.Unstructured:
		if object, err := r.x.server.get(kind, at); err == nil {
			return []client.Object{object}
		}
	case *corev1.PodList:
		out := make([]client.Object, len(o.Items))
		for i := range o.Items {
			out[i] = &o.Items[i]
		}
		return out
	case client.Object:
		return []client.Object{clone(o)}
	}
	return nil
}

// again repeats an earlier answer and notes what the process learns from it.
func (r *passRun) again(answer *result, kind Kind, at types.NamespacedName, out any) error {
	p := r.process
	if kind != answer.kind || (answer.written != nil && answer.written.GetName() != at.Name) {
		p.world.fail(ruleSame, "request %d is about %s %s now, and was about %s", r.requests, kind, at.Name, answer.kind)
		return errDead
	}
	list, isList := out.(*corev1.PodList)
	switch {
	case isList && answer.err == nil:
		r.missing(kind, func(object client.Object) bool { return !slices.ContainsFunc(answer.seen, sameUID(object)) })
	case apierrors.IsNotFound(answer.err):
		r.missing(kind, func(object client.Object) bool { return client.ObjectKeyFromObject(object) == at })
	}
	if answer.err != nil {
		return answer.err
	}
	for _, object := range answer.seen {
		p.knew(object, answer.written != nil)
		if err := r.give(out, list, object); err != nil {
			return err
		}
	}
	return nil
}

// knew notes an object that the process has read, or that one of its writes returned.
func (p *Process) knew(object client.Object, written bool) {
	switch o := object.(type) {
	case *corev1.Pod:
		if !written {
			p.learned[o.UID] = o
		}
	case *apps.CloneSet:
		p.learnedSet = o
		if !written && p.pass.set == nil { // as in liveReader
			p.began(o)
		}
	}
}

func sameUID(a client.Object) func(client.Object) bool {
	return func(b client.Object) bool { return a.GetUID() == b.GetUID() }
}

func (r *passRun) give(out any, list *corev1.PodList, object client.Object) error {
	if list != nil {
		return appendTo(list, object)
	}
	if to, ok := out.(client.Object); ok {
		return fill(to, object)
	}
	return nil
}

// missing notes which Pods were absent from an answer.
func (r *passRun) missing(kind Kind, gone func(client.Object) bool) {
	if kind != Pods {
		return
	}
	for _, object := range r.start.flight.base[Pods] {
		if gone(object) {
			r.process.absent[object.GetUID()] = true
		}
	}
	for i := range r.start.flight.results[:r.requests-1] {
		if object := r.start.flight.results[i].written; object != nil && gone(object) {
			r.process.absent[object.GetUID()] = true
		}
	}
}

// passClient is the client of a pass.
type passClient struct {
	client.Client
	run *passRun
}

// Create creates an object. A dry run does not matter here.
func (c *passClient) Create(ctx context.Context, object client.Object, options ...client.CreateOption) error {
	var o client.CreateOptions
	o.ApplyOptions(options)
	if len(o.DryRun) > 0 {
		return nil
	}
	kind, err := kindOf(object)
	if raw, ok := object.(*unstructured.Unstructured); ok {
		kind, err = Kind(raw.GetKind()), nil
	}
	if err != nil {
		return err
	}
	at := client.ObjectKeyFromObject(object)
	return c.run.request(kind, at, object, func() error {
		c.run.x.number(kind, at.Name)
		return c.Client.Create(ctx, object, options...)
	})
}

// Patch changes an object.
func (c *passClient) Patch(ctx context.Context, object client.Object, patch client.Patch, options ...client.PatchOption) error {
	return c.run.write(object, func() error { return c.Client.Patch(ctx, object, patch, options...) })
}

// Delete deletes an object.
func (c *passClient) Delete(ctx context.Context, object client.Object, options ...client.DeleteOption) error {
	kind, err := kindOf(object)
	if err != nil {
		return err
	}
	return c.run.request(kind, client.ObjectKeyFromObject(object), nil, func() error { return c.Client.Delete(ctx, object, options...) })
}

// Status returns the status subresource.
func (c *passClient) Status() client.SubResourceWriter { return c.SubResource("status") }

// SubResource returns a subresource by name.
func (c *passClient) SubResource(name string) client.SubResourceClient {
	return &passSubresource{SubResourceClient: c.Client.SubResource(name), run: c.run}
}

type passSubresource struct {
	client.SubResourceClient
	run *passRun
}

// Patch changes the subresource of an object.
func (s *passSubresource) Patch(ctx context.Context, object client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
	return s.run.write(object, func() error { return s.SubResourceClient.Patch(ctx, object, patch, options...) })
}

func (r *passRun) write(object client.Object, do func() error) error {
	kind, err := kindOf(object)
	if err != nil {
		return err
	}
	return r.request(kind, client.ObjectKeyFromObject(object), object, do)
}

// passReader reads from the server.
type passReader struct {
	run  *passRun
	live *liveReader
}

// Get reads an object.
func (r *passReader) Get(ctx context.Context, at client.ObjectKey, out client.Object, options ...client.GetOption) error {
	kind, err := kindOf(out)
	if err != nil {
		return err
	}
	return r.run.request(kind, at, out, func() error { return r.live.Get(ctx, at, out, options...) })
}

// List reads objects.
func (r *passReader) List(ctx context.Context, out client.ObjectList, options ...client.ListOption) error {
	kind, err := kindOf(out)
	if err != nil {
		return err
	}
	return r.run.request(kind, types.NamespacedName{}, out, func() error { return r.live.List(ctx, out, options...) })
}
