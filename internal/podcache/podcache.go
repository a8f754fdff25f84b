// SPDX-License-Identifier: Apache-2.0

// Package podcache decides which part of a Pod the cache keeps. Of a CloneSet's Pods, and of Pods
// without a controller, which a CloneSet may adopt, it keeps what plans may read; of all others only
// what the hook operator reads, whether or not a Registration selects them today. The part depends on
// the Pod alone, so when a Pod begins to concern Usher, the cache has it already. It has a bound
// (budget.go): a Pod that exceeds it is partial, and is read from the API server before Usher writes to
// it.
package podcache

import (
	"hash/maphash"
	"reflect"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/write"
	"github.com/usher-dev/usher/internal/kube"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/podread"
	"github.com/usher-dev/usher/internal/registration/plan"
)

// For each write of a Pod, the kubelet's included, the API server spends more than half its time on the
// record of who wrote which field (metadata.managedFields), which only server-side apply reads. Once
// dropped, the record stays away until somebody applies to the Pod. So the controller drops it with the
// first patch that it sends anyway, from Pods that it has created itself, unless somebody has used
// server-side apply on the Pod.

// recordToDrop is a shortened record, shared by all Pods.
var recordToDrop = []metav1.ManagedFieldsEntry{{
	Manager: write.Creator, Operation: metav1.ManagedFieldsOperationUpdate, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:restartPolicy":{}}}`),
}}

// Keeper keeps parts of Pods. Pods of one template share the parts that they have in common.
type Keeper struct{ t templates }

// New returns a Keeper without any Pods yet.
func New() *Keeper { return &Keeper{} }

// Options configures a manager's cache for Pods.
func (k *Keeper) Options() cache.ByObject {
	return cache.ByObject{Transform: func(object any) (any, error) {
		if pod, ok := object.(*corev1.Pod); ok {
			return k.Keep(pod), nil
		}
		return object, nil
	}}
}

// NewInformer makes the informers of a manager's cache. From API servers that do not stream the first
// list of an informer (WatchList), Pods arrive in pages.
func (k *Keeper) NewInformer(
	from toolscache.ListerWatcher, object runtime.Object, resync time.Duration, indexers toolscache.Indexers,
) toolscache.SharedIndexInformer {
	if _, pods := object.(*corev1.Pod); pods {
		both := toolscache.ToListerWatcherWithContext(from)
		from = &toolscache.ListWatch{
			ListWithContextFunc: kube.Pages(both.ListWithContext, func(item runtime.Object) runtime.Object {
				return k.Keep(item.(*corev1.Pod))
			}),
			WatchFuncWithContext: both.WatchWithContext,
		}
	}
	return toolscache.NewSharedIndexInformer(from, object, resync, indexers)
}

// Keep returns the part of a Pod that is kept, and does not change its argument. Of the field managers'
// record, it keeps only whether there is one to drop. Keep returns a kept Pod as it is.
func (k *Keeper) Keep(pod *corev1.Pod) *corev1.Pod {
	owner, b := metav1.GetControllerOfNoCopy(pod), &budget{left: podBytes, partial: podread.IsPartial(pod)}
	if owner != nil && owner.Kind != apps.KindCloneSet.Kind {
		short := plan.Slim(pod)
		b.bound(short)
		return k.t.share(short)
	}
	short := slim(pod)
	b.bound(short)
	switch {
	case b.partial:
		podread.MarkPartial(short)
	case !write.KeepsRecord(pod):
		short.ManagedFields = recordToDrop
	}
	if owner != nil {
		k.t.shareParts(short)
	}
	return short
}

// slim returns the part that plans read of a Pod that a CloneSet has or may adopt. Of its volumes,
// these are claims and images; its containers have no mounts, and of their environment only what orders
// their start.
func slim(pod *corev1.Pod) *corev1.Pod {
	m, spec, status := &pod.ObjectMeta, &pod.Spec, &pod.Status
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: m.Namespace, Name: m.Name, GenerateName: m.GenerateName, UID: m.UID, ResourceVersion: m.ResourceVersion, Generation: m.Generation,
			CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp, DeletionGracePeriodSeconds: m.DeletionGracePeriodSeconds,
			Labels: m.Labels, Annotations: m.Annotations, OwnerReferences: m.OwnerReferences, Finalizers: m.Finalizers,
		},
		Spec: corev1.PodSpec{
			NodeName: spec.NodeName, ServiceAccountName: spec.ServiceAccountName, TerminationGracePeriodSeconds: spec.TerminationGracePeriodSeconds,
			Volumes:        list.Only(spec.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil || v.Image != nil }),
			InitContainers: list.Map(spec.InitContainers, slimContainer), Containers: list.Map(spec.Containers, slimContainer),
			Tolerations: spec.Tolerations, ReadinessGates: spec.ReadinessGates,
		},
		Status: corev1.PodStatus{
			Phase: status.Phase, Reason: status.Reason, Message: beginning(status.Message), PodIP: status.PodIP, PodIPs: podread.Addresses(pod), HostIP: status.HostIP,
			ObservedGeneration: status.ObservedGeneration, Conditions: list.Map(status.Conditions, slimCondition),
			InitContainerStatuses: list.Map(status.InitContainerStatuses, slimStatus), ContainerStatuses: list.Map(status.ContainerStatuses, slimStatus),
		},
	}
}

func ordersStart(v corev1.EnvVar) bool {
	return v.Name == apps.EnvContainerPriority || v.Name == apps.EnvLaunch
}

func slimContainer(c corev1.Container) corev1.Container {
	return corev1.Container{
		Name: c.Name, Image: c.Image, Resources: c.Resources, RestartPolicy: c.RestartPolicy,
		Env:   list.Only(c.Env, ordersStart),
		Ports: list.Only(c.Ports, func(p corev1.ContainerPort) bool { return p.Name != "" }),
	}
}

// slimCondition drops the messages of other controllers' conditions, which only people read.
func slimCondition(c corev1.PodCondition) corev1.PodCondition {
	switch c.Type {
	case corev1.PodReady, corev1.ContainersReady, corev1.PodInitialized, corev1.PodReadyToStartContainers:
		c.Message = ""
	case corev1.PodScheduled: // why it has no node
		c.Message = upTo(scheduledBytes, c.Message)
	}
	c.LastProbeTime = metav1.Time{}
	return c
}

func slimStatus(s corev1.ContainerStatus) corev1.ContainerStatus {
	return corev1.ContainerStatus{
		Name: s.Name, Ready: s.Ready, RestartCount: s.RestartCount, Image: s.Image, ImageID: s.ImageID, ContainerID: s.ContainerID,
		State: slimState(s.State), LastTerminationState: slimState(s.LastTerminationState),
		Resources: s.Resources, AllocatedResources: s.AllocatedResources,
	}
}

// slimState drops the message of a container that has ended: the container itself writes it.
func slimState(s corev1.ContainerState) corev1.ContainerState {
	if w := s.Waiting; w != nil {
		s.Waiting = &corev1.ContainerStateWaiting{Reason: w.Reason, Message: beginning(w.Message)}
	}
	if e := s.Terminated; e != nil {
		s.Terminated = &corev1.ContainerStateTerminated{ExitCode: e.ExitCode, Reason: e.Reason, ContainerID: e.ContainerID}
	}
	return s
}

// beginning returns the beginning of a text for people.
func beginning(text string) string { return upTo(messageBytes, text) }

// scheduledBytes is how much is kept of the message why a Pod has no node.
const scheduledBytes = 256

func upTo(most int, text string) string {
	if len(text) <= most {
		return text
	}
	return strings.Clone(strings.ToValidUTF8(text[:most], "")) // a slice would keep the whole text in memory
}

// shareParts shares the parts that mostly come from the template.
func (t *templates) shareParts(pod *corev1.Pod) {
	spec := &pod.Spec
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, containers := range []*[]corev1.Container{&spec.InitContainers, &spec.Containers} {
		images := ""
		for i := range *containers {
			c := &(*containers)[i]
			images += c.Name + " " + c.Image + " "
		}
		*containers = shared(&t.containers, images, *containers, sum(containerSize))
	}
	spec.Tolerations = shared(&t.tolerations, len(spec.Tolerations), spec.Tolerations, sum(tolerationSize))
	spec.ReadinessGates = shared(&t.gates, len(spec.ReadinessGates), spec.ReadinessGates, sum(gateSize))
	pod.OwnerReferences = shared(&t.owners, string(pod.OwnerReferences[0].UID), pod.OwnerReferences, sum(ownerSize))
	pod.Namespace, pod.GenerateName = t.text(pod.Namespace), t.text(pod.GenerateName)
	pod.Finalizers = list.Map(pod.Finalizers, t.text)
	pod.Labels, pod.Annotations = t.shareTexts(pod.Labels, pod.Name), t.shareTexts(pod.Annotations, pod.Name)
	for i := range pod.Status.Conditions {
		c := &pod.Status.Conditions[i]
		c.Type, c.Status, c.Reason = corev1.PodConditionType(t.text(string(c.Type))), corev1.ConditionStatus(t.text(string(c.Status))), t.text(c.Reason)
	}
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range statuses {
			s := &statuses[i]
			s.Name, s.Image, s.ImageID = t.text(s.Name), t.text(s.Image), t.text(s.ImageID)
		}
	}
}

func (t *templates) text(s string) string {
	if known, ok := t.texts.values[s]; ok {
		return known
	}
	return shared(&t.texts, s, s, func(s string) int { return len(s) })
}

// longest is the length, in bytes, up to which Pods share a value of a label or an annotation.
const longest = 64

// shareTexts shares the keys, and short values unless they are the end of the Pod's own name.
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

// templates has the parts that Pods of one template have in common: equal maps and lists are kept once.
type templates struct {
	mu     sync.Mutex
	maps   table[uint64, map[string]string]
	owners table[string, []metav1.OwnerReference]
	ports  table[corev1.ContainerPort, []corev1.Container]
	// Of CloneSets' Pods: containers by their names and images, and others by their number.
	containers  table[string, []corev1.Container]
	tolerations table[int, []corev1.Toleration]
	gates       table[int, []corev1.PodReadinessGate]
	texts       table[string, string]
}

// table has values by their keys, and how many bytes they take. It also keeps values of Pods that are
// gone.
type table[K comparable, V any] struct {
	values map[K]V
	bytes  int
}

// mostTemplates and tableBytes bound each of the tables. A table that is full of values that are not
// shared is emptied.
const (
	mostTemplates = 4096
	tableBytes    = 2 << 20
)

func (t *templates) share(pod *corev1.Pod) *corev1.Pod {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, own := range []*map[string]string{&pod.Labels, &pod.Annotations} {
		*own = shared(&t.maps, hash(*own), *own, mapSize)
	}
	if len(pod.OwnerReferences) > 0 {
		pod.OwnerReferences = shared(&t.owners, string(pod.OwnerReferences[0].UID), pod.OwnerReferences, sum(ownerSize))
	}
	if len(pod.Spec.Containers) > 0 {
		pod.Spec.Containers = shared(&t.ports, pod.Spec.Containers[0].Ports[0], pod.Spec.Containers, sum(containerSize))
	}
	return pod
}

// shared returns the value to use for a key: the known one if it is equal to this one, otherwise this
// one, which it records.
func shared[K comparable, V any](t *table[K, V], key K, value V, size func(V) int) V {
	known, ok := t.values[key]
	// The first comparison is faster, and mostly enough.
	if ok && (reflect.DeepEqual(known, value) || equality.Semantic.DeepEqual(known, value)) {
		return known
	}
	bytes := size(value)
	if t.values == nil || len(t.values) == mostTemplates || t.bytes+bytes > tableBytes {
		*t = table[K, V]{values: map[K]V{}}
	}
	if ok {
		bytes -= size(known)
	}
	t.values[key], t.bytes = value, t.bytes+bytes
	return value
}

var seed = maphash.MakeSeed()

// hash returns the hash of a map: a sum, so that the order does not matter.
func hash(m map[string]string) (sum uint64) {
	for key, value := range m {
		sum += maphash.Comparable(seed, [2]string{key, value})
	}
	return sum
}
