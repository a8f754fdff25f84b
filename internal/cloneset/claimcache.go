// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
)

// instanceClaims selects the claims of instances.
func instanceClaims() labels.Selector {
	exists, err := labels.NewRequirement(apps.LabelInstanceID, selection.Exists, nil)
	if err != nil { // the key is a constant
		return labels.Nothing()
	}
	return labels.NewSelector().Add(*exists)
}

// ClaimCache configures a manager's cache for PersistentVolumeClaims: it holds only those
// that a CloneSet created, whatever else the cluster stores.
func ClaimCache() cache.ByObject { return cache.ByObject{Label: instanceClaims()} }

// ClaimEvents returns the handler that maps claim events to their sets.
func (r *Reconciler) ClaimEvents() handler.EventHandler {
	sets := &podHandler{reader: r.Client, writes: r.writes}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { sets.enqueue(ctx, e.Object, q.Add) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			if claimChanged(e.ObjectOld, e.ObjectNew) {
				sets.enqueue(ctx, e.ObjectNew, q.Add)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) {
			r.claims.forget(e.Object.GetUID())
			sets.enqueue(ctx, e.Object, q.Add)
		},
	}
}

// claimChanged reports whether something changed that the planner reads. It does not read
// whether a claim is bound, or to what.
func claimChanged(before, after client.Object) bool {
	owner := func(o client.Object) types.UID {
		if ref := metav1.GetControllerOf(o); ref != nil {
			return ref.UID
		}
		return ""
	}
	return before.GetUID() != after.GetUID() || owner(before) != owner(after) ||
		(before.GetDeletionTimestamp() == nil) != (after.GetDeletionTimestamp() == nil) ||
		before.GetLabels()[apps.LabelInstanceID] != after.GetLabels()[apps.LabelInstanceID]
}

// ownClaims returns the set's claims as the cache shows them, overlaid with this
// controller's last writes.
func (r *Reconciler) ownClaims(ctx context.Context, set *apps.CloneSet, now time.Time) ([]*corev1.PersistentVolumeClaim, error) {
	cached, err := r.cachedClaims(ctx, set, string(set.UID))
	if err != nil {
		return nil, err
	}
	claims, unverified := r.claims.merge(set.UID, cached, now)
	for _, entry := range unverified {
		if err := r.verifyClaim(ctx, set, entry, now); err != nil {
			return nil, err
		}
	}
	if len(unverified) > 0 { // overlaid and listed again, as in ownPods
		if cached, err = r.cachedClaims(ctx, set, string(set.UID)); err != nil {
			return nil, err
		}
		claims, _ = r.claims.merge(set.UID, cached, now)
	}
	return claims, nil
}

func (r *Reconciler) cachedClaims(ctx context.Context, set *apps.CloneSet, owner string) ([]*corev1.PersistentVolumeClaim, error) {
	var list corev1.PersistentVolumeClaimList
	err := r.Client.List(ctx, &list, client.InNamespace(set.Namespace), client.MatchingFields{indexOwner: owner}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("list claims: %w", err)
	}
	return claimsIn(&list), nil
}

func claimsIn(list *corev1.PersistentVolumeClaimList) []*corev1.PersistentVolumeClaim {
	out := make([]*corev1.PersistentVolumeClaim, 0, len(list.Items))
	for i := range list.Items {
		out = append(out, &list.Items[i])
	}
	return out
}

// verifyClaim asks the API server about a claim that the cache has contradicted for too
// long, as verifyPod does for a Pod.
func (r *Reconciler) verifyClaim(ctx context.Context, set *apps.CloneSet, entry claimWritten, now time.Time) error {
	live := &corev1.PersistentVolumeClaim{}
	err := r.Reader.Get(ctx, client.ObjectKeyFromObject(entry.object), live)
	switch {
	case apierrors.IsNotFound(err) || (err == nil && live.UID != entry.object.UID):
		r.claims.forget(entry.object.UID)
		if entry.deleted {
			r.claims.note(set.UID, claimWritten{object: entry.object, deleted: true, at: now})
		}
	case err != nil:
		return fmt.Errorf("look up claim %s: %w", entry.object.Name, err)
	default:
		r.claims.forget(entry.object.UID)
		r.claims.note(set.UID, claimWritten{object: live, created: entry.created, deleted: !metav1.IsControlledBy(live, set), at: now})
	}
	return nil
}

// relistClaims asks the API server for the set's claims after an answer was lost.
func (r *Reconciler) relistClaims(ctx context.Context, set *apps.CloneSet, now time.Time) error {
	cached, err := r.cachedClaims(ctx, set, string(set.UID))
	if err != nil {
		return err
	}
	if len(cached) == 0 && len(set.Spec.VolumeClaimTemplates) == 0 {
		return nil
	}
	var live corev1.PersistentVolumeClaimList
	if err := r.Reader.List(ctx, &live, client.InNamespace(set.Namespace), client.MatchingLabelsSelector{Selector: instanceClaims()}); err != nil {
		return fmt.Errorf("list claims after a lost answer: %w", err)
	}
	there := map[types.UID]bool{}
	for _, claim := range claimsIn(&live) {
		if metav1.IsControlledBy(claim, set) {
			there[claim.UID] = true
			r.claims.note(set.UID, claimWritten{object: claim, created: true, at: now})
		}
	}
	for _, claim := range cached {
		if !there[claim.UID] {
			r.claims.note(set.UID, claimWritten{object: claim, deleted: true, at: now})
		}
	}
	return nil
}

// releasedInstances returns the instances whose Pod exists but no longer belongs to the set.
// Without it, each pass would try to delete their claims, or to create a Pod under a
// taken name.
func (r *Reconciler) releasedInstances(
	ctx context.Context, set *apps.CloneSet, pods []*corev1.Pod, claims []*corev1.PersistentVolumeClaim,
) (map[string]bool, error) {
	if len(claims) == 0 {
		return nil, nil
	}
	own := make(map[string]bool, len(pods))
	for _, pod := range pods {
		own[pod.Name] = true
	}
	var out map[string]bool
	for _, claim := range claims {
		id := plan.InstanceOfClaim(set.Name, claim)
		name := plan.PodName(set.Name, id)
		if id == "" || own[name] || out[id] {
			continue
		}
		cached := &corev1.Pod{}
		err := r.Client.Get(ctx, client.ObjectKey{Namespace: set.Namespace, Name: name}, cached)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("look for Pod %s of claim %s: %w", name, claim.Name, err)
		}
		if err != nil || metav1.IsControlledBy(r.writes.newest(set.UID, cached), set) {
			continue // gone, or the cache does not show the deletion yet
		}
		if out == nil {
			out = map[string]bool{}
		}
		out[id] = true
	}
	return out, nil
}

// instanceDeletions remembers the instances whose Pod the controller asked to delete, until
// their claims are gone too: the answer may have been lost, or the API server too busy
// for the rest. Only this process remembers them.
type instanceDeletions struct {
	mu sync.Mutex
	// sets holds the claims of each instance as they were at the decision.
	sets map[setID]map[string][]*corev1.PersistentVolumeClaim
}

func newInstanceDeletions() *instanceDeletions {
	return &instanceDeletions{sets: map[setID]map[string][]*corev1.PersistentVolumeClaim{}}
}

func (d *instanceDeletions) note(set setID, id string, claims []*corev1.PersistentVolumeClaim) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sets[set] == nil {
		d.sets[set] = map[string][]*corev1.PersistentVolumeClaim{}
	}
	d.sets[set][id] = claims
}

func (d *instanceDeletions) forget(set setID, id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.sets[set], id)
	if len(d.sets[set]) == 0 {
		delete(d.sets, set)
	}
}

// of returns a set's instances that are being deleted. It forgets those whose Pod lives on after all,
// and those whose claims are gone or belong to the next Pod.
func (d *instanceDeletions) of(set *apps.CloneSet, pods []*corev1.Pod, claims []*corev1.PersistentVolumeClaim) map[string]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	noted := d.sets[idOf(set)]
	left := map[string][]*corev1.PersistentVolumeClaim{}
	for _, claim := range claims {
		id := plan.InstanceOfClaim(set.Name, claim)
		if noted[id] == nil || claim.DeletionTimestamp != nil {
			continue
		}
		lives := slices.ContainsFunc(pods, func(pod *corev1.Pod) bool {
			return pod.DeletionTimestamp == nil && pod.Name == plan.PodName(set.Name, id)
		})
		same := slices.ContainsFunc(noted[id], func(was *corev1.PersistentVolumeClaim) bool { return sameUse(was, claim) })
		if lives || !same {
			delete(noted, id)
			delete(left, id)
			continue
		}
		left[id] = noted[id]
	}
	if len(left) == 0 {
		delete(d.sets, idOf(set))
		return nil
	}
	d.sets[idOf(set)] = left
	// A copy: executing the plan writes to the original.
	shown := make(map[string]bool, len(left))
	for id := range left {
		shown[id] = true
	}
	return shown
}

// drop forgets the sets of that name, which is free now.
func (d *instanceDeletions) drop(name types.NamespacedName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.sets, func(set setID, _ map[string][]*corev1.PersistentVolumeClaim) bool { return set.name == name })
}
