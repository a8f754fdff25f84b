// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/kube"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registries"
)

// probeBacklog bounds the Registries on their way between passes and probes.
const probeBacklog = 64

func (r *Reconciler) watchRegistries(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("registry").
		WithOptions(controllerOptions(probes)).
		WithLogConstructor(kube.Logger(mgr, "registration", keyRegistry)).
		For(&usherv1alpha1.Registry{}, builder.WithPredicates(specChanged)).
		Watches(&usherv1alpha1.Registration{}, handler.EnqueueRequestsFromMapFunc(r.leavingRegistries)).
		WatchesRawSource(source.Channel(r.probes, &handler.EnqueueRequestForObject{})).
		WatchesRawSource(source.Func(func(_ context.Context, q queue) error {
			q.Add(ctrl.Request{NamespacedName: types.NamespacedName{Name: registries.BuiltIn}})
			return nil
		})).
		Complete(reconcile.Func(r.ReconcileRegistry))
}

// ReconcileRegistry probes one Registry, and writes into its status whether it answers.
func (r *Reconciler) ReconcileRegistry(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	return r.prober.Reconcile(ctx, request)
}

// newProber returns the prober of Registries, which has passes made when one answers again.
func (r *Reconciler) newProber() *registries.Prober {
	return &registries.Prober{
		Client: r.client, Pool: r.pool, Answers: r.answers, Clock: r.clock,
		Journal: registryJournal{r.metrics, r.announcer}, Users: r.usersOf, Write: r.patch,
		Back: func(object *usherv1alpha1.Registry) { enqueueRegistry(r.back, object) },
	}
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
	leaving, err := registries.Leaving(ctx, r.client)
	if err != nil {
		return nil
	}
	return list.Map(leaving, func(r *usherv1alpha1.Registry) ctrl.Request {
		return ctrl.Request{NamespacedName: client.ObjectKeyFromObject(r)}
	})
}

// usersOf are the Registrations that may have entries in a Registry, as "namespace/name".
func (r *Reconciler) usersOf(ctx context.Context, registry string) ([]string, error) {
	all, err := r.registrationsOf(ctx, metav1.NamespaceAll)
	return namesOfAll(list.Only(all, func(registration *usherv1alpha1.Registration) bool {
		return recordedAt(registration, registry)
	})), err
}

// recordedAt reports whether a Registration may have entries in a Registry.
func recordedAt(registration *usherv1alpha1.Registration, registry string) bool {
	return slices.ContainsFunc(registration.Status.Targets, func(t plan.Target) bool { return t.Registry == registry })
}
