// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/kube"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registries"
)

type queue = workqueue.TypedRateLimitingInterface[ctrl.Request]

// watchNamespaces maps every event to the namespaces that it may concern.
func (r *Reconciler) watchNamespaces(ctx context.Context, mgr ctrl.Manager) error {
	services, err := servicesOf(mgr)
	if err != nil {
		return err
	}
	owners, err := ownerCache(mgr)
	if err != nil {
		return err
	}
	if err := owners.IndexField(ctx, &corev1.Node{}, indexUrgent, urgentKeys); err != nil {
		return fmt.Errorf("index nodes that go: %w", err)
	}
	r.owners, r.urgent = owners, []client.ListOption{client.MatchingFields{indexUrgent: urgentKey}}
	inNamespace := each(func(_ context.Context, object client.Object, q queue) { r.gather(q, object.GetNamespace()) })
	b := ctrl.NewControllerManagedBy(mgr).
		Named("registration").
		WithOptions(controllerOptions(passes)).
		WithLogConstructor(kube.Logger(mgr, "registration", keyNamespace)).
		Watches(&usherv1alpha1.Registration{}, inNamespace, builder.WithPredicates(specChanged)).
		Watches(&appsv1alpha1.CloneSet{}, inNamespace, builder.WithPredicates(specChanged)).
		Watches(&corev1.Pod{}, r.ofPods(), builder.WithPredicates(updates(plan.Matters))).
		Watches(&policyv1.PodDisruptionBudget{}, inNamespace, builder.WithPredicates(predicate.Or(specChanged, updates(allowsMore)))).
		Watches(&usherv1alpha1.Registry{}, each(r.ofRegistry), builder.WithPredicates(predicate.Or(specChanged, updates(comesOrGoes)))).
		WatchesRawSource(source.Channel(r.back, each(r.ofRegistry))).
		WatchesRawSource(source.Channel(r.answered, inNamespace)).
		WatchesMetadata(&corev1.Namespace{}, each(r.ofNamespace), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		WatchesRawSource(source.Kind[client.Object](services, metadataOf(corev1.SchemeGroupVersion.WithKind("Service")), r.ofService(client.Object.GetName))).
		WatchesRawSource(source.Kind[client.Object](services, metadataOf(discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice")), r.ofService(serviceOf)))
	for _, object := range []client.Object{
		&appsv1.ReplicaSet{}, &appsv1.StatefulSet{}, &appsv1.DaemonSet{}, &appsv1.ControllerRevision{},
		&batchv1.Job{}, &corev1.ReplicationController{},
	} {
		b.WatchesRawSource(source.Kind(owners, object, each(r.ofNamespaced), wantsChanged))
	}
	if err := r.watchEvictions(mgr, b); err != nil {
		return err
	}
	b.WatchesRawSource(source.Kind[client.Object](owners, &corev1.Node{}, handler.Funcs{UpdateFunc: r.ofNode}))
	return b.Complete(r)
}

// wantsChanged ignores what no plan reads: most changes of statuses.
var wantsChanged = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false },
	UpdateFunc: func(e event.UpdateEvent) bool {
		older, newer := e.ObjectOld.DeepCopyObject().(client.Object), e.ObjectNew.DeepCopyObject().(client.Object)
		older.SetResourceVersion("")
		newer.SetResourceVersion("")
		return !equality.Semantic.DeepEqual(older, newer)
	},
}

// ofNamespaced lets through what concerns a namespace with Registrations.
func (r *Reconciler) ofNamespaced(ctx context.Context, object client.Object, q queue) {
	if r.concerns(ctx, object.GetNamespace(), func(*usherv1alpha1.Registration) bool { return true }) {
		r.gather(q, object.GetNamespace())
	}
}

// ofNode has a pass made over the namespaces of Pods with requests on a node that is to be empty, or is
// not any more. If the node goes within a short time, or stays after all, all Pods there are concerned, at once.
func (r *Reconciler) ofNode(ctx context.Context, e event.UpdateEvent, q queue) {
	older, _ := e.ObjectOld.(*corev1.Node) // a watch of nodes has nothing else
	newer, _ := e.ObjectNew.(*corev1.Node)
	if nodeOf(older) == nodeOf(newer) && maps.Equal(older.Labels, newer.Labels) {
		return
	}
	pods, err := r.podsOf(ctx, metav1.NamespaceAll)
	if err != nil {
		log.FromContext(ctx).Error(err, "Cannot list Pods: the next repair follows")
	}
	all := nodeOf(older).Goes != nodeOf(newer).Goes && !r.options.StayOnNodes
	for _, pod := range pods {
		_, asked := pod.Annotations[usherv1alpha1.AnnotationDeletionRequest]
		if pod.Spec.NodeName != newer.Name || !asked && !all {
			continue
		}
		if all {
			r.hurry(pod.Namespace)
		}
		r.gather(q, pod.Namespace)
	}
}

// answerBacklog bounds the namespaces on their way between answers of Pods and passes.
const answerBacklog = 1000

// wake has a pass made over a namespace whose Pods have answered. If too many are on their way, the next answer has one
// made.
func (r *Reconciler) wake(namespace string) {
	object := metadataOf(corev1.SchemeGroupVersion.WithKind("Namespace"))
	object.Namespace = namespace
	select {
	case r.answered <- event.GenericEvent{Object: object}:
	default:
	}
}

// gather has a pass made once the namespace's events are gathered, unless one is due already.
func (r *Reconciler) gather(q queue, namespace string) {
	r.gathering.Lock()
	defer r.gathering.Unlock()
	now := r.clock.Now()
	if now.Before(r.gathered[namespace]) {
		return
	}
	r.gathered[namespace] = now.Add(batchDelay)
	q.AddAfter(ctrl.Request{NamespacedName: types.NamespacedName{Name: namespace}}, batchDelay)
}

// begin ends the gathering: a pass that begins sees what happened before. It may come earlier than
// the events asked for, and then what happens from now on needs another one.
func (r *Reconciler) begin(namespace string) {
	r.gathering.Lock()
	defer r.gathering.Unlock()
	delete(r.gathered, namespace)
}

// due reports whether events of the namespace are being gathered: the pass that follows sees in the
// caches what happens now.
func (r *Reconciler) due(namespace string) bool {
	r.gathering.Lock()
	defer r.gathering.Unlock()
	return r.clock.Now().Before(r.gathered[namespace])
}

// each handles every event of an object alike. An update concerns both versions: with other
// labels, also the Registrations that deselect a Pod.
func each(do func(context.Context, client.Object, queue)) handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { do(ctx, e.Object, q) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			do(ctx, e.ObjectOld, q)
			do(ctx, e.ObjectNew, q)
		},
		DeleteFunc:  func(ctx context.Context, e event.DeleteEvent, q queue) { do(ctx, e.Object, q) },
		GenericFunc: func(ctx context.Context, e event.GenericEvent, q queue) { do(ctx, e.Object, q) },
	}
}

// specChanged ignores status writes, including our own.
var specChanged predicate.Predicate = predicate.GenerationChangedPredicate{}

// updates lets through those updates that change something.
func updates[T client.Object](changes func(older, newer T) bool) predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		older, ok := e.ObjectOld.(T)
		newer, okToo := e.ObjectNew.(T)
		return ok && okToo && changes(older, newer)
	}}
}

// allowsMore reports whether a PodDisruptionBudget allows more evictions than before.
func allowsMore(older, newer *policyv1.PodDisruptionBudget) bool {
	return older.Status.DisruptionsAllowed < newer.Status.DisruptionsAllowed
}

// comesOrGoes reports whether a registry came back or went away.
func comesOrGoes(older, newer *usherv1alpha1.Registry) bool {
	reachable := func(r *usherv1alpha1.Registry) metav1.ConditionStatus {
		c := meta.FindStatusCondition(r.Status.Conditions, usherv1alpha1.ConditionReachable)
		return ptr.Deref(c, metav1.Condition{}).Status
	}
	return reachable(older) != reachable(newer)
}

// ofPods handles events of Pods. One that is being deleted, and may be listed, is urgent: its process ends. So is one
// whose deletion has a deadline. Later changes of it are not, so that a Pod that is changed all the time does not have
// passes follow each other.
func (r *Reconciler) ofPods() handler.EventHandler {
	every := each(r.ofPod)
	return handler.Funcs{CreateFunc: every.Create, GenericFunc: every.Generic,
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) {
			r.metrics.absences.forget(e.Object.GetUID())
			every.Delete(ctx, e, q)
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			older, _ := e.ObjectOld.(*corev1.Pod) // A watch of Pods has nothing else.
			newer, _ := e.ObjectNew.(*corev1.Pod)
			if hasFinalizer(newer) && newer.DeletionTimestamp != nil && older.DeletionTimestamp == nil {
				r.hurry(newer.Namespace)
				r.noteUndrained(newer)
			}
			if plan.HasDeadline(newer) && !plan.HasDeadline(older) {
				r.hurry(newer.Namespace)
			}
			every.Update(ctx, e, q)
		}}
}

// noteUndrained counts a Pod that begins to be deleted while registries may list it, although there is a guard,
// and tells of one that API servers have not asked the guard about.
func (r *Reconciler) noteUndrained(pod *corev1.Pod) {
	result := plan.Undrained(pod)
	if !r.options.Guarded || result == "" {
		return
	}
	r.metrics.drains.WithLabelValues(string(result)).Inc()
	if result != plan.DrainUnguarded {
		return
	}
	r.announcer.warn(pod, plan.ReasonUnguarded, actionDrain, "The Pod was deleted while registries list it, and the API server did not "+
		"wait for the guard: requests may be lost. Either no replica of Usher answered, or the API server cannot reach the guard "+
		"(https://usher.dev/guard.html), or somebody has removed the label "+usherv1alpha1.LabelGuarded+".")
}

// ofPod lets through Pods that a Registration selects, or that have our finalizer.
func (r *Reconciler) ofPod(ctx context.Context, pod client.Object, q queue) {
	if hasFinalizer(pod) || r.concerns(ctx, pod.GetNamespace(), func(registration *usherv1alpha1.Registration) bool {
		return registration.Selects(pod.GetLabels())
	}) {
		r.gather(q, pod.GetNamespace())
	}
}

// ofNamespace lets through namespaces with Registrations.
func (r *Reconciler) ofNamespace(ctx context.Context, namespace client.Object, q queue) {
	if r.concerns(ctx, namespace.GetName(), func(*usherv1alpha1.Registration) bool { return true }) {
		r.gather(q, namespace.GetName())
	}
}

// mostAsked is how many Registrations are asked whether an event concerns them: events of all
// namespaces wait for each other here.
const mostAsked = 64

// concerns reports whether something may concern a Registration of the namespace, and no pass is due
// there. A pass too many is harmless.
func (r *Reconciler) concerns(ctx context.Context, namespace string, one func(*usherv1alpha1.Registration) bool) bool {
	return !r.due(namespace) && r.follows(ctx, namespace, one)
}

// follows reports whether something may concern a Registration of the namespace.
func (r *Reconciler) follows(ctx context.Context, namespace string, one func(*usherv1alpha1.Registration) bool) bool {
	registrations, err := r.listRegistrations(ctx, namespace)
	return err != nil || len(registrations) > mostAsked || slices.ContainsFunc(registrations, one)
}

// ofRegistry maps a Registry to the namespaces of Registrations that name it, have entries
// there, or had when they vanished.
func (r *Reconciler) ofRegistry(ctx context.Context, object client.Object, q queue) {
	if registry, ok := object.(*usherv1alpha1.Registry); ok {
		for _, u := range registry.Status.Users {
			r.gather(q, u.Namespace)
		}
	}
	registrations, err := r.registrationsOf(ctx, metav1.NamespaceAll)
	if err != nil {
		log.FromContext(ctx).Error(err, "Cannot list Registrations: their next repair follows")
	}
	for _, registration := range registrations {
		if slices.Contains(registration.Spec.Registries, object.GetName()) || recordedAt(registration, object.GetName()) {
			r.gather(q, registration.Namespace)
		}
	}
}

// servicesOf is the cache that brings events about Services and their EndpointSlices. A pass reads
// those that it needs from the API server, so the events' objects are names and labels only.
// They have a cache of their own: the manager's may select other slices.
func servicesOf(mgr ctrl.Manager) (cache.Cache, error) {
	names, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), DefaultTransform: onlyService,
	})
	if err != nil {
		return nil, fmt.Errorf("make the cache of Services: %w", err)
	}
	if err := mgr.Add(names); err != nil {
		return nil, fmt.Errorf("start the cache of Services: %w", err)
	}
	return names, nil
}

func metadataOf(kind schema.GroupVersionKind) *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kind)
	return object
}

// serviceOf is the Service of an EndpointSlice.
func serviceOf(slice client.Object) string { return slice.GetLabels()[discoveryv1.LabelServiceName] }

// onlyService strips what nothing reads.
func onlyService(object any) (any, error) {
	if full, ok := object.(*metav1.PartialObjectMetadata); ok {
		kept := metav1.ObjectMeta{Namespace: full.Namespace, Name: full.Name, UID: full.UID, ResourceVersion: full.ResourceVersion}
		if service := serviceOf(full); service != "" {
			kept.Labels = map[string]string{discoveryv1.LabelServiceName: service}
		}
		full.ObjectMeta = kept
	}
	return object, nil
}

// ofService lets through what concerns a Service that a Registration of its namespace follows.
func (r *Reconciler) ofService(name func(client.Object) string) handler.EventHandler {
	return each(func(ctx context.Context, object client.Object, q queue) {
		namespace, service := object.GetNamespace(), name(object)
		r.noteChanged(namespace, service, true) // before a pass that is due takes it
		if r.due(namespace) {
			return
		}
		gated := sync.OnceValue(func() map[string]bool { return r.gated(ctx) })
		if !r.follows(ctx, namespace, func(registration *usherv1alpha1.Registration) bool {
			return registration.Spec.Instance.Service == service &&
				slices.ContainsFunc(registration.Spec.Registries, func(name string) bool { return gated()[name] })
		}) {
			r.noteChanged(namespace, service, false)
			return
		}
		r.gather(q, namespace)
	})
}

// gated has the names of the Registries of the kind service. One that appears causes a pass itself.
func (r *Reconciler) gated(ctx context.Context) map[string]bool {
	objects, err := registries.List(ctx, r.client)
	if err != nil {
		log.FromContext(ctx).Error(err, "Cannot list Registries: the next repair follows")
	}
	names := map[string]bool{}
	for _, object := range objects {
		names[object.Name] = registries.IsGated(object)
	}
	return names
}
