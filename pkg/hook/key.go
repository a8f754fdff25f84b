// SPDX-License-Identifier: Apache-2.0

package hook

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

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

// String is the label's key or the finalizer.
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
