// SPDX-License-Identifier: Apache-2.0

// Package podcache says what a manager's cache keeps of Pods: nearly all of those without a
// controller, which a CloneSet may adopt; of a CloneSet's what plans may read; of all others only
// what the hook operator reads, whether or not a Registration selects them today. What the cache
// keeps of a Pod follows from the Pod alone, so whoever begins to concern Usher is there already.
package podcache

import (
	"hash/maphash"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/write"
	"github.com/usher-dev/usher/internal/list"
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
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner != nil && owner.Kind != apps.KindCloneSet.Kind {
		return t.share(plan.Slim(pod))
	}
	record := recordToDrop
	if write.KeepsRecord(pod) {
		record = nil
	}
	pod.ManagedFields = record
	if owner != nil {
		t.shorten(pod)
	}
	return pod
}

// shorten drops the volumes of a CloneSet's Pod that no plan reads, and all mounts: the one with
// the Pod's token has a name of its own in each Pod. What is left is mostly the template's. Of the
// texts only a few are the Pod's own.
func (t *templates) shorten(pod *corev1.Pod) {
	spec := &pod.Spec
	spec.Volumes = list.Only(spec.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil || v.Image != nil })
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, containers := range []*[]corev1.Container{&spec.InitContainers, &spec.Containers} {
		images := ""
		for i := range *containers {
			c := &(*containers)[i]
			if c.VolumeMounts != nil { // not so in what is shared already
				c.VolumeMounts = nil
			}
			images += c.Name + " " + c.Image + " "
		}
		*containers = shared(&t.containers, images, *containers)
	}
	spec.Tolerations = shared(&t.tolerations, len(spec.Tolerations), spec.Tolerations)
	spec.ReadinessGates = shared(&t.gates, len(spec.ReadinessGates), spec.ReadinessGates)
	pod.OwnerReferences = shared(&t.owners, string(pod.OwnerReferences[0].UID), pod.OwnerReferences)
	pod.Namespace, pod.GenerateName = t.text(pod.Namespace), t.text(pod.GenerateName)
	for i, name := range pod.Finalizers {
		pod.Finalizers[i] = t.text(name)
	}
	pod.Labels, pod.Annotations = t.shareTexts(pod.Labels, pod.Name), t.shareTexts(pod.Annotations, pod.Name)
	pod.Status.Conditions = slices.Clone(pod.Status.Conditions) // decoding leaves room for more
	for i := range pod.Status.Conditions {
		c := &pod.Status.Conditions[i]
		c.Type, c.Status, c.Reason = corev1.PodConditionType(t.text(string(c.Type))), corev1.ConditionStatus(t.text(string(c.Status))), t.text(c.Reason)
	}
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range statuses {
			s := &statuses[i]
			s.Name, s.Image, s.ImageID, s.VolumeMounts = t.text(s.Name), t.text(s.Image), t.text(s.ImageID), nil
		}
	}
}

func (t *templates) text(s string) string {
	if known, ok := t.texts[s]; ok {
		return known
	}
	return shared(&t.texts, s, s)
}

// longest is how long a value of a label or an annotation is that Pods may share, in bytes.
const longest = 64

// shareTexts shares the keys, and short values that are not the end of the Pod's own name.
func (t *templates) shareTexts(m map[string]string, name string) map[string]string {
	if m == nil {
		return nil
	}
	out := make(map[string]string, len(m))
	for key, value := range m {
		if len(value) <= longest && !strings.HasSuffix(name, value) {
			value = t.text(value)
		}
		out[t.text(key)] = value
	}
	return out
}

// templates are what Pods of one template have in common: maps and lists that are equal are
// kept once.
type templates struct {
	mu     sync.Mutex
	maps   map[uint64]map[string]string
	owners map[string][]metav1.OwnerReference
	ports  map[corev1.ContainerPort][]corev1.Container
	// Of CloneSets' Pods: containers by their names and images, and others by their number.
	containers  map[string][]corev1.Container
	tolerations map[int][]corev1.Toleration
	gates       map[int][]corev1.PodReadinessGate
	texts       map[string]string
}

// mostTemplates bounds each of the tables. A table that is full, of Pods that have nothing in
// common, is begun anew.
const mostTemplates = 4096

func (t *templates) share(pod *corev1.Pod) *corev1.Pod {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, own := range []*map[string]string{&pod.Labels, &pod.Annotations} {
		*own = shared(&t.maps, hash(*own), *own)
	}
	if len(pod.OwnerReferences) > 0 {
		pod.OwnerReferences = shared(&t.owners, string(pod.OwnerReferences[0].UID), pod.OwnerReferences)
	}
	if len(pod.Spec.Containers) > 0 {
		pod.Spec.Containers = shared(&t.ports, pod.Spec.Containers[0].Ports[0], pod.Spec.Containers)
	}
	return pod
}

// shared returns the value of a key, which is this one if there was none, or another.
func shared[K comparable, V any](table *map[K]V, key K, value V) V {
	known, ok := (*table)[key]
	if ok && equality.Semantic.DeepEqual(known, value) {
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
