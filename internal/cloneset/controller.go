// SPDX-License-Identifier: Apache-2.0

// Package cloneset keeps CloneSets: it observes a set, has package plan decide,
// carries the plan out and writes the status. All decisions are package plan's.
package cloneset

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/announce"
	"github.com/usher-dev/usher/internal/plan"
)

// +kubebuilder:rbac:groups=apps.kruise.io,resources=clonesets,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=apps.kruise.io,resources=clonesets/status,verbs=patch
// +kubebuilder:rbac:groups=apps.kruise.io,resources=clonesets/finalizers,verbs=update
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=pods/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=pods/resize,verbs=patch
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=apps,resources=controllerrevisions,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// retryMin and retryMax bound the back-off of a set whose pass failed.
const (
	retryMin = 5 * time.Millisecond
	retryMax = 30 * time.Second
)

// Options tune the controller.
type Options struct {
	// Sets is how many CloneSets are worked on at a time. Default: 8.
	Sets int
	// Parallel is how many Pods of one set are written at a time. One pass creates
	// or removes as many, and updates half as many: the other half are those that
	// come back. Default: 32.
	Parallel int
	// KeepFieldManagers leaves metadata.managedFields of Pods to the API server.
	// Default: those of Pods that nobody applies to server-side are dropped, which
	// halves what each later write of the Pod costs.
	KeepFieldManagers bool
	// Clock tells the time. Default: the machine's.
	Clock clock.PassiveClock
	// Registerer takes the metrics. Default: controller-runtime's.
	Registerer prometheus.Registerer
}

func (o Options) withDefaults() Options {
	if o.Sets == 0 {
		o.Sets = 8
	}
	if o.Parallel == 0 {
		o.Parallel = 32
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Registerer == nil {
		o.Registerer = ctrlmetrics.Registry
	}
	return o
}

// Reconciler keeps CloneSets. Make one with New.
type Reconciler struct {
	// Client reads from the cache and writes to the API server.
	Client client.Client
	// Strict is Client with strict field validation, for Pods from raw templates.
	Strict client.Client
	// Reader reads from the API server.
	Reader client.Reader
	// Events records what users are to know.
	Events  events.EventRecorder
	Options Options
	Clock   clock.PassiveClock
	// Plan decides what a set needs. Default: plan.Make.
	Plan func(*plan.Snapshot) plan.Plan
	// ListPods lists Pods of a namespace by their controller's UID, or those without
	// one, as the cache shows them: the cache's own, which nobody may change. Default:
	// by Client, whose lists hold copies.
	ListPods PodLister
	// NewID names a Pod. Default: five random characters.
	NewID func() string

	writes     *writes
	claims     *claimWrites
	departures *departures
	answers    *answers
	refusals   *refusals
	// claimRefusals are those of claim templates.
	claimRefusals *refusals
	metrics       *metrics
	told          *told
	drains        *drains
	readings      *readings
}

// New makes a Reconciler, whose metrics Setup registers. Reader must not be a
// cache.
func New(c client.Client, reader client.Reader, recorder events.EventRecorder, options Options) *Reconciler {
	options = options.withDefaults()
	m := newMetrics(options.Clock.Now)
	c = &countingClient{Client: c, writes: func() *prometheus.CounterVec { return m.writes }}
	return &Reconciler{
		Client: c, Strict: client.WithFieldValidation(c, metav1.FieldValidationStrict), Reader: reader, Events: recorder,
		Options: options, Clock: options.Clock,
		Plan: plan.Make, ListPods: byClient(c), NewID: func() string { return rand.String(5) },
		writes: newOverlay[*corev1.Pod](), claims: newOverlay[*corev1.PersistentVolumeClaim](), departures: newDepartures(),
		answers: newAnswers(), refusals: newRefusals(), claimRefusals: newRefusals(),
		metrics: m, told: newTold(), drains: newDrains(), readings: newReadings(),
	}
}

// Setup adds the controller to a manager.
func Setup(ctx context.Context, mgr ctrl.Manager, options Options) error {
	recorder, err := announce.Recorder(mgr, "usher-cloneset")
	if err != nil {
		return err
	}
	r := New(mgr.GetClient(), mgr.GetAPIReader(), recorder, options)
	if err := r.metrics.register(r.Options.Registerer); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	if r.ListPods, err = indexPods(ctx, mgr.GetCache(), mgr.GetClient()); err != nil {
		return err
	}
	for _, object := range []client.Object{&corev1.PersistentVolumeClaim{}, &appsv1.ControllerRevision{}} {
		if err := mgr.GetFieldIndexer().IndexField(ctx, object, indexOwner, ownerOf); err != nil {
			return fmt.Errorf("index %T by owner: %w", object, err)
		}
	}
	setEvents := predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool { return r.SetChanged(e.ObjectOld, e.ObjectNew) }}
	err = ctrl.NewControllerManagedBy(mgr).Named("cloneset").
		For(&apps.CloneSet{}, builder.WithPredicates(setEvents)).
		Owns(&appsv1.ControllerRevision{}).
		Watches(&corev1.Pod{}, r.PodEvents()).
		Watches(&corev1.PersistentVolumeClaim{}, r.ClaimEvents()).
		WithOptions(controllerOptions(r.Options.Sets)).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set up the CloneSet controller: %w", err)
	}
	return nil
}

func controllerOptions(sets int) controller.Options {
	// controller-runtime's priority queue can block for ever when it is shut down
	// (kubernetes-sigs/controller-runtime#3538), and nothing here has a priority.
	priorities := false
	return controller.Options{
		MaxConcurrentReconciles: sets, UsePriorityQueue: &priorities,
		RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](retryMin, retryMax),
	}
}

// invalidError is a set for which no plan can be made until somebody mends it. It
// is told in conditions and one event.
type invalidError struct {
	// reason is that of the conditions.
	reason string
	// retry says that what is wrong is not the spec alone.
	retry bool
	err   error
}

func (e *invalidError) Error() string { return e.err.Error() }
func (e *invalidError) Unwrap() error { return e.err }

// invalid is a spec that admission should have refused: only the user can mend it.
func invalid(err error) error { return &invalidError{reason: ReasonSpecInvalid, err: err} }

// unusable is a template of which no revision can be made.
func unusable(err error) error {
	return &invalidError{reason: ReasonRevisionUnusable, retry: true, err: err}
}

// Reconcile makes one pass over a set.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	start := r.Clock.Now()
	set, err := r.readSet(ctx, req.NamespacedName)
	if set == nil {
		if err == nil {
			r.forget(req.NamespacedName)
		}
		return reconcile.Result{}, err
	}
	result, err := r.pass(ctx, set)
	r.metrics.passes.Observe(r.Clock.Since(start).Seconds())
	if unanswered(err) {
		r.answers.lose(req.NamespacedName)
	}
	if terminating(err) {
		return reconcile.Result{}, nil // everything in the namespace goes, the set too
	}
	return result, err
}

// forget frees what is kept about a set that is gone.
func (r *Reconciler) forget(set types.NamespacedName) {
	r.answers.forget(set)
	r.metrics.sets.forget(set)
	r.told.forget(set)
	r.readings.forget(set)
	r.refusals.forget(set)
	r.claimRefusals.forget(set)
	r.departures.drop(set)
}

// terminating says that a write was refused because the namespace is going.
func terminating(err error) bool {
	return apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}

// pass makes one pass over a set as it was read.
func (r *Reconciler) pass(ctx context.Context, set *apps.CloneSet) (reconcile.Result, error) {
	now := r.Clock.Now()
	snapshot, known, err := r.observe(ctx, set, now)
	var bad *invalidError
	if errors.As(err, &bad) {
		return reconcile.Result{}, r.reportInvalid(ctx, set, bad, now)
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	decided := r.Plan(snapshot)
	outcomes := r.execute(ctx, set, decided.Actions)
	if anyUnanswered(outcomes) {
		r.answers.lose(client.ObjectKeyFromObject(set))
	}
	pruned := r.pruneRevisions(ctx, set, known, snapshot.Pods)
	left := afterwards(snapshot, outcomes)
	counts, blocked := plan.Review(left)
	r.readings.keep(keyOf(set), left.Readings, atRest(counts, &decided, left))
	r.metrics.passed(set, decided.Actions, blocked, outcomes, left)
	next, due := nextStatus(set, left, counts, known, find(&decided, blocked, outcomes))
	var written error
	if !canWait(&set.Status, &next, outcomes) {
		written = r.writeStatus(ctx, set, next)
	}
	trimmed := r.trim(ctx, set, &decided, outcomes)
	for _, at := range []time.Time{due, longWaitAt(blocked, now), r.writes.doubtAt(set.UID), r.claims.doubtAt(set.UID)} {
		if !at.IsZero() {
			decided.RequeueAt = earlier(decided.RequeueAt, at)
		}
	}
	r.tell(set, &decided, blocked, outcomes, now)
	if written == nil {
		r.tellProgress(set, &next)
	}
	return after(&decided, outcomes, now, errors.Join(pruned, written, trimmed))
}

// reportInvalid says what is wrong, and touches nothing.
func (r *Reconciler) reportInvalid(ctx context.Context, set *apps.CloneSet, bad *invalidError, now time.Time) error {
	next := *set.Status.DeepCopy()
	next.ObservedGeneration = set.Generation
	found := finding{bad.reason, bad.Error()}
	if !holdsFinding(&next, apps.ConditionFailedUpdate, found) {
		r.warn(set, bad.reason, "Validate", "%v", bad)
	}
	setCondition(&next, apps.ConditionFailedScale, found, now)
	setCondition(&next, apps.ConditionFailedUpdate, found, now)
	err := r.writeStatus(ctx, set, next)
	if err == nil && bad.retry {
		err = bad
	}
	return err
}

// after says when the next pass is due. A write that failed, and what failed after
// the actions (late), is retried with back-off; an action that met a changed Pod is
// decided anew at once.
func after(decided *plan.Plan, outcomes []outcome, now time.Time, late error) (reconcile.Result, error) {
	if late != nil {
		return reconcile.Result{}, late
	}
	var failures []error
	again := decided.More
	for _, o := range outcomes {
		switch {
		case o.err == nil:
		case o.stale():
			again = true
		default:
			failures = append(failures, o.err)
		}
	}
	at := decided.RequeueAt
	if len(failures) > 0 {
		first := failures[0]
		if !apierrors.IsForbidden(first) && !apierrors.IsInvalid(first) {
			return reconcile.Result{}, fmt.Errorf("%d of %d writes failed, the first one: %w", len(failures), len(outcomes), first)
		}
		// Told in a condition and an event; only a change elsewhere mends it. What
		// was not refused goes on.
		at = earlier(at, now.Add(refusedFor))
	}
	if again && len(failures) == 0 {
		return reconcile.Result{RequeueAfter: time.Millisecond}, nil
	}
	if at.IsZero() {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{RequeueAfter: max(at.Sub(now), time.Millisecond)}, nil
}

// earlier is the earlier of two times, of which the first may be unset.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}
