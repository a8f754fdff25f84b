// SPDX-License-Identifier: Apache-2.0

// Package podcache says what a manager's cache keeps of Pods: nearly all of a CloneSet's and of
// those without a controller, which a CloneSet may adopt; of all others only what the hook
// operator reads, whether or not a Registration selects them today. What the cache keeps of a
// Pod follows from the Pod alone, so whoever begins to concern Usher is there already.
package podcache

import (
	"hash/maphash"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/write"
	"github.com/usher-dev/usher/internal/registration/plan"
)

// For each write of a Pod, the kubelet's included, the API server spends more than half
// its time on the record of who wrote which field (metadata.managedFields), which only
// server-side apply reads. Once dropped, the record stays away until someone applies to
// the Pod. So the controller drops it with the first patch that it sends anyway, from Pods
// that it has made itself, unless someone has applied to the Pod.

// recordToDrop is a shortened record, shared by all Pods.
var recordToDrop = []metav1.ManagedFieldsEntry{{
	Manager: write.Creator, Operation: metav1.ManagedFieldsOperationUpdate, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:restartPolicy":{}}}`),
}}

// Options configures a manager's cache for Pods.
func Options() cache.ByObject {
	var t templates
	return cache.ByObject{Transform: func(object any) (any, error) {
		if pod, ok := object.(*corev1.Pod); ok {
			return t.keep(pod), nil
		}
		return object, nil
	}}
}

// keep is what the cache keeps of a Pod. Of the field managers' record it is only whether there
// is one to drop.
func (t *templates) keep(pod *corev1.Pod) *corev1.Pod {
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil && owner.Kind != apps.KindCloneSet.Kind {
		return t.share(plan.Slim(pod))
	}
	record := recordToDrop
	if write.KeepsRecord(pod) {
		record = nil
	}
	pod.ManagedFields = record
	return pod
}

// templates are what Pods of one template have in common: maps and lists that are equal are
// kept once.
type templates struct {
	mu     sync.Mutex
	maps   map[uint64]map[string]string
	owners map[string][]metav1.OwnerReference
	ports  map[corev1.ContainerPort][]corev1.Container
}

// mostTemplates bounds each of the tables. A table that is full, of Pods that have nothing in
// common, is begun anew.
const mostTemplates = 4096

func (t *templates) share(pod *corev1.Pod) *corev1.Pod {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, own := range []*map[string]string{&pod.Labels, &pod.Annotations} {
		*own = shared(&t.maps, hash(*own), *own, maps.Equal)
	}
	if len(pod.OwnerReferences) > 0 {
		pod.OwnerReferences = shared(&t.owners, string(pod.OwnerReferences[0].UID), pod.OwnerReferences, sameOwners)
	}
	if len(pod.Spec.Containers) > 0 {
		pod.Spec.Containers = shared(&t.ports, pod.Spec.Containers[0].Ports[0], pod.Spec.Containers, samePorts)
	}
	return pod
}

// shared returns the value of a key, which is this one if there was none, or another.
func shared[K comparable, V any](table *map[K]V, key K, value V, equal func(a, b V) bool) V {
	known, ok := (*table)[key]
	if ok && equal(known, value) {
		return known
	}
	if *table == nil || len(*table) == mostTemplates {
		*table = map[K]V{}
	}
	(*table)[key] = value
	return value
}

var seed = maphash.MakeSeed()

// hash is that of a map: a sum, so that the order does not matter.
func hash(m map[string]string) (sum uint64) {
	for key, value := range m {
		sum += maphash.Comparable(seed, [2]string{key, value})
	}
	return sum
}

func sameOwners(a, b []metav1.OwnerReference) bool {
	return slices.EqualFunc(a, b, func(a, b metav1.OwnerReference) bool {
		return a.APIVersion == b.APIVersion && a.Kind == b.Kind && a.Name == b.Name && a.UID == b.UID &&
			isTrue(a.Controller) == isTrue(b.Controller) && isTrue(a.BlockOwnerDeletion) == isTrue(b.BlockOwnerDeletion)
	})
}

func isTrue(b *bool) bool { return b != nil && *b }

// samePorts compares the one container of each, which only has ports.
func samePorts(a, b []corev1.Container) bool { return slices.Equal(a[0].Ports, b[0].Ports) }
