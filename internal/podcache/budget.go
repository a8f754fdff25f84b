// SPDX-License-Identifier: Apache-2.0

package podcache

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/podread"
)

// This file bounds what is kept of one Pod. Users who may create Pods decide how large their lists and
// texts are; only etcd bounds them, at 1.5 MB together. No Pod that is meant to run comes near the
// bounds here.

// podBytes bounds a Pod, the other constants bound parts of it, in bytes as budget counts them.
const (
	podBytes        = 96 << 10
	containerBytes  = 32 << 10
	ownBytes        = podread.LongestOwnValue + 8<<10 // annotations of Usher's
	labelBytes      = 16 << 10
	annotationBytes = 8 << 10
	listBytes       = 8 << 10
	textBytes       = 1 << 10 // an image, a text of an owner
	messageBytes    = 1 << 10
)

// budget is how many more bytes a Pod may take. partial means that a part that writes depend on did not
// fit.
type budget struct {
	left    int
	partial bool
}

// bound cuts a Pod that is too large. Parts that Usher or a kubelet has written are kept first.
func (b *budget) bound(pod *corev1.Pod) {
	spec, status := &pod.Spec, &pod.Status
	pod.Finalizers = fit(b, listBytes, pod.Finalizers, func(f *string) bool { return isOwn(*f) }, func(f *string) int { return 16 + len(*f) })
	pod.OwnerReferences = fit(b, listBytes, b.owners(pod.OwnerReferences), isController, ownerSize)
	status.ContainerStatuses = fit(b, containerBytes, status.ContainerStatuses, always, statusSize)
	status.InitContainerStatuses = fit(b, containerBytes, status.InitContainerStatuses, always, statusSize)
	status.Conditions = fit(b, listBytes, status.Conditions, isRead, conditionSize)
	pod.Labels = b.fitMap(labelBytes, pod.Labels)
	pod.Annotations = b.annotations(pod.Annotations)
	for _, containers := range []*[]corev1.Container{&spec.Containers, &spec.InitContainers} {
		*containers = fit(b, containerBytes, b.images(*containers), always, containerSize)
	}
	spec.ReadinessGates = fit(b, listBytes, spec.ReadinessGates, always, gateSize)
	spec.Volumes = fit(b, listBytes, b.references(spec.Volumes), always, volumeSize)
	spec.Tolerations = fit(b, listBytes, spec.Tolerations, always, tolerationSize)
}

// fit returns the elements that fit, in their order. If not all fit, those for which first is true are
// kept first.
func fit[T any](b *budget, most int, all []T, first func(*T) bool, size func(*T) int) []T {
	total, most := sum(size)(all), min(most, b.left)
	if total <= most {
		b.left -= total
		return all
	}
	b.partial = true
	var kept []T
	for _, now := range []bool{true, false} {
		for i := range all {
			if n := size(&all[i]); first(&all[i]) == now && n <= most {
				most, b.left = most-n, b.left-n
				kept = append(kept, all[i])
			}
		}
	}
	return slices.Clone(kept) // without spare capacity
}

// entryBytes is the least size of an entry of a map, apart from its texts.
const entryBytes = 48

// fitMap returns the entries that fit: Usher's own before others, and then in the order of the keys.
func (b *budget) fitMap(most int, all map[string]string) map[string]string {
	total, most := mapSize(all), min(most, b.left)
	if total <= most {
		b.left -= total
		return all
	}
	b.partial = true
	keys := slices.Sorted(maps.Keys(all))
	slices.SortStableFunc(keys, func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })
	kept := map[string]string{}
	for _, key := range keys {
		if n := entryBytes + len(key) + len(all[key]); n <= most {
			most, b.left = most-n, b.left-n
			kept[key] = all[key]
		}
	}
	return kept
}

// annotations returns the annotations that fit. A value that is too long for registries is cut. Writes
// do not depend on it: they replace it, whatever it was.
func (b *budget) annotations(all map[string]string) map[string]string {
	own, others, cut := map[string]string{}, map[string]string{}, false
	for key, value := range all {
		switch {
		case isOwn(key) && len(value) <= podread.LongestOwnValue:
			own[key] = value
		case isOwn(key):
			own[key], cut, b.partial = podread.Cut(value), true, true
		case len(value) <= podread.LongestValue:
			others[key] = value
		default:
			others[key], cut = podread.Cut(value), true
		}
	}
	own, others = b.fitMap(ownBytes, own), b.fitMap(annotationBytes, others)
	if !cut && len(own)+len(others) == len(all) {
		return all
	}
	maps.Copy(own, others)
	return own
}

// images cuts image names that are too long for any image registry. It changes the list that it gets.
func (b *budget) images(containers []corev1.Container) []corev1.Container {
	for i := range containers {
		b.text(&containers[i].Image)
	}
	return containers
}

func (b *budget) references(volumes []corev1.Volume) []corev1.Volume {
	for i := range volumes {
		if image := volumes[i].Image; image != nil && len(image.Reference) > textBytes {
			short := *image
			b.text(&short.Reference)
			volumes[i].Image = &short
		}
	}
	return volumes
}

// owners cuts texts that are too long for any owner. So the controller always fits: without it, the Pod
// would seem to have none.
func (b *budget) owners(all []metav1.OwnerReference) []metav1.OwnerReference {
	long := func(o metav1.OwnerReference) bool {
		return max(len(o.APIVersion), len(o.Kind), len(o.Name), len(o.UID)) > textBytes
	}
	if !slices.ContainsFunc(all, long) {
		return all
	}
	all = slices.Clone(all)
	for i := range all {
		o := &all[i]
		b.text(&o.APIVersion)
		b.text(&o.Kind)
		b.text(&o.Name)
		b.text((*string)(&o.UID))
	}
	return all
}

func (b *budget) text(text *string) {
	if len(*text) > textBytes {
		*text, b.partial = podread.Cut(*text), true
	}
}

// isOwn reports whether Usher, or OpenKruise, gives a meaning to a key.
func isOwn(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	return key == apps.LabelRevision || key == apps.LabelTemplateHash || key == corev1.PodDeletionCost ||
		strings.HasSuffix(domain, "usher.dev") || strings.HasSuffix(domain, "kruise.io")
}

func isController(o *metav1.OwnerReference) bool { return o.Controller != nil && *o.Controller }

func isRead(c *corev1.PodCondition) bool {
	switch c.Type {
	case corev1.PodReady, corev1.ContainersReady, apps.ConditionInPlaceUpdateReady, apps.ConditionPodReady, usherv1alpha1.ConditionRegistered:
		return true
	}
	return false
}

func always[T any](*T) bool { return true }

// rank returns 0 for Usher's own keys, and 1 for others.
func rank(key string) int {
	if isOwn(key) {
		return 0
	}
	return 1
}

func ownerSize(o *metav1.OwnerReference) int {
	return 80 + len(o.APIVersion) + len(o.Kind) + len(o.Name) + len(o.UID)
}

func conditionSize(c *corev1.PodCondition) int {
	return 136 + len(c.Type) + len(c.Reason) + len(c.Message)
}

func statusSize(s *corev1.ContainerStatus) int {
	size := 320 + len(s.Name) + len(s.Image) + len(s.ImageID) + len(s.ContainerID) + resourcesSize(s.AllocatedResources)
	if s.Resources != nil {
		size += resourcesSize(s.Resources.Limits) + resourcesSize(s.Resources.Requests)
	}
	return size
}

func containerSize(c *corev1.Container) int {
	size := 440 + len(c.Name) + len(c.Image) + resourcesSize(c.Resources.Limits) + resourcesSize(c.Resources.Requests)
	for i := range c.Resources.Claims {
		size += 32 + len(c.Resources.Claims[i].Name) + len(c.Resources.Claims[i].Request)
	}
	for i := range c.Env {
		size += 40 + len(c.Env[i].Name) + len(c.Env[i].Value) + sourceSize(c.Env[i].ValueFrom)
	}
	for i := range c.Ports {
		size += 56 + len(c.Ports[i].Name)
	}
	return size
}

// sourceSize is the size of a reference to a field. Other sources have a few names of bounded length.
func sourceSize(from *corev1.EnvVarSource) int {
	if from == nil {
		return 0
	}
	if from.FieldRef != nil {
		return 80 + len(from.FieldRef.APIVersion) + len(from.FieldRef.FieldPath)
	}
	return 1 << 10
}

func gateSize(g *corev1.PodReadinessGate) int { return 16 + len(g.ConditionType) }

func tolerationSize(t *corev1.Toleration) int { return 72 + len(t.Key) + len(t.Value) }

func mapSize(all map[string]string) (size int) {
	for key, value := range all {
		size += entryBytes + len(key) + len(value)
	}
	return size
}

// sum returns a function for the size of a list, from one for the size of an element.
func sum[T any](size func(*T) int) func([]T) int {
	return func(all []T) (total int) {
		for i := range all {
			total += size(&all[i])
		}
		return total
	}
}

func resourcesSize(list corev1.ResourceList) (size int) {
	for name := range list {
		size += 96 + len(name)
	}
	return size
}

func volumeSize(v *corev1.Volume) int {
	size := 320 + len(v.Name)
	if v.PersistentVolumeClaim != nil {
		size += len(v.PersistentVolumeClaim.ClaimName)
	}
	if v.Image != nil {
		size += len(v.Image.Reference)
	}
	return size
}
