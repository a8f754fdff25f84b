// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/test/model"
)

func (w *podWrite) uid() types.UID {
	if w.new != nil {
		return w.new.UID
	}
	return w.old.UID
}

func (w *podWrite) serves(pod *corev1.Pod) bool { return available(pod, w.set, w.now) }

// counted reports whether a Pod counts as a replica.
func (w *podWrite) counted(pod *corev1.Pod) bool {
	excluded := w.set.Labels[apps.LabelScalingExcludePreparingDelete] == "true" && model.State(pod) == apps.StatePreparingDelete
	return model.Active(pod) && !excluded
}

// rivals reports whether another process has written something this one cannot know
// yet: two leaders cannot share one budget.
func (w *podWrite) rivals() bool {
	p := w.process
	for _, c := range p.server.Log[model.Pods][p.pass.upTo:] {
		if c.Actor != p.name && isProcess(c.Actor) {
			return true
		}
	}
	return false
}

// tooManyUnavailable allows a serving Pod to be taken down only if enough others serve.
// Whether the Pod itself serves does not depend on what the process knew, because the
// write can carry that as a precondition. The process cannot be sure of the other Pods.
func tooManyUnavailable(w *podWrite) string {
	if w.old == nil || !w.serves(w.old) || (w.new != nil && w.serves(w.new)) || w.rivals() {
		return ""
	}
	left, floor := w.after.count(w.serves), replicas(w.set)-unavailableOf(w.set)
	if left < floor {
		return fmt.Sprintf("Pod %s is taken out of service and leaves %d available Pods of %d replicas, with maxUnavailable %d",
			w.name(), left, replicas(w.set), unavailableOf(w.set))
	}
	return ""
}

// tooManyTouched also limits how many Pods that do not serve are updated or replaced at
// a time. Surplus Pods that do not serve can always be deleted.
func tooManyTouched(w *podWrite) string {
	if !w.touchesIdle() || w.rivals() || (w.leaves() && w.staying() >= replicas(w.set)) {
		return ""
	}
	if doomed(w.old, w.set) {
		return w.tooManyNamed(w.old)
	}
	settled := w.after.count(func(pod *corev1.Pod) bool {
		return w.counted(pod) && !w.serves(pod) && (w.underWay(pod) || (of(pod, w.update) && !doomed(pod, w.set)))
	})
	room := unavailableOf(w.set) + w.after.count(w.counted) - replicas(w.set)
	if settled > room {
		return fmt.Sprintf("Pod %s does not serve and is touched; now %d such Pods are being updated, replaced or started, and there is room for %d",
			w.name(), settled, room)
	}
	return ""
}

// touchesIdle reports whether the write starts the update or the deletion of a Pod that
// does not serve.
func (w *podWrite) touchesIdle() bool {
	if w.old == nil || !model.Active(w.old) || w.serves(w.old) || w.underWay(w.old) {
		return false
	}
	return w.new == nil || !model.Active(w.new) || w.underWay(w.new)
}

// leaves reports whether the Pod is deleted, or is taken to the gate before deletion.
func (w *podWrite) leaves() bool {
	return w.new == nil || !model.Active(w.new) || model.State(w.new) == apps.StatePreparingDelete
}

// staying counts the Pods that are not on their way out. That includes a Pod whose
// update had begun and that this same pass recreates instead: it is not surplus, and
// the surplus was decided independently of it, whatever the order of the two writes.
func (w *podWrite) staying() int {
	const gate = apps.StatePreparingDelete
	instead := map[types.UID]bool{}
	for _, c := range w.process.server.Log[model.Pods][w.process.pass.upTo:] {
		if old, ok := c.Old.(*corev1.Pod); ok && c.Actor == w.process.name && model.State(old) != gate && begun(old) {
			instead[old.UID] = true
		}
	}
	return w.after.count(func(pod *corev1.Pod) bool { return model.Active(pod) && (model.State(pod) != gate || instead[pod.UID]) })
}

// tooManyNamed limits how many Pods that are named for deletion and do not serve are
// deleted while their replacements are being created. Older broken Pods delay the
// deletion no more than they always did.
func (w *podWrite) tooManyNamed(was *corev1.Pod) string {
	made := w.after.count(func(pod *corev1.Pod) bool {
		return w.counted(pod) && !w.serves(pod) &&
			(model.State(pod) == apps.StatePreparingDelete || (of(pod, w.update) && !doomed(pod, w.set) && pod.CreationTimestamp.After(was.CreationTimestamp.Time)))
	})
	room := max(unavailableOf(w.set), 1) + w.after.count(w.counted) - replicas(w.set)
	if made > room {
		return fmt.Sprintf("Pod %s was named for deletion and goes; now %d Pods are being replaced, and there is room for %d", w.name(), made, room)
	}
	return ""
}

// underWay reports whether the update or the deletion of a Pod has begun.
func (w *podWrite) underWay(pod *corev1.Pod) bool {
	return begun(pod) || model.State(pod) == apps.StatePreparingDelete
}

// tooManyPods allows a Pod to be created only for a free place, and surge only while
// there is something to surge for.
func tooManyPods(w *podWrite) string {
	if w.old != nil || w.rivals() {
		return ""
	}
	surge := surgeOf(w.set)
	need := w.after.count(func(pod *corev1.Pod) bool {
		return model.Active(pod) && (!of(pod, w.update) || doomed(pod, w.set))
	})
	most := replicas(w.set) + min(surge, need)
	if n := w.after.count(w.counted); n > most {
		return fmt.Sprintf("Pod %s is created and makes %d, with %d replicas and a surge of %d for %d Pods",
			w.name(), n, replicas(w.set), surge, need)
	}
	return ""
}
