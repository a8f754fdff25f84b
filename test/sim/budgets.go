// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/test/model"
)

func (d *deed) uid() types.UID {
	if d.new != nil {
		return d.new.UID
	}
	return d.old.UID
}

func (d *deed) serves(pod *corev1.Pod) bool { return available(pod, d.set, d.now) }

// counted reports whether a Pod counts as a replica.
func (d *deed) counted(pod *corev1.Pod) bool {
	excluded := d.set.Labels[apps.LabelScalingExcludePreparingDelete] == "true" && model.State(pod) == apps.StatePreparingDelete
	return model.Active(pod) && !excluded
}

// rivals reports whether another process has written something this one cannot know
// yet: two leaders cannot share one budget.
func (d *deed) rivals() bool {
	p := d.process
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
func tooManyUnavailable(d *deed) string {
	if d.old == nil || !d.serves(d.old) || (d.new != nil && d.serves(d.new)) || d.rivals() {
		return ""
	}
	left, floor := d.after.count(d.serves), replicas(d.set)-unavailableOf(d.set)
	if left < floor {
		return fmt.Sprintf("Pod %s is taken out of service and leaves %d available Pods of %d replicas, with maxUnavailable %d",
			d.name(), left, replicas(d.set), unavailableOf(d.set))
	}
	return ""
}

// tooManyTouched also limits how many Pods that do not serve are updated or replaced at
// a time. Surplus Pods that do not serve can always be deleted.
func tooManyTouched(d *deed) string {
	if !d.touchesIdle() || d.rivals() || (d.leaves() && d.staying() >= replicas(d.set)) {
		return ""
	}
	if doomed(d.old, d.set) {
		return d.tooManyNamed(d.old)
	}
	settled := d.after.count(func(pod *corev1.Pod) bool {
		return d.counted(pod) && !d.serves(pod) && (d.underWay(pod) || (of(pod, d.update) && !doomed(pod, d.set)))
	})
	room := unavailableOf(d.set) + d.after.count(d.counted) - replicas(d.set)
	if settled > room {
		return fmt.Sprintf("Pod %s does not serve and is touched; now %d such Pods are being updated, replaced or started, and there is room for %d",
			d.name(), settled, room)
	}
	return ""
}

// touchesIdle reports whether the deed starts the update or the deletion of a Pod that
// does not serve.
func (d *deed) touchesIdle() bool {
	if d.old == nil || !model.Active(d.old) || d.serves(d.old) || d.underWay(d.old) {
		return false
	}
	return d.new == nil || !model.Active(d.new) || d.underWay(d.new)
}

// leaves reports whether the Pod is deleted, or is taken to the gate before deletion.
func (d *deed) leaves() bool {
	return d.new == nil || !model.Active(d.new) || model.State(d.new) == apps.StatePreparingDelete
}

// staying counts the Pods that are not on their way out. That includes a Pod whose
// update had begun and that this same pass recreates instead: it is not surplus, and
// the surplus was decided independently of it, whatever the order of the two writes.
func (d *deed) staying() int {
	const gate = apps.StatePreparingDelete
	instead := map[types.UID]bool{}
	for _, c := range d.process.server.Log[model.Pods][d.process.pass.upTo:] {
		if old, ok := c.Old.(*corev1.Pod); ok && c.Actor == d.process.name && model.State(old) != gate && begun(old) {
			instead[old.UID] = true
		}
	}
	return d.after.count(func(pod *corev1.Pod) bool { return model.Active(pod) && (model.State(pod) != gate || instead[pod.UID]) })
}

// tooManyNamed limits how many Pods that are named for deletion and do not serve are
// deleted while their replacements are being created. Older broken Pods delay the
// deletion no more than they always did.
func (d *deed) tooManyNamed(was *corev1.Pod) string {
	made := d.after.count(func(pod *corev1.Pod) bool {
		return d.counted(pod) && !d.serves(pod) &&
			(model.State(pod) == apps.StatePreparingDelete || (of(pod, d.update) && !doomed(pod, d.set) && pod.CreationTimestamp.After(was.CreationTimestamp.Time)))
	})
	room := max(unavailableOf(d.set), 1) + d.after.count(d.counted) - replicas(d.set)
	if made > room {
		return fmt.Sprintf("Pod %s was named for deletion and goes; now %d Pods are being replaced, and there is room for %d", d.name(), made, room)
	}
	return ""
}

// underWay reports whether the update or the deletion of a Pod has begun.
func (d *deed) underWay(pod *corev1.Pod) bool {
	return begun(pod) || model.State(pod) == apps.StatePreparingDelete
}

// tooManyPods allows a Pod to be created only for a free place, and surge only while
// there is something to surge for.
func tooManyPods(d *deed) string {
	if d.old != nil || d.rivals() {
		return ""
	}
	surge := surgeOf(d.set)
	need := d.after.count(func(pod *corev1.Pod) bool {
		return model.Active(pod) && (!of(pod, d.update) || doomed(pod, d.set))
	})
	most := replicas(d.set) + min(surge, need)
	if n := d.after.count(d.counted); n > most {
		return fmt.Sprintf("Pod %s is created and makes %d, with %d replicas and a surge of %d for %d Pods",
			d.name(), n, replicas(d.set), surge, need)
	}
	return ""
}
