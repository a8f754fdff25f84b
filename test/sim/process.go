// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/test/model"
)

// Planner is plan.Make or a broken variant.
type Planner func(*plan.Snapshot) plan.Plan

// ProcessConfig configures a controller process.
type ProcessConfig struct {
	// Lags are the delays of its watches; Lag applies to every kind not named.
	Lags map[model.Kind]Lag
	Lag  Lag
	// Speed is how long a request takes to reach the server, and its answer to return.
	Speed time.Duration
	// Starts limits how many Pods one pass may start with; 0 is no limit.
	Starts int
	Faults Faults
	// Planner decides. Default: plan.Make.
	Planner func(*Process, *plan.Snapshot) plan.Plan
	// CrashAt is the number of the write after which the first process crashes; 0 is
	// none.
	CrashAt int
	// LoseAt is the number of the first process's request whose answer is lost; with
	// LoseBlind, the request took effect all the same.
	LoseAt    int
	LoseBlind bool
	// Logger receives the process's log. Default: discarded.
	Logger logr.Logger
	// Careless removes the versions from all writes: a broken executor.
	Careless bool
}

// Process is a controller process: the real Reconciler, its caches and its queue.
type Process struct {
	world    *World
	server   *model.Server
	name     string
	caches   map[model.Kind]*watch
	queue    *queue
	handlers map[model.Kind]handler.EventHandler

	nodes      *nodes
	reconciler *cloneset.Reconciler
	config     ProcessConfig
	dead       bool
	// writes counts the writes that took effect, requests the write requests.
	writes, requests int
	onCrash          func()
	// vain counts the passes since the last change, whose number is lastSeen.
	vain, lastSeen int

	pass pass
	// learned are the Pods that the process read from the server.
	learned map[types.UID]*corev1.Pod
	// absent are the Pods that the server did not return when asked.
	absent map[types.UID]bool
	// deleted are the Pods that the process asked to delete.
	deleted map[types.UID]bool
	// learnedSet is the CloneSet in the server's latest answer.
	learnedSet *apps.CloneSet
}

// pass is what a process knows in its current pass.
type pass struct {
	set *apps.CloneSet
	now time.Time
	// base are the Pods as the cache showed them, and upTo is the cache's position in
	// the server's log.
	base map[types.NamespacedName]client.Object
	upTo int
	// claimsUpTo is upTo for the claims.
	claimsUpTo int
	// learned and absent are what the process had read from the server when it
	// decided.
	learned map[types.UID]*corev1.Pod
	absent  map[types.UID]bool
	// decidedAt is the position in the server's log at that time; 0 before that.
	decidedAt int
	// going are the nodes that were cordoned then.
	going map[string]bool
	// snapshot is the input of the decision, plan its result.
	snapshot *plan.Snapshot
	plan     plan.Plan
}

// newProcess starts a process, which lists all objects and then watches them.
func newProcess(w *World, s *model.Server, name string, config ProcessConfig) *Process {
	p := &Process{
		world: w, server: s, name: name, config: config,
		caches: map[model.Kind]*watch{}, learned: map[types.UID]*corev1.Pod{}, absent: map[types.UID]bool{}, deleted: map[types.UID]bool{},
	}
	cached, live := p.clients(p.send)
	p.reconciler = cloneset.New(cached, live, recorder{p}, cloneset.Options{Parallel: 1, Clock: w.Clock})
	ids := 0
	p.reconciler.NewID = func() string { ids++; return fmt.Sprintf("%s%02d", short(name), ids) }
	planner := config.Planner
	if planner == nil {
		planner = func(_ *Process, s *plan.Snapshot) plan.Plan { return plan.Make(s) }
	}
	p.reconciler.Plan = func(s *plan.Snapshot) plan.Plan {
		s.Starts = config.Starts
		p.pass.learned, p.pass.absent = maps.Clone(p.learned), maps.Clone(p.absent)
		p.pass.decidedAt, p.pass.going = len(p.server.Log[model.Pods]), p.going()
		p.pass.snapshot, p.pass.plan = s, planner(p, s)
		w.decided(p, &p.pass.plan)
		return p.pass.plan
	}
	p.handlers = map[model.Kind]handler.EventHandler{model.Pods: p.reconciler.PodEvents(), model.Claims: p.reconciler.ClaimEvents(), model.Nodes: p.reconciler.NodeEvents()}
	p.queue = &queue{
		world: w, work: p.work, failures: map[reconcile.Request]int{}, due: map[reconcile.Request]time.Time{},
		pause: func() time.Duration { return w.between(0, time.Millisecond) },
	}
	for _, kind := range kinds {
		lag, ok := config.Lags[kind]
		if !ok {
			lag = config.Lag
		}
		changed := func(before, after client.Object) { p.later(kind, before, after) }
		p.caches[kind] = &watch{Cache: model.NewCache(s, kind, changed), world: w, lag: lag}
	}
	for _, kind := range kinds {
		p.caches[kind].Report()
	}
	return p
}

// short is the first letter of the IDs of a process's Pods: "a" for the first process.
func short(name string) string { return name[len(name)-1:] }

// handle does what the controller's event handlers do.
func (p *Process) handle(kind model.Kind, before, after client.Object) {
	ctx := context.Background()
	object := after
	if object == nil {
		object = before
	}
	switch handlers := p.handlers[kind]; {
	case kind == model.CloneSets:
		p.handleSet(before, after)
	case handlers != nil && before == nil:
		handlers.Create(ctx, event.CreateEvent{Object: after}, p.queue)
	case handlers != nil && after == nil:
		handlers.Delete(ctx, event.DeleteEvent{Object: before}, p.queue)
	case handlers != nil:
		handlers.Update(ctx, event.UpdateEvent{ObjectOld: before, ObjectNew: after}, p.queue)
	default:
		if owner := metav1.GetControllerOf(object); owner != nil {
			p.queue.Add(reconcile.Request{NamespacedName: key(object.GetNamespace(), owner.Name)})
		}
	}
}

func (p *Process) handleSet(before, after client.Object) {
	object := after
	switch {
	case after == nil:
		object = before
	case before != nil && !p.reconciler.SetChanged(before, after):
		return
	}
	p.queue.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(object)})
}

// mostVain is how many passes in a row may change nothing.
const mostVain = 300

// work runs one pass.
func (p *Process) work(request reconcile.Request) (reconcile.Result, error) {
	if seen := len(p.server.Log[model.Pods]) + len(p.server.Log[model.CloneSets]) + len(p.server.Log[model.Claims]); seen != p.lastSeen {
		p.lastSeen, p.vain = seen, 0
	}
	if p.vain++; p.vain > mostVain {
		p.world.fail("it does not spin", "%d passes in a row, and nothing has changed anywhere", p.vain)
	}
	p.pass = pass{}
	result, err := p.reconciler.Reconcile(log.IntoContext(context.Background(), p.config.Logger), request)
	if err != nil && !p.dead {
		p.world.say(p.name, "the pass fails: %v", err)
	}
	return result, err
}

// began notes the starting point of a pass.
func (p *Process) began(set *apps.CloneSet) {
	if p.learnedSet != nil && p.learnedSet.UID == set.UID && versionOf(p.learnedSet) > versionOf(set) {
		set = p.learnedSet
	}
	p.pass.set, p.pass.now = set, p.world.now()
}

// looked notes what the cache shows of the Pods.
func (p *Process) looked() {
	cache := p.caches[model.Pods]
	p.pass.upTo, p.pass.claimsUpTo = cache.Applied, p.caches[model.Claims].Applied
	p.pass.base = maps.Clone(cache.Objects)
}

// crash ends the process: what it wrote stays, what it knew is lost.
func (p *Process) crash() {
	p.world.say(p.name, "the process dies")
	p.stop()
	if p.onCrash != nil {
		p.onCrash()
	}
}

func (p *Process) stop() {
	p.dead, p.queue.stopped = true, true
	for _, cache := range p.caches {
		cache.stopped = true
	}
}

// recorder adds events to the story.
type recorder struct{ process *Process }

// Eventf records an event.
func (r recorder) Eventf(_, _ runtime.Object, _, reason, _, note string, args ...any) {
	if r.process.dead {
		return
	}
	r.process.world.say(r.process.name, "event "+reason+": "+note, args...)
}

// queue is a work queue with one worker: a request that arrives while another one of
// the same name is processed waits until that is done, and duplicates are merged.
type queue struct {
	// The methods below are all that event handlers use of a work queue.
	workqueue.TypedRateLimitingInterface[reconcile.Request]

	world   *World
	work    func(reconcile.Request) (reconcile.Result, error)
	busy    bool
	waiting []reconcile.Request
	// due is when a delayed request is added.
	due map[reconcile.Request]time.Time
	// failures counts consecutive failures, for the backoff.
	failures map[reconcile.Request]int
	// pause is how long the worker takes to pick up a request.
	pause   func() time.Duration
	stopped bool
	planned bool
}

// Add adds a request unless it is already queued.
func (q *queue) Add(r reconcile.Request) {
	if q.stopped {
		return
	}
	for _, other := range q.waiting {
		if other == r {
			return
		}
	}
	q.waiting = append(q.waiting, r)
	q.wake()
}

// AddAfter adds a request later. Of several times for one request only the earliest
// counts, as in a real queue.
func (q *queue) AddAfter(r reconcile.Request, delay time.Duration) {
	at := q.world.now().Add(delay)
	if due, ok := q.due[r]; ok && !due.After(at) {
		return
	}
	q.due[r] = at
	q.world.after(delay, func() {
		if q.due[r].Equal(at) {
			delete(q.due, r)
			q.Add(r)
		}
	})
}

func (q *queue) wake() {
	if q.busy || q.planned || q.stopped || len(q.waiting) == 0 {
		return
	}
	q.planned = true
	q.world.after(q.pause(), q.run)
}

// run processes the first waiting request.
func (q *queue) run() {
	q.planned = false
	if q.stopped || q.busy || len(q.waiting) == 0 {
		return
	}
	request := q.waiting[0]
	q.waiting = q.waiting[1:]
	q.busy = true
	result, err := q.work(request)
	q.busy = false
	if q.stopped {
		return
	}
	q.finish(request, result, err)
	q.wake()
}

// finish handles the result of a pass as controller-runtime does.
func (q *queue) finish(request reconcile.Request, result reconcile.Result, err error) {
	switch {
	case err != nil:
		delay := 5 * time.Millisecond << min(q.failures[request], 17)
		q.failures[request]++
		q.AddAfter(request, min(delay, 1000*time.Second))
	case result.RequeueAfter > 0:
		delete(q.failures, request)
		q.AddAfter(request, result.RequeueAfter)
	default:
		delete(q.failures, request)
	}
}
