// SPDX-License-Identifier: Apache-2.0

// Package cloneset reconciles CloneSets: it observes a set, lets package plan decide,
// executes the plan and writes the status. Package plan makes all decisions.
package cloneset

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
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
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/cloneset/width"
	"github.com/usher-dev/usher/internal/kube"
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
const retryMin, retryMax = 5 * time.Millisecond, 30 * time.Second

// Options tune the controller.
type Options struct {
	// Parallel is how many Pods of one set are written at a time at most. Package width finds out from
	// the latency of writes how many the API server takes. Default: 128.
	Parallel int
	// KeepFieldManagers preserves metadata.managedFields of Pods. Default: the controller drops it from
	// Pods that it has created and that nobody uses server-side apply on. That halves the cost of each
	// later write of the Pod.
	KeepFieldManagers bool
	// NoResize means that the API server has no subresource pods/resize. Pods whose cpu
	// or memory changes are then recreated or, with InPlaceOnly, left alone.
	NoResize bool
	// LeaveNodes says which nodes Pods leave before they are evicted. Default: plan.LeaveCordoned.
	LeaveNodes plan.LeaveNodes
	// PullImage is Usher's own image, for the Pods that have nodes pull images before Pods leave
	// service. Default: no image is pulled before that.
	PullImage string
	// Keep returns the part to keep of a Pod that the API server has returned, as the cache does for
	// its Pods. It does not change its argument, and returns a kept Pod as it is. Default: the whole
	// Pod.
	Keep func(*corev1.Pod) *corev1.Pod
	// Clock is the time source. Default: the machine's clock.
	Clock clock.PassiveClock
}

// defaultParallel suffices for 1,000 writes a second over a connection of 100 ms.
const defaultParallel = 128

// Reconciler reconciles CloneSets. Create one with New.
type Reconciler struct {
	// Client reads from the cache and writes to the API server.
	Client client.Client
	// Reader reads from the API server.
	Reader client.Reader
	// Events records events for users.
	Events  events.EventRecorder
	Options Options
	Clock   clock.PassiveClock
	// Plan decides what a set needs. Default: plan.Make.
	Plan func(*plan.Snapshot) plan.Plan
	// Return decides whether a Pod returns during a pass. Default: plan.Return.
	Return func(*plan.Snapshot, *corev1.Pod, time.Time) (plan.Action, bool)
	// ListPods lists Pods as the cache shows them. Default: list by Client, which copies and
	// sorts; Setup sets WatchedPods.
	ListPods Lister[*corev1.Pod]
	// NewID names a Pod. Default: five random characters.
	NewID func() string
	// Width is how many writes of a set are under way at a time. Default: a width.Width of at
	// most Options.Parallel.
	Width Width
	// Each calls do for 0 to times-1, starting the calls in this order, at most limit() of them at a
	// time. limit is asked before each start and returns at least 1. Default: in goroutines.
	Each func(limit func() int, times int, do func(int))
	// Background starts do in the background, and returns a function that waits for its end. Default:
	// in a goroutine.
	Background func(do func()) (wait func())

	roster    *roster
	pods      overlay[*corev1.Pod]
	claims    overlay[*corev1.PersistentVolumeClaim]
	revisions overlay[*appsv1.ControllerRevision]
	// listClaims and listRevisions list as the cache shows them.
	listClaims    Lister[*corev1.PersistentVolumeClaim]
	listRevisions Lister[*appsv1.ControllerRevision]
	metrics       *metrics
	// progress limits the status writes that report only progress.
	progress *rate.Limiter
	// states holds a *setState for each set, by name.
	states sync.Map
}

// Width is the interface of a width.Width.
type Width interface {
	Now() int
	Begin()
	Failed()
	Done(kind string, took time.Duration, tooMany bool)
}

// New returns a Reconciler, whose metrics Setup registers. Reader must not be a cache.
func New(c client.Client, reader client.Reader, recorder events.EventRecorder, options Options) *Reconciler {
	options.Parallel = cmp.Or(options.Parallel, defaultParallel)
	options.LeaveNodes = cmp.Or(options.LeaveNodes, plan.LeaveCordoned)
	options.Clock = cmp.Or[clock.PassiveClock](options.Clock, clock.RealClock{})
	return &Reconciler{
		Client: c, Reader: reader, Events: recorder, Options: options, Clock: options.Clock,
		Plan: plan.Make, Return: plan.Return, NewID: func() string { return rand.String(5) },
		Width: width.New(options.Parallel), Each: inGoroutines, Background: inGoroutine,
		ListPods:      byClient[*corev1.Pod](c, &corev1.PodList{}),
		listClaims:    byClient[*corev1.PersistentVolumeClaim](c, &corev1.PersistentVolumeClaimList{}),
		listRevisions: byClient[*appsv1.ControllerRevision](c, &appsv1.ControllerRevisionList{}),
		roster:        &roster{lists: map[rosterKey]*rosterList{}}, metrics: newMetrics(options.Clock.Now),
		pods: newOverlay(options.Keep), claims: newOverlay[*corev1.PersistentVolumeClaim](nil), revisions: newOverlay[*appsv1.ControllerRevision](nil),
		progress: rate.NewLimiter(progressPerSecond, progressBurst),
	}
}

// Setup adds the controller to a manager.
func Setup(ctx context.Context, mgr ctrl.Manager, options Options) error {
	recorder, err := announce.Recorder(mgr, "usher-cloneset")
	if err != nil {
		return err
	}
	c, err := withPromptDeletes(mgr)
	if err != nil {
		return err
	}
	r := New(c, mgr.GetAPIReader(), recorder, options)
	if err := r.metrics.register(ctrlmetrics.Registry); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	r.ListPods = r.WatchedPods
	for _, object := range []client.Object{&corev1.PersistentVolumeClaim{}, &appsv1.ControllerRevision{}} {
		if err := mgr.GetFieldIndexer().IndexField(ctx, object, indexOwner, ownerOf); err != nil {
			return fmt.Errorf("index %T by owner: %w", object, err)
		}
	}
	setEvents := predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool { return r.SetChanged(e.ObjectOld, e.ObjectNew) }}
	b := ctrl.NewControllerManagedBy(mgr).Named("cloneset").
		For(&apps.CloneSet{}, builder.WithPredicates(setEvents)).
		Owns(&appsv1.ControllerRevision{}).
		Watches(&corev1.Pod{}, r.PodEvents()).
		Watches(&corev1.PersistentVolumeClaim{}, r.ClaimEvents()).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: setsAtOnce, UsePriorityQueue: new(true),
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](retryMin, retryMax),
		}).
		WithLogConstructor(kube.Logger(mgr, "cloneset", "cloneset"))
	if err := r.watchNodes(ctx, mgr, b); err != nil {
		return err
	}
	if err := b.Complete(r); err != nil {
		return fmt.Errorf("set up the CloneSet controller: %w", err)
	}
	return nil
}

// setsAtOnce is how many CloneSets are reconciled at a time. That many writes keep an API server busy,
// if each of them may have only one Pod out of service; with more, Pods that return to service would
// wait at the API server behind Pods that leave it.
const setsAtOnce = 16
