// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/kube"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry/kinds"
)

const (
	// probeSlack is how much longer passes leave a registry alone than probes do: no Pod
	// waits for a probe, so it should be the first to call.
	probeSlack = time.Second
	// probeBacklog bounds the Registries on their way between passes and probes.
	probeBacklog = 64
)

// BuiltIn is the name of the Registry of the kind service that Usher makes.
const BuiltIn = "service"

// Reasons of the condition Reachable.
const (
	reasonReachable = "Reachable"
	reasonInUse     = "InUse"
)

func (r *Reconciler) watchRegistries(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("registry").
		WithOptions(controllerOptions(probes)).
		WithLogConstructor(kube.Logger(mgr, "registration", keyRegistry)).
		For(&usherv1alpha1.Registry{}, builder.WithPredicates(specChanged)).
		Watches(&usherv1alpha1.Registration{}, handler.EnqueueRequestsFromMapFunc(r.leavingRegistries)).
		WatchesRawSource(source.Channel(r.probes, &handler.EnqueueRequestForObject{})).
		WatchesRawSource(source.Func(func(_ context.Context, q queue) error {
			q.Add(ctrl.Request{NamespacedName: types.NamespacedName{Name: BuiltIn}})
			return nil
		})).
		Complete(reconcile.Func(r.ReconcileRegistry))
}

// enqueueRegistry sends a Registry on without waiting. If too many are on their way, the
// regular probes and passes follow.
func enqueueRegistry(to chan<- event.GenericEvent, object *usherv1alpha1.Registry) {
	select {
	case to <- event.GenericEvent{Object: object}:
	default:
	}
}

// leavingRegistries are those that are being deleted, and may be without users now.
func (r *Reconciler) leavingRegistries(ctx context.Context, _ client.Object) []ctrl.Request {
	objects, err := r.registries(ctx)
	if err != nil {
		return nil
	}
	leaving := list.Only(objects, func(r *usherv1alpha1.Registry) bool { return r.DeletionTimestamp != nil })
	return list.Map(leaving, func(r *usherv1alpha1.Registry) ctrl.Request {
		return ctrl.Request{NamespacedName: client.ObjectKeyFromObject(r)}
	})
}

// ReconcileRegistry probes one Registry, and writes into its status whether it answers.
func (r *Reconciler) ReconcileRegistry(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	object, err := read[usherv1alpha1.Registry](ctx, r.client, "Registry", request.NamespacedName)
	if err != nil {
		return ctrl.Result{}, err
	}
	if object == nil {
		return ctrl.Result{}, r.forgetRegistry(ctx, request.Name)
	}
	if object.DeletionTimestamp != nil {
		free, err := r.free(ctx, object)
		if err != nil || free {
			return ctrl.Result{}, err
		}
	}
	if err := r.recall(ctx, object.Name); err != nil {
		return ctrl.Result{}, err
	}
	// The next probe follows when the back-off is over, otherwise with the next comparison of
	// entries.
	next := repairOf(object)
	err = r.ping(ctx, object)
	if err != nil {
		if ctx.Err() != nil {
			return ctrl.Result{}, ctx.Err()
		}
		next = r.backOff(ctx, object, err)
		r.announceCopy(object, err)
	} else if r.pool.endBackOff(object.Name) {
		log.FromContext(ctx).Info("Registry answers again", keyRegistry, object.Name)
		enqueueRegistry(r.back, object)
	}
	err = r.writeStatus(ctx, object, err)
	if apierrors.IsConflict(err) {
		// The cache does not show the last write yet, perhaps one of a pass.
		return ctrl.Result{RequeueAfter: min(next, soon)}, nil
	}
	return ctrl.Result{RequeueAfter: next}, err
}

// forgetRegistry forgets a Registry that does not exist, or makes the built-in one.
func (r *Reconciler) forgetRegistry(ctx context.Context, name string) error {
	r.pool.forget(name)
	r.metrics.forgetRegistry(name)
	if name == BuiltIn {
		return r.makeBuiltIn(ctx)
	}
	return nil
}

func (r *Reconciler) ping(ctx context.Context, object *usherv1alpha1.Registry) error {
	// A probe belongs to no Registration; Ping needs no namespace.
	_, settings := kinds.Of(object, "")
	c, err := r.pool.get(ctx, object, settings.Root, true)
	if err != nil {
		return err
	}
	ctx, release := r.answers.Share(ctx)
	defer release()
	err = c.Ping(ctx)
	r.pool.noteCall(ctx, object.Name, err)
	return err
}

func (r *Reconciler) writeStatus(ctx context.Context, object *usherv1alpha1.Registry, failure error) error {
	next := object.DeepCopy()
	next.Status.ObservedGeneration = object.Generation
	kind, _ := kinds.Of(object, "")
	next.Status.Kind = kind.Name
	c := metav1.Condition{
		Type: usherv1alpha1.ConditionReachable, Status: metav1.ConditionTrue, Reason: reasonReachable,
		Message: "The registry answers.", ObservedGeneration: object.Generation,
		LastTransitionTime: metav1.NewTime(r.clock.Now()),
	}
	if failure != nil {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, string(plan.ReasonOf(failure)), plan.Shorten(failure.Error(), plan.MaxCondition)
	}
	meta.SetStatusCondition(&next.Status.Conditions, c)
	next.Status.LastOutage = r.pool.outage(object.Name).Status()
	if equality.Semantic.DeepEqual(next.Status, object.Status) {
		return nil
	}
	return client.IgnoreNotFound(r.patch(ctx, "write the status of Registry", object, next, true))
}

// free removes the finalizer of a Registry that is being deleted, unless a Registration has
// entries there: nobody could remove them afterwards.
func (r *Reconciler) free(ctx context.Context, object *usherv1alpha1.Registry) (bool, error) {
	registrations, err := r.registrationsOf(ctx, metav1.NamespaceAll)
	if err != nil {
		return false, err
	}
	users := list.Map(object.Status.Users, func(u usherv1alpha1.RegistryUser) string { return u.Namespace + "/" + u.Registration })
	for _, registration := range registrations {
		if recordedAt(registration, object.Name) {
			users = append(users, registration.Namespace+"/"+registration.Name)
		}
	}
	next := object.DeepCopy()
	switch {
	case !controllerutil.RemoveFinalizer(next, usherv1alpha1.Finalizer):
		return true, nil
	case len(users) > 0:
		users = slices.Compact(slices.Sorted(slices.Values(users)))
		r.announcer.warn(object, reasonInUse, "Delete", fmt.Sprintf(
			"Registrations still have entries there: %s. Delete them, or take the Registry out of their spec.registries.",
			strings.Join(users, ", ")))
		return false, nil
	}
	err = client.IgnoreNotFound(r.patch(ctx, "remove the finalizer from Registry", object, next, false))
	return err == nil, err
}

// isGated reports whether the Registry is of the kind service.
func isGated(object *usherv1alpha1.Registry) bool {
	kind, _ := kinds.Of(object, "")
	return kind.Gated
}

// turnsGates reports whether the Registry is of the kind service, and Pods leave its Services by the readiness gate.
func turnsGates(object *usherv1alpha1.Registry) bool {
	return isGated(object) && plan.LabelOf(object.Spec.Service) == plan.ServiceLabel{}
}

// makeBuiltIn makes the Registry of the kind service once in the life of a process, unless
// there is one of that kind that turns the readiness gate, whatever its name.
func (r *Reconciler) makeBuiltIn(ctx context.Context) error {
	if r.builtIn {
		return nil
	}
	objects, err := r.registries(ctx)
	if err != nil {
		return err
	}
	if r.builtIn = slices.ContainsFunc(objects, turnsGates); r.builtIn {
		return nil
	}
	made := &usherv1alpha1.Registry{ObjectMeta: metav1.ObjectMeta{Name: BuiltIn}}
	made.Spec.Service = &usherv1alpha1.ServiceRegistry{}
	switch err = r.client.Create(ctx, made); {
	case apierrors.IsAlreadyExists(err):
		log.FromContext(ctx).Info("A Registry of another kind has the name of the built-in one: make one of the kind service yourself", keyRegistry, BuiltIn)
	case err != nil:
		return fmt.Errorf("make the built-in Registry %s: %w", BuiltIn, err)
	}
	r.builtIn = true
	return nil
}
