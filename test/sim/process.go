// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/podcache"
	"github.com/usher-dev/usher/test/model"
)

// ProcessConfig configures a controller process.
type ProcessConfig struct {
	// Lags are the delays of its watches; Lag applies to every kind not named.
	Lags map[model.Kind]Lag
	Lag  Lag
	// Speed is how long a request takes to reach the server, and its answer to return.
	Speed time.Duration
	// Starts limits how many Pods one pass may start with; 0 is no limit.
	Starts int
	// Parallel is how many writes are under way at most. If it is more than one, the width, and not
	// Starts, limits how many Pods a pass may start.
	Parallel int
	// Service is how long the server takes for each write, one after the other.
	Service time.Duration
	// Tries is how often the client repeats a write that is answered with 429.
	Tries  int
	Faults Faults
	// Planner decides. Default: plan.Make.
	Planner func(*Process, *plan.Snapshot) plan.Plan
	// Returner decides about Pods that return during a pass. Default: plan.Return.
	Returner func(*plan.Snapshot, *corev1.Pod, time.Time) (plan.Action, bool)
	// CrashAt is the number of the write after which the first process crashes; 0 means that it does
	// not.
	CrashAt int
	// LoseAt is the number of the first process's request whose answer is lost; with LoseBlind, the
	// request took effect nevertheless.
	LoseAt    int
	LoseBlind bool
	// Logger receives the process's log. Default: discarded.
	Logger logr.Logger
	// Careless removes the versions from all writes: a broken executor.
	Careless bool
	// Eager has twice as many writes under way as the width: a broken executor.
	Eager bool
	// Control changes the width. Default: no change.
	Control func(cloneset.Width) cloneset.Width
}

// Process is a controller process: the real Reconciler, its caches and its queue.
type Process struct {
	*Simulation
	name       string
	caches     map[model.Kind]*watch
	queue      *queue
	handlers   map[model.Kind]handler.EventHandler
	reconciler *cloneset.Reconciler
	// pods decides which part of Pods the process keeps.
	pods   *podcache.Keeper
	config ProcessConfig
	dead   bool
	// handling reports whether an event is being handled.
	handling bool
	// writes counts the writes that took effect, requests the write requests.
	writes, requests int
	onCrash          func()
	// vain counts the passes since the last change, whose number is lastSeen.
	vain, lastSeen int

	strain
	// pass is the current pass, or during a return the one that the return belongs to; latest is the
	// latest pass that has decided.
	pass, latest *pass
	// known has the Pods that the process has read from the server.
	known answers
	// deleted are the Pods that the process asked to delete.
	deleted map[types.UID]bool
	// learnedSet is the CloneSet from the server's latest answer.
	learnedSet *apps.CloneSet
}

// answers has the Pods that a process has read from the server.
type answers struct {
	// learned are the Pods that it read, absent those that the server did not return when
	// asked.
	learned map[types.UID]*corev1.Pod
	absent  map[types.UID]bool
	// wrote are the answers to its own writes.
	wrote map[types.UID]*corev1.Pod
}

func (a answers) clone() *answers {
	return &answers{maps.Clone(a.learned), maps.Clone(a.absent), maps.Clone(a.wrote)}
}

// pass has the knowledge of a process in its current pass.
type pass struct {
	set *apps.CloneSet
	now time.Time
	// base has the Pods as the cache showed them, and upTo the position of each cache in the server's
	// log.
	base map[types.NamespacedName]client.Object
	upTo map[model.Kind]int
	// known has the Pods that the process had read from the server when the pass looked at its cache, and those that the
	// pass itself has read from then on until it decided: an async call may learn more meanwhile, too late for the pass.
	known *answers
	// decidedAt is the position in the server's log at that time; 0 before that.
	decidedAt int
	// nodes has the nodes as the cache showed them when the pass read them.
	nodes map[types.NamespacedName]client.Object
	// redone are the Pods with the process's writes, on top of what it knew then.
	redone map[redoing]*corev1.Pod
	// snapshot is the input of the decision, plan its result.
	snapshot *plan.Snapshot
	plan     plan.Plan
}

// assemble makes a process without caches. send carries its requests.
func (s *Simulation) assemble(name string, config ProcessConfig, send func(*Process) func(*model.Request, func() error) error) *Process {
	p := &Process{
		Simulation: s, name: name, config: config, pods: podcache.New(), caches: map[model.Kind]*watch{},
		known: answers{map[types.UID]*corev1.Pod{}, map[types.UID]bool{}, map[types.UID]*corev1.Pod{}}, deleted: map[types.UID]bool{},
		strain: strain{returning: map[*errand]bool{}}, pass: &pass{},
	}
	cached, live := p.clients(send(p))
	options := cloneset.Options{Parallel: max(config.Parallel, 1), Clock: s.World.Clock, Keep: p.pods.Keep}
	if s.config.Nodes.Pull > 0 {
		options.PullImage = "usher"
	}
	p.reconciler = cloneset.New(cached, live, recorder{p}, options)
	p.reconciler.Plan, p.reconciler.Each, p.reconciler.Background = p.decide, p.each, p.background
	if config.Returner != nil {
		p.reconciler.Return = config.Returner
	}
	if p.control = p.reconciler.Width; config.Control != nil {
		p.control = config.Control(p.control)
	}
	p.reconciler.Width = &checked{p.control, p}
	return p
}

// newProcess starts a process, which lists all objects and then watches them.
func newProcess(s *Simulation, name string, config ProcessConfig) *Process {
	p := s.assemble(name, config, func(p *Process) func(*model.Request, func() error) error { return p.send })
	ids := 0
	// The IDs of a process's Pods begin with the last letter of its name: "a" for the first process.
	p.reconciler.NewID = func() string { ids++; return fmt.Sprintf("%s%02d", name[len(name)-1:], ids) }
	p.handlers = map[model.Kind]handler.EventHandler{
		model.Pods: p.reconciler.PodEvents(), model.Claims: p.reconciler.ClaimEvents(), model.Nodes: p.reconciler.NodeEvents(),
	}
	p.queue = &queue{world: s.World, work: p.work}
	shown := map[types.UID]keptPod{}
	kept := func(object client.Object) client.Object {
		pod, ok := object.(*corev1.Pod)
		if !ok {
			return object
		}
		if shown[pod.UID].of != pod { // like informers, which keep a Pod once
			shown[pod.UID] = keptPod{pod, p.pods.Keep(pod)}
		}
		return shown[pod.UID].Pod
	}
	watched := cloneset.New(p.reconciler.Client, nil, nil, cloneset.Options{})
	p.reconciler.ListPods = func(ctx context.Context, namespace, owner string) ([]*corev1.Pod, error) {
		p.looked()
		return watched.WatchedPods(ctx, namespace, owner)
	}
	for _, kind := range kinds {
		lag, ok := config.Lags[kind]
		if !ok {
			lag = config.Lag
		}
		changed := func(before, after client.Object) {
			if kind == model.Pods {
				dispatch(watched.PodEvents(), kept(before), kept(after), &queue{stopped: true}) // a queue to discard
			}
			p.later(kind, before, after)
		}
		p.caches[kind] = &watch{Cache: model.NewCache(s.Server, kind, changed), world: s.World, lag: lag}
		p.caches[kind].Report()
	}
	return p
}

// keptPod is the part of a Pod that the process keeps.
type keptPod struct {
	of *corev1.Pod
	*corev1.Pod
}

// decide plans, and records what the process knows. It takes some time if many writes may be under way.
func (p *Process) decide(s *plan.Snapshot) plan.Plan {
	if p.config.Parallel <= 1 {
		s.Starts = p.config.Starts
	}
	if p.pass.known == nil {
		p.pass.known = p.known.clone()
	}
	p.pass.decidedAt, p.latest = len(p.Server.Log[model.Pods]), p.pass
	decide := p.config.Planner
	if decide == nil {
		decide = func(_ *Process, s *plan.Snapshot) plan.Plan { return plan.Make(s) }
	}
	p.pass.snapshot, p.pass.plan = s, decide(p, s)
	p.judgeNewest(s)
	if p.config.Parallel > 1 { // so passes pause
		p.World.pass(time.Duration(len(s.Pods)) * 50 * time.Microsecond)
	}
	for i := range p.pass.plan.Actions {
		if len(p.pass.plan.Trials) > 0 {
			break // the pass decides again after the trials
		}
		p.World.say(p.name, "decides to %s", p.pass.plan.Actions[i])
	}
	return p.pass.plan
}

// handle does what the controller's event handlers do.
func (p *Process) handle(kind model.Kind, before, after client.Object) {
	p.handling = true
	defer func() { p.handling = false }()
	request := reconcile.Request{NamespacedName: p.key}
	switch kind {
	case model.CloneSets:
		if before == nil || after == nil || p.reconciler.SetChanged(before, after) {
			p.queue.Add(request)
		}
	case model.Revisions:
		if model.OwnerOf(cmp.Or(after, before)) != model.Orphan {
			p.queue.Add(request)
		}
	default:
		dispatch(p.handlers[kind], before, after, p.queue)
	}
}

func dispatch(to handler.EventHandler, before, after client.Object, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	ctx := context.Background()
	switch {
	case before == nil:
		to.Create(ctx, event.CreateEvent{Object: after}, queue)
	case after == nil:
		to.Delete(ctx, event.DeleteEvent{Object: before}, queue)
	default:
		to.Update(ctx, event.UpdateEvent{ObjectOld: before, ObjectNew: after}, queue)
	}
}

// mostVain is how many passes in a row may change nothing.
const mostVain = 300

// work runs one pass.
func (p *Process) work(request reconcile.Request) (reconcile.Result, error) {
	if seen := len(p.Server.Log[model.Pods]) + len(p.Server.Log[model.CloneSets]) + len(p.Server.Log[model.Claims]); seen != p.lastSeen {
		p.lastSeen, p.vain = seen, 0
	}
	if p.vain++; p.vain > mostVain {
		p.World.fail("it does not spin", "%d passes in a row, and nothing has changed anywhere", p.vain)
	}
	p.pass = &pass{}
	result, err := p.reconciler.Reconcile(log.IntoContext(context.Background(), p.config.Logger), request)
	if err != nil && !p.dead {
		p.World.say(p.name, "the pass fails: %v", err)
	}
	p.adapts()
	return result, err
}

// began records the starting point of a pass.
func (p *Process) began(set *apps.CloneSet) {
	if p.learnedSet != nil && p.learnedSet.UID == set.UID && model.Version(p.learnedSet) > model.Version(set) {
		set = p.learnedSet
	}
	p.pass.set, p.pass.now = set, p.World.now()
}

// looked records the Pods as the cache shows them.
func (p *Process) looked() {
	cache := p.caches[model.Pods]
	p.pass.upTo = map[model.Kind]int{model.Pods: cache.Applied, model.Claims: p.caches[model.Claims].Applied}
	p.pass.base = maps.Clone(cache.Objects)
	p.pass.known = p.known.clone()
}

// observing reports whether the pass itself asks the server, and has yet to decide.
func (p *Process) observing() bool {
	return p.pass.known != nil && p.pass.decidedAt == 0 && !p.returning[p.World.doing]
}

// crash ends the process: its writes stay, its memory is lost.
func (p *Process) crash() {
	p.World.say(p.name, "the process dies")
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
	r.process.World.say(r.process.name, "event "+reason+": "+note, args...)
}

// queue is a work queue with one worker, for the request of the one set. If that is added while it is
// processed, it waits.
type queue struct {
	// The methods below are all that event handlers use of a work queue.
	priorityqueue.PriorityQueue[reconcile.Request]

	world         *World
	work          func(reconcile.Request) (reconcile.Result, error)
	request       reconcile.Request
	busy, waiting bool
	// due is when a delayed request is added; zero if there is none.
	due time.Time
	// failures counts consecutive failures, for the backoff.
	failures         int
	stopped, planned bool
}

// AddWithOpts adds requests. There is one set, so that priorities do not matter.
func (q *queue) AddWithOpts(o priorityqueue.AddOpts, requests ...reconcile.Request) {
	for _, r := range requests {
		if o.After > 0 {
			q.AddAfter(r, o.After)
		} else {
			q.Add(r)
		}
	}
}

// Add adds a request unless it is already queued.
func (q *queue) Add(r reconcile.Request) {
	if !q.stopped && !q.waiting {
		q.request, q.waiting = r, true
		q.wake()
	}
}

// AddAfter adds a request later. Of several times only the earliest counts, as in a real
// queue.
func (q *queue) AddAfter(r reconcile.Request, delay time.Duration) {
	if q.stopped {
		return
	}
	at := q.world.now().Add(delay)
	if !q.due.IsZero() && !q.due.After(at) {
		return
	}
	q.due = at
	q.world.after(delay, func() {
		if q.due.Equal(at) {
			q.due = time.Time{}
			q.Add(r)
		}
	})
}

func (q *queue) wake() {
	if q.busy || q.planned || q.stopped || !q.waiting {
		return
	}
	q.planned = true
	q.world.after(q.world.between(0, time.Millisecond), q.run)
}

// run processes the request that waits.
func (q *queue) run() {
	q.planned = false
	if q.stopped {
		return
	}
	q.waiting, q.busy = false, true
	result, err := q.work(q.request)
	q.busy = false
	if !q.stopped {
		q.finish(result, err)
		q.wake()
	}
}

// finish handles the result of a pass as controller-runtime does.
func (q *queue) finish(result reconcile.Result, err error) {
	if err != nil {
		delay := 5 * time.Millisecond << min(q.failures, 17)
		q.failures++
		q.AddAfter(q.request, min(delay, 1000*time.Second))
		return
	}
	q.failures = 0
	if result.RequeueAfter > 0 {
		q.AddAfter(q.request, result.RequeueAfter)
	}
}
