// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/test/model"
)

// takeOutByHand changes a Pod's labels so that its set no longer matches it, as a user
// does to debug it undisturbed; later it is put back, or deleted, or neither.
func (s *Simulation) takeOutByHand() {
	s.eachOf(1, func(pod *corev1.Pod) {
		s.changePod(pod, func(pod *corev1.Pod) { pod.Labels["app"] = "apart" })
		then := func() { s.changePod(pod, func(pod *corev1.Pod) { pod.Labels["app"] = "demo" }) }
		if !s.World.roll(0.5) {
			if s.World.roll(0.5) {
				return
			}
			then = func() {
				_ = s.Server.Delete("user", model.Pods, client.ObjectKeyFromObject(pod), model.Deletion{UID: pod.UID})
			}
		}
		s.World.after(s.World.between(0, pick(s.World, time.Second, time.Minute)), then)
	})
}

// stray reports whether a set's selector does not match a Pod.
func stray(pod *corev1.Pod, set *apps.CloneSet) bool {
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector.AsMeta())
	return err == nil && !selector.Matches(labels.Set(pod.Labels))
}

// frees reports whether the write removes the set from the Pod's owners and does nothing
// else.
func (w *podWrite) frees() bool {
	if w.old == nil || w.new == nil || model.OwnerOf(w.old) != string(w.set.UID) || model.OwnerOf(w.new) == string(w.set.UID) {
		return false
	}
	before := w.old.DeepCopy()
	before.ResourceVersion, before.OwnerReferences = w.new.ResourceVersion, w.new.OwnerReferences
	return model.Same(before, w.new)
}

// strayTouched: a Pod that the set does not match is released unchanged, and only such
// a Pod is released.
func strayTouched(w *podWrite) string {
	if w.old == nil || model.OwnerOf(w.old) != string(w.set.UID) || w.old.DeletionTimestamp != nil {
		return ""
	}
	switch out := stray(w.old, w.set); {
	case out && !w.frees() && !w.onlyOpens():
		return fmt.Sprintf("Pod %s does not match the selector, and is changed", w.name())
	case !out && w.new != nil && model.OwnerOf(w.new) != string(w.set.UID):
		return fmt.Sprintf("Pod %s matches the selector, and is let go", w.name())
	}
	return ""
}
