// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/model"
)

// Faults are the probabilities of the faults of one write.
type Faults struct {
	// Lost: the request times out and has no effect.
	Lost float64
	// Blind: the request times out but takes effect.
	Blind float64
	// Conflict: the server answers 409 although nothing has changed.
	Conflict float64
	// Busy: the server answers 429 or 500 and does nothing.
	Busy float64
	// Later: the server answers a deletion of a Pod with 429, like a webhook that waits until the Pod
	// is drained.
	Later float64
	// Crash: the process dies after the write took effect, before the answer.
	Crash float64
}

var errDead = errors.New("the process is gone")

// clients returns two clients of a process: cached reads from its caches, live from the server. send
// carries their requests.
func (p *Process) clients(send func(*model.Request, func() error) error) (cached, live *model.Client) {
	live = &model.Client{Server: p.Server, Actor: p.name, Send: send}
	cached = new(*live)
	cached.Cache = func(kind model.Kind) map[types.NamespacedName]client.Object { return p.caches[kind].Objects }
	cached.Index = indexes
	return cached, live
}

// indexes returns the controller's index values of an object, by the rules of a real cache.
func indexes(object client.Object) fields.Set {
	out := fields.Set{"usher.dev/owner": ownerOf(object)}
	if node, ok := object.(*corev1.Node); ok {
		out["usher.dev/going"] = fmt.Sprint(node.Spec.Unschedulable)
	}
	return out
}

// send carries a request to the server and back, and records what the process learns.
func (p *Process) send(r *model.Request, do func() error) error {
	switch {
	case p.dead:
		return errDead
	case r.Cached:
		return p.readCached(r, do)
	case !r.Writes() && !r.DryRun:
		return p.readLive(r, do)
	}
	if p.config.Careless && r.Verb == model.VerbPatch {
		r.Patch = withoutVersion(r.Patch)
	}
	if r.Verb == model.VerbDelete {
		p.asked(r)
	}
	return p.write(r, func() error {
		err := do()
		if apierrors.IsNotFound(err) {
			p.missed(r)
		}
		return err
	})
}

func (p *Process) readCached(r *model.Request, do func() error) error {
	if p.handling {
		return do() // the pass in progress does not see it
	}
	switch {
	case r.Verb != model.VerbList:
	case r.Kind == model.Pods:
		p.looked()
	case r.Kind == model.Nodes:
		p.pass.nodes = maps.Clone(p.caches[model.Nodes].Objects)
	}
	err := do()
	for _, object := range r.Answer {
		if set, ok := object.(*apps.CloneSet); ok && r.Verb == model.VerbGet {
			p.began(set)
		}
	}
	return err
}

func (p *Process) readLive(r *model.Request, do func() error) error {
	p.travel()
	switch {
	case p.dead:
		return errDead
	case p.World.roll(p.config.Faults.Lost):
		return apierrors.NewServerTimeout(model.Pods.Resource(), "get", 1)
	}
	err := do()
	if err != nil || r.Verb == model.VerbList {
		p.missed(r)
	}
	for _, object := range r.Answer {
		p.learn(object)
	}
	return err
}

// learn records an object that the process has read from the server, or got as an answer.
func (p *Process) learn(object client.Object) {
	switch o := object.(type) {
	case *corev1.Pod:
		p.known.learned[o.UID] = o
		if p.observing() {
			p.pass.known.learned[o.UID] = o
		}
	case *apps.CloneSet:
		p.learnedSet = o
		if p.pass.set == nil { // the set that the pass starts with; a later one counts for the next pass
			p.began(o)
		}
	}
}

// write takes a write to the server and back, with the faults of both ways.
func (p *Process) write(r *model.Request, do func() error) error {
	defer p.begins()()
	if err := p.arrives(); err != nil {
		return err
	}
	p.requests++
	lose := p.requests == p.config.LoseAt
	if err := p.refused(lose && !p.config.LoseBlind); err != nil {
		return err
	}
	if err := p.notAdmitted(r); err != nil {
		return err
	}
	if err := do(); err != nil {
		p.World.say(p.name, "a write is refused: %v", err)
		return err
	}
	if r.DryRun {
		return nil
	}
	return p.answer(r, lose)
}

// notAdmitted returns why admission refuses a write: a guard delays a deletion, or a quota is used up.
func (p *Process) notAdmitted(r *model.Request) error {
	switch {
	case r.Kind != model.Pods:
	case r.Verb == model.VerbDelete && p.World.roll(p.config.Faults.Later):
		p.World.say(p.name, "Pod %s may not be deleted yet", r.At.Name)
		return apierrors.NewTooManyRequests("the Pod is drained first", 1+p.World.chance.IntN(10))
	case r.Verb == model.VerbCreate && pulling(r) && p.refusePull():
		return apierrors.NewForbidden(r.Kind.Resource(), r.At.Name, errors.New("exceeded quota"))
	}
	return nil
}

// answer carries the answer to a successful write back to the process.
func (p *Process) answer(r *model.Request, lose bool) error {
	p.writes++
	if p.config.CrashAt == p.writes || p.World.roll(p.config.Faults.Crash) {
		p.crash()
		return errDead
	}
	if p.World.roll(p.config.Faults.Blind) || lose {
		p.World.say(p.name, "that write times out, although it took effect")
		return pick(p.World, error(apierrors.NewTimeoutError("request timed out", 1)), context.DeadlineExceeded)
	}
	if p.travel(); p.dead {
		return errDead
	}
	for _, object := range r.Answer {
		p.learn(object) // the answer to a patch that changes nothing has the Pod too
		if pod, ok := object.(*corev1.Pod); ok {
			p.known.wrote[pod.UID] = pod
		}
	}
	return nil
}

// refused draws whether a request fails before it has any effect.
func (p *Process) refused(lose bool) error {
	switch {
	case p.World.roll(p.config.Faults.Lost), lose:
		p.World.say(p.name, "a write times out and does nothing")
		return apierrors.NewServerTimeout(model.Pods.Resource(), "write", 1)
	case p.World.roll(p.config.Faults.Busy):
		p.World.say(p.name, "the server is too busy for a write")
		return pick(p.World, apierrors.NewTooManyRequests("try again", 1), apierrors.NewInternalError(errors.New("etcd leader changed")))
	case p.World.roll(p.config.Faults.Conflict):
		p.World.say(p.name, "a write meets a conflict")
		return apierrors.NewConflict(model.Pods.Resource(), "", errors.New("the object has been modified"))
	}
	return nil
}

// travel waits while a request or its answer is in transit.
func (p *Process) travel() {
	if !p.dead {
		p.World.pass(p.World.between(p.config.Speed/2, p.config.Speed*3/2))
	}
}

// missed records the Pods that the process knows, that a request was about and that the server does not
// show.
func (p *Process) missed(r *model.Request) {
	if r.Kind != model.Pods {
		return
	}
	// The cache may have seen deletions since.
	known := p.upTo(len(p.Server.Log[model.Pods]), nil, &p.known).learned
	for _, object := range p.caches[model.Pods].Objects {
		known[object.GetUID()] = object.(*corev1.Pod)
	}
	for uid, pod := range known {
		at := client.ObjectKeyFromObject(pod)
		live := p.Server.Objects[model.Pods][at]
		if (r.Verb == model.VerbList || r.At == at) && (live == nil || live.GetUID() != uid) {
			p.known.absent[uid] = true
			if p.observing() {
				p.pass.known.absent[uid] = true
			}
		}
	}
}

// withoutVersion removes the preconditions about versions from a patch.
func withoutVersion(patch []byte) []byte {
	var operations []map[string]any
	if json.Unmarshal(patch, &operations) == nil {
		return must(json.Marshal(slices.DeleteFunc(operations, func(o map[string]any) bool {
			return o["op"] == "test" || o["path"] == "/metadata/resourceVersion"
		})))
	}
	body := decode[map[string]any](patch)
	if metadata, ok := body["metadata"].(map[string]any); ok {
		delete(metadata, "resourceVersion")
	}
	return must(json.Marshal(body))
}

// Lag is how long a watch takes to deliver an event, drawn separately for each event.
type Lag struct {
	Least, Most time.Duration
	// Stall is the probability that the watch hangs for StallFor. When it comes back,
	// it may deliver only the last state of each object, as after a relist.
	Stall    float64
	StallFor time.Duration
	// Behind is the probability that such a relist comes from an API server whose own cache lags: it shows what was at
	// some time since the last event that the watch has delivered. What came after that follows within StallFor.
	Behind float64
}

// watch keeps one process's cache of the objects of one kind up to date, with delays.
type watch struct {
	*model.Cache
	world *World
	lag   Lag
	// due is when the latest planned delivery happens: watches preserve the order.
	due time.Time
	// handlerDue is when the latest event reaches its handler.
	handlerDue time.Time
	// stopped is true once the process has ended.
	stopped bool
	// behind is true from a list of an API server that lags until the watch has caught up with it.
	behind bool
}

// plan plans the delivery of the log up to a position.
func (c *watch) plan(upTo int) {
	if c.stopped {
		return
	}
	delay, relist := c.world.between(c.lag.Least, c.lag.Most), false
	if c.world.roll(c.lag.Stall) {
		delay += c.world.between(0, c.lag.StallFor)
		relist = c.world.roll(0.5)
	}
	c.world.inOrder(&c.due, delay, func() {
		switch {
		case c.stopped:
		case relist && c.world.roll(c.lag.Behind):
			c.relistBehind()
		case relist:
			c.Relist()
			c.behind = false
		default:
			c.Deliver(upTo)
		}
	})
}

// relistBehind lists what an API server that lags has, and goes on from there.
func (c *watch) relistBehind() {
	now := c.Present()
	c.RelistAt(c.Applied + c.world.chance.IntN(now-c.Applied+1))
	c.behind = c.Applied < now
	c.world.inOrder(&c.due, c.world.between(0, c.lag.StallFor), func() {
		if !c.stopped {
			c.Deliver(now)
			c.behind = false
		}
	})
}

// later passes an event from a cache to its handler, which runs on its own.
func (p *Process) later(kind model.Kind, before, after client.Object) {
	p.World.inOrder(&p.caches[kind].handlerDue, p.World.between(0, time.Millisecond), func() {
		if !p.dead {
			p.handle(kind, before, after)
		}
	})
}

// inOrder plans an event, but not before the last one of its kind.
func (w *World) inOrder(last *time.Time, delay time.Duration, do func()) {
	*last = list.Latest(*last, w.now().Add(delay))
	w.after(last.Sub(w.now()), do)
}
