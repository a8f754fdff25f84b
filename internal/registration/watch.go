// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/plan"
)

type queue = workqueue.TypedRateLimitingInterface[ctrl.Request]

// watchNamespaces maps every event to the namespaces that it may concern.
func (r *Reconciler) watchNamespaces(mgr ctrl.Manager) error {
	services, err := r.services(mgr)
	if err != nil {
		return err
	}
	controller := ctrl.NewControllerManagedBy(mgr).
		Named("registration").
		WithOptions(controllerOptions(r.options.MaxConcurrentPasses)).
		WithLogConstructor(logConstructor(mgr, keyNamespace)).
		Watches(&usherv1alpha1.Registration{}, inNamespace(), builder.WithPredicates(specChanged)).
		Watches(&appsv1alpha1.CloneSet{}, inNamespace(), builder.WithPredicates(specChanged)).
		Watches(&corev1.Pod{}, r.ofPods()).
		Watches(&policyv1.PodDisruptionBudget{}, inNamespace(), builder.WithPredicates(moreAllowed())).
		Watches(&usherv1alpha1.Registry{}, r.ofRegistries(), builder.WithPredicates(reachabilityChanged())).
		WatchesRawSource(source.Channel(r.back, r.ofRegistries())).
		WatchesMetadata(&corev1.Namespace{}, r.ofNamespaces(), builder.WithPredicates(predicate.LabelChangedPredicate{}))
	for _, events := range services {
		controller.WatchesRawSource(events)
	}
	return controller.Complete(r)
}

func gather(q queue, namespace string) {
	q.AddAfter(ctrl.Request{NamespacedName: types.NamespacedName{Name: namespace}}, batchDelay)
}

// each handles every event of an object alike.
func each(do func(context.Context, client.Object, queue)) handler.EventHandler {
	return handler.Funcs{
		CreateFunc:  func(ctx context.Context, e event.CreateEvent, q queue) { do(ctx, e.Object, q) },
		UpdateFunc:  func(ctx context.Context, e event.UpdateEvent, q queue) { do(ctx, e.ObjectNew, q) },
		DeleteFunc:  func(ctx context.Context, e event.DeleteEvent, q queue) { do(ctx, e.Object, q) },
		GenericFunc: func(ctx context.Context, e event.GenericEvent, q queue) { do(ctx, e.Object, q) },
	}
}

func inNamespace() handler.EventHandler {
	return each(func(_ context.Context, object client.Object, q queue) { gather(q, object.GetNamespace()) })
}

// specChanged ignores status writes, including our own.
var specChanged = predicate.GenerationChangedPredicate{}

// moreAllowed also lets through a PodDisruptionBudget that allows more evictions than before.
func moreAllowed() predicate.Predicate {
	return predicate.Or(specChanged, predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		older, ok := e.ObjectOld.(*policyv1.PodDisruptionBudget)
		newer, okToo := e.ObjectNew.(*policyv1.PodDisruptionBudget)
		return ok && okToo && older.Status.DisruptionsAllowed < newer.Status.DisruptionsAllowed
	}})
}

// reachabilityChanged also lets through a registry that came back or went away.
func reachabilityChanged() predicate.Predicate {
	return predicate.Or(specChanged, predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return reachable(e.ObjectOld) != reachable(e.ObjectNew)
	}})
}

func reachable(object client.Object) metav1.ConditionStatus {
	r, ok := object.(*usherv1alpha1.Registry)
	if !ok {
		return ""
	}
	if c := meta.FindStatusCondition(r.Status.Conditions, usherv1alpha1.ConditionReachable); c != nil {
		return c.Status
	}
	return ""
}

// ofPods lets through changes of Pods that a Registration selects or that have our finalizer.
func (r *Reconciler) ofPods() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { r.enqueuePod(ctx, q, e.Object) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { r.enqueuePod(ctx, q, e.Object) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			older, isPod := e.ObjectOld.(*corev1.Pod)
			newer, isPodToo := e.ObjectNew.(*corev1.Pod)
			if isPod && isPodToo && plan.Matters(older, newer) {
				// Other labels also concern the Registrations that deselect the Pod.
				r.enqueuePod(ctx, q, older, newer)
			}
		},
	}
}

func (r *Reconciler) enqueuePod(ctx context.Context, q queue, pods ...client.Object) {
	for _, pod := range pods {
		if controllerutil.ContainsFinalizer(pod, usherv1alpha1.Finalizer) || r.matched(ctx, pod) {
			gather(q, pod.GetNamespace())
			return
		}
	}
}

// matched reports whether a Registration selects the Pod.
func (r *Reconciler) matched(ctx context.Context, pod client.Object) bool {
	registrations, err := r.registrations(ctx, client.InNamespace(pod.GetNamespace()))
	if err != nil {
		return true // A pass too many is harmless.
	}
	return slices.ContainsFunc(registrations, func(registration *usherv1alpha1.Registration) bool {
		selector, err := metav1.LabelSelectorAsSelector(&registration.Spec.Selector)
		return err == nil && selector.Matches(labels.Set(pod.GetLabels()))
	})
}

// ofRegistries maps a Registry to the namespaces of Registrations that name it, have entries
// there, or had when they vanished.
func (r *Reconciler) ofRegistries() handler.EventHandler {
	users := func(registration *usherv1alpha1.Registration, object client.Object) bool {
		return uses(registration, object.GetName())
	}
	return r.toNamespaces(users, func(object client.Object, q queue) {
		if registry, ok := object.(*usherv1alpha1.Registry); ok {
			for _, u := range registry.Status.Users {
				gather(q, u.Namespace)
			}
		}
	})
}

// ofNamespaces maps a namespace to itself.
func (r *Reconciler) ofNamespaces() handler.EventHandler {
	return r.toNamespaces(func(registration *usherv1alpha1.Registration, object client.Object) bool {
		return registration.Namespace == object.GetName()
	}, func(client.Object, queue) {})
}

func uses(registration *usherv1alpha1.Registration, registry string) bool {
	return slices.Contains(registration.Spec.Registries, registry) || recordedAt(registration, registry)
}

func recordedAt(registration *usherv1alpha1.Registration, registry string) bool {
	return slices.ContainsFunc(registration.Status.Targets, func(t plan.Target) bool {
		return t.Registry == registry
	})
}

// toNamespaces maps an object to the namespaces of the Registrations that it concerns, and to
// those that more adds.
func (r *Reconciler) toNamespaces(concerns func(*usherv1alpha1.Registration, client.Object) bool, more func(client.Object, queue)) handler.EventHandler {
	return each(func(ctx context.Context, object client.Object, q queue) {
		more(object, q)
		registrations, err := r.registrations(ctx)
		if err != nil {
			log.FromContext(ctx).Error(err, "Cannot list Registrations: their next repair follows")
			return
		}
		for _, registration := range registrations {
			if concerns(registration, object) {
				gather(q, registration.Namespace)
			}
		}
	})
}
