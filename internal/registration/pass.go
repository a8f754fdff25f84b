// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/kube"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/pace"
	"github.com/usher-dev/usher/internal/registration/plan"
)

const (
	// restFactor is how many times longer than its own work the pause after a pass is, so
	// that passes over one namespace take a quarter of a processor. While Pods end the pause is as
	// long as the work, and passes take half a processor.
	restFactor = 3
	// maxPause bounds the pause.
	maxPause = time.Second / 2
)

// pass is one pass over a namespace.
type pass struct {
	*Reconciler
	snapshot plan.Snapshot
	notes    *notes
	// objects are the Registry objects by name.
	objects map[string]*usherv1alpha1.Registry
	// fresh are Pods that this pass has read from the API server, or written.
	fresh map[types.UID]bool
	// asked are the namespaces whose Registrations the snapshot knows.
	asked map[string]bool
	// written counts the writes to Registrations and Registries.
	written int
	// errs fail the pass once it is over.
	errs []error
	// unpatched are the Registrations of Pods whose patches failed or were postponed, so that their conditions may
	// wrongly say that nothing is left to do; needed are the targets of these.
	unpatched map[string]bool
	needed    map[plan.Target]bool
	postponed bool
	// spent is how long listing and planning have taken.
	spent time.Duration
	// retry is when to try again what failed, zero if nothing did.
	retry time.Time
}

// again asks for another pass after d.
func (p *pass) again(d time.Duration) { p.retry = list.Earliest(p.retry, p.clock.Now().Add(d)) }

// notes are what the passes over a namespace remember. They run one at a time.
type notes struct {
	// dirty are targets that were written to, and not listed as they should be since.
	dirty map[plan.Target]bool
	// swept is when a target's orphans were last looked for.
	swept    map[plan.Target]time.Time
	suspects map[plan.Target]map[string]bool
	// left is how many orphans the last sweep of a target left there.
	left map[plan.Target]int
	// answered are values of Pods' annotations that name Registrations of which nobody need be asked any more.
	answered map[string]bool
	// confirmed are Registrations that were once read from the API server.
	confirmed map[types.UID]bool
	// refusals are keys of Pods that the API server has refused, by the Pod's UID.
	refusals map[types.UID]refusal
	// pace is when the next pass may begin. A Pod that ends, and that registries may list, is urgent.
	pace pace.Pace
	// turn is the Pod whose patch was postponed.
	turn string
	// changed are the Services that have changed since the last pass began, or whose EndpointSlices have.
	changed map[string]bool
	// unlisted are Pods that their Services may not list.
	unlisted plan.Unlisted
	// followed is what targets listed last whose entries somebody else writes.
	followed map[plan.Target]followed
	// waits are the open waits in the log, and since when.
	waits map[plan.Waiting]time.Time
	// plans is the memory of the planner, and kept what it is accounted for, in bytes.
	plans *plan.Memory
	kept  int64
}

func (r *Reconciler) notesOf(namespace string) *notes {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.notes[namespace] == nil {
		r.notes[namespace] = &notes{
			dirty: map[plan.Target]bool{}, swept: map[plan.Target]time.Time{}, suspects: map[plan.Target]map[string]bool{},
			left: map[plan.Target]int{}, confirmed: map[types.UID]bool{}, refusals: map[types.UID]refusal{},
			plans: &plan.Memory{}, followed: map[plan.Target]followed{},
		}
	}
	return r.notes[namespace]
}

// Reconcile makes one pass over a namespace: the name of the request.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	if wait := r.notesOf(request.Name).pace.Begin(r.clock.Now()); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	r.begin(request.Name)
	ctx, release := r.answers.Share(ctx)
	defer release()
	p, err := r.observe(ctx, request.Name)
	if err != nil {
		return ctrl.Result{}, err
	}
	defer p.forgetNamespace() // after all else
	defer p.keep()
	p.snapshot.Now = r.clock.Now()
	p.confirmReturns(ctx)
	targets := plan.Targets(p.snapshot)
	p.forget(targets)
	sweep := p.sweepDue(targets, p.snapshot.Now)
	p.list(ctx, timed(p, func() []plan.Target { return plan.Needs(p.snapshot) }))
	decided, err := p.execute(ctx, p.decide())
	if err != nil {
		return ctrl.Result{}, err
	}
	p.patchPods(ctx, decided.Patches)
	p.finishPods(ctx, decided)
	p.settle(decided)
	p.finish(ctx, decided)
	p.logWaits(ctx, decided.Waiting)
	p.announce(decided)
	p.pause()
	if err := errors.Join(p.errs...); err != nil {
		return ctrl.Result{}, err
	}
	next := list.Earliest(decided.RequeueAt, sweep, p.retry)
	if next.IsZero() {
		return ctrl.Result{}, nil
	}
	return ctrl.Result{RequeueAfter: max(next.Sub(r.clock.Now()), batchDelay)}, nil
}

// keep ends a pass. What was listed is kept for the next one, unless that is too much beside what
// others keep.
func (p *pass) keep() {
	p.notes.plans.Release()
	size := p.notes.plans.Size()
	if !p.answers.Keep(p.notes.kept, size) {
		p.notes.plans.Forget()
		size = 0
	}
	p.notes.kept = size
}

// timed measures a step of the pass's own work: listing and planning, not waiting for the API
// server.
func timed[T any](p *pass, step func() T) T {
	began := p.clock.Now()
	defer func() { p.spent += p.clock.Now().Sub(began) }()
	return step()
}

// pause postpones the next pass. To list a large service takes long, whether one Pod has changed or a thousand. So a
// pass that took long is followed by a longer pause, in which changes gather, unless it has left something to the
// next. A Pod that ends shortens the pause.
func (p *pass) pause() {
	if rest := min(restFactor*p.spent, maxPause); rest > batchDelay && !p.postponed {
		now := p.clock.Now()
		p.notes.pace.Rest(now.Add(rest), now.Add(min(p.spent, maxPause)))
	}
}

// hurry shortens the pause: a Pod ends that registries may list.
func (r *Reconciler) hurry(namespace string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.notes[namespace]; n != nil {
		n.pace.Hurry()
	}
}

func (p *pass) decide() plan.Plan {
	decided := timed(p, func() plan.Plan { return plan.Make(p.snapshot) })
	p.notes.unlisted = decided.Unlisted // also if the pass fails
	return decided
}

// settle forgets targets that were written to and are in order. It forgets none of a Pod whose patch has
// failed: the next pass must list them again.
func (p *pass) settle(decided plan.Plan) {
	wrong := map[plan.Target]bool{}
	for _, c := range decided.Changes {
		wrong[c.Target] = !c.Empty()
	}
	for target := range p.snapshot.Listings {
		if p.needed[target] {
			p.notes.dirty[target] = true
		}
	}
	maps.DeleteFunc(p.notes.dirty, func(target plan.Target, _ bool) bool {
		listing, ok := p.snapshot.Listings[target]
		return ok && listing.Err == nil && !wrong[target] && !p.needed[target]
	})
}

// finish writes statuses, and removes the finalizers of Registrations that are done.
func (p *pass) finish(ctx context.Context, decided plan.Plan) {
	// Include what failed in this pass.
	for name, state := range p.snapshot.Registries {
		_, state.Err = p.pool.down(name)
		p.snapshot.Registries[name] = state
	}
	var shown []gauge
	for _, o := range decided.Outcomes {
		if p.unpatched[o.Registration.Name] { // a Pod's record may lack what this pass has seen: its targets are still needed
			o.Released, o.Kept = false, o.Registration.Status.Targets
		}
		if vanished(o.Registration) {
			p.failed(ctx, o.Registration, p.dropUsers(ctx, o.Registration.Name, o.Kept))
			continue
		}
		status := plan.Status(o, p.snapshot.Registries, p.snapshot.Now)
		shown = append(shown, gaugesOf(p.snapshot.Namespace, o, status)...)
		p.failed(ctx, o.Registration, client.IgnoreNotFound(p.finishOne(ctx, o, status)))
	}
	p.metrics.registrations.Put(p.snapshot.Namespace, metricsOf(shown))
}

func (p *pass) finishOne(ctx context.Context, o plan.Outcome, status usherv1alpha1.RegistrationStatus) error {
	r := o.Registration
	// Most statuses are the same in memory, which is seen sooner.
	same := reflect.DeepEqual(status, r.Status) || equality.Semantic.DeepEqual(status, r.Status)
	if !o.Released && !same {
		next := r.DeepCopy()
		next.Status = status
		if err := p.write(ctx, "write the status of Registration", r, next, true); err != nil {
			return err
		}
	}
	if err := p.dropUsers(ctx, r.Name, o.Kept); err != nil || !o.Released {
		return err
	}
	next := r.DeepCopy()
	if !controllerutil.RemoveFinalizer(next, usherv1alpha1.Finalizer) {
		return nil
	}
	return p.write(ctx, "remove the finalizer from Registration", r, next, false)
}

// failed notes a write that failed. An object that changed during the pass is left to the next one. What the API
// server refuses of one object must not delay others, as an error of the pass would: an event names that object,
// and it is tried again.
func (p *pass) failed(ctx context.Context, about client.Object, err error) {
	switch {
	case err == nil:
	case apierrors.IsConflict(err):
		p.again(soon)
	case kube.Refused(err):
		log.FromContext(ctx).Error(err, "The API server refuses a write", "object", about.GetName())
		p.announcer.warn(about, eventRefused, actionWrite, err.Error())
		p.again(refusedRetry)
	default:
		p.errs = append(p.errs, err)
	}
}
