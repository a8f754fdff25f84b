// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// Gate is a point in a Pod's life at which a hook may hold it.
type Gate string

// The gates, in the order of a Pod's life.
const (
	// PreNormal lets a new Ready Pod pass: PreparingNormal → Normal.
	PreNormal Gate = "preNormal"
	// Created is reported once for a Pod that is Normal and Ready. It holds nothing.
	Created Gate = "created"
	// PreUpdate comes before a Pod is updated in place: PreparingUpdate → Updating.
	PreUpdate Gate = "preUpdate"
	// Updated comes when the updated Pod is Ready: Updated → Normal.
	Updated Gate = "updated"
	// PreDelete comes before a Pod is deleted and, for a finalizer or a guarded Pod, also
	// after someone other than the controller has deleted it.
	PreDelete Gate = "preDelete"
)

// joins reports whether the gate opens when the key is added to the Pod, rather than
// removed.
func (g Gate) joins() bool { return g == PreNormal || g == Updated }

// pending returns the gate where the Pod is, and the hook that it waits for; false if it
// waits for none of these.
func (o *Operator) pending(pod *corev1.Pod) (h hook, waits bool) {
	h, ok := o.hooks[gateOf(pod)]
	switch {
	case !ok && pod.DeletionTimestamp != nil:
		// No Handler is due, but the guard must be removed.
		return hook{gate: PreDelete}, o.guards(pod)
	case !ok:
		return hook{}, false
	case pod.DeletionTimestamp != nil:
		return h, o.guards(pod) || h.key.finalizer && h.key.on(pod)
	case h.gate.joins():
		return h, !h.key.on(pod) && ready(pod)
	case h.gate == Created:
		return h, h.key.on(pod) && ready(pod)
	}
	return h, h.key.on(pod)
}

// gates are the gates of Pods by their state.
var gates = map[appsv1alpha1.LifecycleState]Gate{
	appsv1alpha1.StatePreparingNormal: PreNormal,
	appsv1alpha1.StateNormal:          Created,
	appsv1alpha1.StatePreparingUpdate: PreUpdate,
	appsv1alpha1.StateUpdated:         Updated,
	appsv1alpha1.StatePreparingDelete: PreDelete,
}

// gateOf returns the gate where a Pod is; empty if it is at none.
func gateOf(pod *corev1.Pod) Gate {
	if pod.DeletionTimestamp != nil {
		return PreDelete
	}
	return gates[appsv1alpha1.LifecycleState(pod.Labels[appsv1alpha1.LabelLifecycleState])]
}

// pass changes the Pod as the gate requires: it adds or removes the key and, on a
// terminating Pod, removes the guard.
func (o *Operator) pass(pod *corev1.Pod, h hook) {
	if h.key != (Key{}) && (pod.DeletionTimestamp == nil || h.key.finalizer) {
		h.key.put(pod, h.gate.joins())
	}
	if pod.DeletionTimestamp != nil && o.guard != "" {
		controllerutil.RemoveFinalizer(pod, o.guard)
	}
}

// since returns when the Pod reached its gate; zero if unknown.
func since(pod *corev1.Pod) time.Time {
	if pod.DeletionTimestamp != nil {
		grace := ptr.Deref(pod.DeletionGracePeriodSeconds, 0)
		return pod.DeletionTimestamp.Add(-time.Duration(grace) * time.Second)
	}
	at, err := time.Parse(time.RFC3339, pod.Annotations[appsv1alpha1.AnnotationLifecycleTimestamp])
	if err != nil {
		at = pod.CreationTimestamp.Time
	}
	// A gate that only Ready Pods reach has held the Pod since it became Ready.
	if c := condition(pod, corev1.PodReady); gateOf(pod).joinsReady() && c != nil && c.LastTransitionTime.After(at) {
		return c.LastTransitionTime.Time
	}
	return at
}

func (g Gate) joinsReady() bool { return g.joins() || g == Created }

func ready(pod *corev1.Pod) bool {
	c := condition(pod, corev1.PodReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

func condition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	at := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
	if at < 0 {
		return nil
	}
	return &pod.Status.Conditions[at]
}

// Key is what holds a Pod at a gate: a label with a value, or a finalizer, as
// spec.lifecycle of the CloneSet names it. Create one with Label, LabelValue or
// Finalizer.
type Key struct {
	name            string
	holds, released string
	finalizer       bool
}

// Label holds a Pod with the value "true" and releases it with "false".
func Label(key string) Key { return LabelValue(key, "true", "false") }

// LabelValue holds a Pod with one value of a label and releases it with another.
func LabelValue(key, holds, released string) Key {
	return Key{name: key, holds: holds, released: released}
}

// Finalizer holds a Pod while it has the finalizer, also when someone other than its
// CloneSet deletes it.
func Finalizer(name string) Key { return Key{name: name, finalizer: true} }

// String returns the label's key or the finalizer.
func (k Key) String() string { return k.name }

// on reports whether the key holds the Pod.
func (k Key) on(pod *corev1.Pod) bool {
	if k.finalizer {
		return controllerutil.ContainsFinalizer(pod, k.name)
	}
	value, ok := pod.Labels[k.name]
	return ok && value == k.holds
}

// put sets whether the key holds the Pod.
func (k Key) put(pod *corev1.Pod, holds bool) {
	switch {
	case k.finalizer && holds:
		controllerutil.AddFinalizer(pod, k.name)
	case k.finalizer:
		controllerutil.RemoveFinalizer(pod, k.name)
	case holds:
		metav1.SetMetaDataLabel(&pod.ObjectMeta, k.name, k.holds)
	default:
		metav1.SetMetaDataLabel(&pod.ObjectMeta, k.name, k.released)
	}
}
