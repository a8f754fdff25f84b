// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/podread"
)

// SetChanged reports whether an event of a CloneSet carries something that no pass has
// seen: a change in what a pass reads, or a status that this controller did not write.
// Its own writes of counters and conditions, which come with every step, do not count. An
// event that changes nothing at all is the informer's periodic resync, and counts.
func (r *Reconciler) SetChanged(before, after client.Object) bool {
	was, is := before.(*apps.CloneSet), after.(*apps.CloneSet)
	if was.ResourceVersion == is.ResourceVersion {
		return true
	}
	shared := r.shared(keyOf(is))
	own := shared.answered(is)
	shared.confirmAnswer(is)
	return !own || !equality.Semantic.DeepEqual(readingOf(was), readingOf(is))
}

// readingOf returns a set with only the fields that a pass reads.
func readingOf(set *apps.CloneSet) *apps.CloneSet {
	return &apps.CloneSet{
		ObjectMeta: metav1.ObjectMeta{
			UID: set.UID, Generation: set.Generation, DeletionTimestamp: set.DeletionTimestamp,
			Labels: set.Labels, Annotations: set.Annotations, Finalizers: set.Finalizers,
		},
		Status: apps.CloneSetStatus{
			CurrentRevision: set.Status.CurrentRevision, UpdateRevision: set.Status.UpdateRevision,
			CollisionCount: set.Status.CollisionCount,
		},
	}
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// ahead is the priority of a set of which a Pod has changed. The Pod may be about to return to service,
// and must not wait for sets that begin a rollout, which have priority 0. Sets that exist when the
// controller starts come last (handler.LowPriority).
const ahead = 1

// PodEvents returns the handler that maps Pod events to the sets that they concern.
func (r *Reconciler) PodEvents() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			r.roster.changed(nil, e.Object.(*corev1.Pod))
			r.enqueue(ctx, e.Object, q.Add)
		},
		UpdateFunc: r.podChanged,
		DeleteFunc: r.podGone,
	}
}

// deletionDelay batches Pod deletions; one reconcile per deleted Pod of a large set costs more than the
// deletions. Nothing is lost by waiting: a Pod's place was free when it began to terminate, and an
// exhausted quota and the revision history can wait this long.
const deletionDelay = 100 * time.Millisecond

// podGone enqueues the set of a deleted Pod.
func (r *Reconciler) podGone(ctx context.Context, e event.DeleteEvent, q queue) {
	pod := e.Object.(*corev1.Pod)
	r.roster.changed(pod, nil)
	r.pods.Forget(pod.UID)
	if pod.DeletionTimestamp != nil && len(podread.OwnClaims(pod)) == 0 {
		r.enqueue(ctx, pod, func(set reconcile.Request) { q.AddAfter(set, deletionDelay) })
		return
	}
	r.enqueue(ctx, pod, q.Add)
	// Enqueue the set that it belonged to before it was released, too: the claims that it kept are
	// free.
	if end := strings.LastIndexByte(pod.Name, '-'); end > 0 && len(podread.OwnClaims(pod)) > 0 {
		q.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name[:end]}})
	}
}

// podChanged enqueues the set of a Pod whose change the planner reads.
func (r *Reconciler) podChanged(ctx context.Context, e event.UpdateEvent, q queue) {
	before, after := e.ObjectOld.(*corev1.Pod), e.ObjectNew.(*corev1.Pod)
	r.roster.changed(before, after)
	ownerBefore, ownerAfter := metav1.GetControllerOfNoCopy(before), metav1.GetControllerOfNoCopy(after)
	if ownerBefore != nil && (ownerAfter == nil || ownerAfter.UID != ownerBefore.UID) {
		r.enqueue(ctx, before, q.Add)
	}
	if foreign(after) {
		return
	}
	if pullsFor(after) != "" {
		was, _, _ := plan.PullOf(before)
		if is, _, _ := plan.PullOf(after); was != is {
			r.enqueue(ctx, after, q.Add)
		}
		return
	}
	if !sameOrphan(before, after) && !plan.Alike(before, after) {
		r.offer(after)
		r.enqueue(ctx, after, func(set reconcile.Request) {
			q.(priorityqueue.PriorityQueue[reconcile.Request]).AddWithOpts(priorityqueue.AddOpts{Priority: new(ahead)}, set)
		})
	}
}

// sameOrphan reports whether a Pod still has no owner, and the same labels: adoption depends on nothing
// else.
func sameOrphan(before, after *corev1.Pod) bool {
	return before.UID == after.UID && metav1.GetControllerOfNoCopy(before) == nil && metav1.GetControllerOfNoCopy(after) == nil &&
		maps.Equal(before.Labels, after.Labels)
}

// enqueue adds the sets that a Pod or claim concerns.
func (r *Reconciler) enqueue(ctx context.Context, pod client.Object, add func(reconcile.Request)) {
	owner := metav1.GetControllerOfNoCopy(pod)
	if pullsFor(pod) != "" && len(pod.GetOwnerReferences()) > 0 {
		owner = &pod.GetOwnerReferences()[0]
	}
	if owner == nil {
		r.enqueueAdopters(ctx, pod, add)
		return
	}
	if schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).GroupKind() == apps.KindCloneSet.GroupKind() {
		add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: pod.GetNamespace(), Name: owner.Name}})
	}
}

// enqueueAdopters adds the sets whose selector an ownerless Pod matches.
func (r *Reconciler) enqueueAdopters(ctx context.Context, pod client.Object, add func(reconcile.Request)) {
	var sets apps.CloneSetList
	if err := r.Client.List(ctx, &sets, client.InNamespace(pod.GetNamespace()), client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "list CloneSets for an ownerless Pod", "pod", client.ObjectKeyFromObject(pod))
		return
	}
	for i := range sets.Items {
		if selects(&sets.Items[i], pod.GetLabels()) {
			add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&sets.Items[i])})
		}
	}
}

// selects reports whether a set selects these labels. Usually one label decides that: to make the
// selectors of thousands of sets takes milliseconds.
func selects(set *apps.CloneSet, of labels.Set) bool {
	for key, value := range set.Spec.Selector.MatchLabels {
		if of[key] != string(value) {
			return false
		}
	}
	selector, err := selectorOf(set)
	return err == nil && selector.Matches(of)
}

// ClaimEvents returns the handler that maps claim events to their sets.
func (r *Reconciler) ClaimEvents() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { r.enqueue(ctx, e.Object, q.Add) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			if claimChanged(e.ObjectOld, e.ObjectNew) {
				r.enqueue(ctx, e.ObjectNew, q.Add)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) {
			r.claims.Forget(e.Object.GetUID())
			r.enqueue(ctx, e.Object, q.Add)
		},
	}
}

// claimChanged reports whether something changed that the planner reads. It does not read
// whether a claim is bound, or to what.
func claimChanged(before, after client.Object) bool {
	return before.GetUID() != after.GetUID() || !slices.Equal(ownerOf(before), ownerOf(after)) ||
		(before.GetDeletionTimestamp() == nil) != (after.GetDeletionTimestamp() == nil) ||
		before.GetLabels()[apps.LabelInstanceID] != after.GetLabels()[apps.LabelInstanceID]
}
