// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
)

// listClaims lists claims by the UID of their controller, as r.ListPods lists Pods.
func (r *Reconciler) listClaims(ctx context.Context, namespace, owner string) ([]*corev1.PersistentVolumeClaim, error) {
	var list corev1.PersistentVolumeClaimList
	return listByOwner(ctx, r.Client, &list, &list.Items, namespace, owner)
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
		if err != nil || metav1.IsControlledBy(r.pods.newest(set.UID, cached), set) {
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
	sets map[types.UID]map[string][]*corev1.PersistentVolumeClaim
}

func newInstanceDeletions() *instanceDeletions {
	return &instanceDeletions{sets: map[types.UID]map[string][]*corev1.PersistentVolumeClaim{}}
}

func (d *instanceDeletions) note(set types.UID, id string, claims []*corev1.PersistentVolumeClaim) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sets[set] == nil {
		d.sets[set] = map[string][]*corev1.PersistentVolumeClaim{}
	}
	d.sets[set][id] = claims
}

func (d *instanceDeletions) forget(set types.UID, id string) {
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
	noted := d.sets[set.UID]
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
		delete(d.sets, set.UID)
		return nil
	}
	d.sets[set.UID] = left
	// A copy: executing the plan writes to the original.
	shown := make(map[string]bool, len(left))
	for id := range left {
		shown[id] = true
	}
	return shown
}

// drop forgets a set that is gone.
func (d *instanceDeletions) drop(set types.UID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.sets, set)
}
