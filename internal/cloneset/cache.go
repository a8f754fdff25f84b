// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"sync"
	"unique"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/kube"
	"github.com/usher-dev/usher/internal/list"
)

// This file configures the manager's cache: which objects it holds, in which form, and its indexes.

// ClaimCache configures a manager's cache for PersistentVolumeClaims: it holds only claims that a
// CloneSet created.
func ClaimCache() cache.ByObject {
	var claims client.ListOptions
	client.HasLabels{apps.LabelInstanceID}.ApplyToList(&claims)
	return cache.ByObject{Label: claims.LabelSelector}
}

// NodeCache configures how the cache keeps nodes: only the few fields that are read here. Most nodes
// have the same images, so they share the image names.
func NodeCache() cache.ByObject {
	return cache.ByObject{Transform: func(object any) (any, error) {
		node, ok := object.(*corev1.Node)
		if !ok {
			return object, nil
		}
		var images []string
		for _, image := range node.Status.Images {
			for _, name := range image.Names {
				images = append(images, unique.Make(name).Value())
			}
		}
		return &corev1.Node{
			TypeMeta:   node.TypeMeta,
			ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion, Labels: node.Labels},
			Spec:       corev1.NodeSpec{Unschedulable: node.Spec.Unschedulable, Taints: node.Spec.Taints},
			Status:     corev1.NodeStatus{Images: []corev1.ContainerImage{{Names: images}}},
		}, nil
	}}
}

// RevisionCache configures how the cache keeps ControllerRevisions: only those of CloneSets keep their
// template. If a CloneSet adopts a revision without a controller, the API server's answer brings the
// template.
func RevisionCache() cache.ByObject {
	return cache.ByObject{Transform: func(object any) (any, error) {
		found, ok := object.(*appsv1.ControllerRevision)
		if !ok || !foreign(found) && metav1.GetControllerOfNoCopy(found) != nil {
			return kube.Unread(object)
		}
		m := &found.ObjectMeta
		return &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{
			Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, Labels: m.Labels,
			DeletionTimestamp: m.DeletionTimestamp, OwnerReferences: m.OwnerReferences,
		}}, nil
	}}
}

// indexOwner indexes objects by the UID of their controller, and Pods without one under
// orphanKey; pull Pods under pullsKey, so that nobody takes them for the set's own.
const indexOwner, orphanKey = "usher.dev/owner", "orphan"

func ownerOf(object client.Object) []string {
	if set := pullsFor(object); set != "" {
		return []string{pullsKey(set)}
	}
	if owner := metav1.GetControllerOfNoCopy(object); owner != nil {
		return []string{string(owner.UID)}
	}
	return []string{orphanKey}
}

// Lister lists objects of a namespace by the UID of their controller, in name order; "orphan" lists
// those without a controller. The list and its objects are the cache's own: do not change them.
type Lister[T client.Object] func(ctx context.Context, namespace, owner string) ([]T, error)

// byClient lists through a client whose cache has the index.
func byClient[T client.Object](c client.Reader, empty client.ObjectList) Lister[T] {
	what := reflect.TypeFor[T]().Elem().Name() + "s"
	return func(ctx context.Context, namespace, owner string) ([]T, error) {
		into := empty.DeepCopyObject().(client.ObjectList)
		return kube.List[T](ctx, c, what, into, client.InNamespace(namespace), client.MatchingFields{indexOwner: owner})
	}
}

// roster holds the Pods that may concern a CloneSet as the watch has shown them, by namespace and
// controller, in name order. So a pass neither copies nor sorts the Pods of its set.
type roster struct {
	mu    sync.Mutex
	lists map[rosterKey]*rosterList
}

// rosterKey names a namespace and the UID of a controller; orphanKey stands for none.
type rosterKey struct{ namespace, owner string }

type rosterList struct {
	pods []*corev1.Pod
	// lent means that a pass may be reading the slice: a change needs a copy.
	lent bool
}

// keyOfRoster returns the key under which a Pod is listed; the zero key for no Pod, and for a Pod that
// concerns no CloneSet.
func keyOfRoster(pod *corev1.Pod) rosterKey {
	if pod == nil || foreign(pod) {
		return rosterKey{}
	}
	return rosterKey{pod.Namespace, ownerOf(pod)[0]}
}

// foreign reports whether the object's controller is something other than a CloneSet.
func foreign(object client.Object) bool {
	owner := metav1.GetControllerOfNoCopy(object)
	return owner != nil && owner.Kind != apps.KindCloneSet.Kind
}

// changed applies an event; either version may be nil.
func (r *roster) changed(before, after *corev1.Pod) {
	was, is := keyOfRoster(before), keyOfRoster(after)
	if was != is {
		r.put(was, before, nil)
	}
	r.put(is, after, after)
}

// put replaces the Pod with the name of another version; nil removes it.
func (r *roster) put(key rosterKey, name, pod *corev1.Pod) {
	if key == (rosterKey{}) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.lists[key]
	if list == nil {
		list = &rosterList{}
		r.lists[key] = list
	}
	if list.lent {
		list.pods, list.lent = slices.Clone(list.pods), false
	}
	at, found := slices.BinarySearchFunc(list.pods, name.Name, func(p *corev1.Pod, name string) int { return strings.Compare(p.Name, name) })
	switch {
	case found && pod != nil:
		list.pods[at] = pod
	case found:
		list.pods = slices.Delete(list.pods, at, at+1)
	case pod != nil:
		list.pods = slices.Insert(list.pods, at, pod)
	}
	if len(list.pods) == 0 {
		delete(r.lists, key)
	}
}

// on returns the Pods of CloneSets on a node.
func (r *roster) on(node string) (pods []*corev1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	isOn := func(pod *corev1.Pod) bool {
		return pod.Spec.NodeName == node && metav1.GetControllerOfNoCopy(pod) != nil
	}
	for _, of := range r.lists {
		pods = append(pods, list.Only(of.pods, isOn)...)
	}
	slices.SortFunc(pods, kube.ByName)
	return pods
}

// WatchedPods lists Pods as of the last events that PodEvents has handled.
func (r *Reconciler) WatchedPods(_ context.Context, namespace, owner string) ([]*corev1.Pod, error) {
	r.roster.mu.Lock()
	defer r.roster.mu.Unlock()
	list := r.roster.lists[rosterKey{namespace, owner}]
	if list == nil {
		return nil, nil
	}
	list.lent = true
	return list.pods, nil
}
