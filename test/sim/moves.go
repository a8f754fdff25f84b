// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/test/model"
)

// othersWiped: the controller changes only its own keys and those of the hooks and the
// template.
func othersWiped(w *podWrite) {
	if w.old == nil || w.new == nil {
		return
	}
	keys := slices.Concat(
		changed(w.old.Labels, w.new.Labels), changed(w.old.Annotations, w.new.Annotations),
		lacking(w.old.Finalizers, w.new.Finalizers), lacking(w.new.Finalizers, w.old.Finalizers),
	)
	// All keys that belong neither to the controller nor to a hook or a template start with this.
	others := slices.DeleteFunc(keys, func(key string) bool { return !strings.HasPrefix(key, "other/") })
	if len(others) > 0 {
		w.fail("loses or gets %v", others)
	}
}

// moves are the allowed transitions.
var moves = map[apps.LifecycleState][]apps.LifecycleState{
	apps.StatePreparingNormal: {apps.StateNormal, apps.StatePreparingUpdate, apps.StateUpdating, apps.StatePreparingDelete},
	apps.StateNormal:          {apps.StatePreparingUpdate, apps.StateUpdating, apps.StatePreparingDelete},
	apps.StatePreparingUpdate: {apps.StateUpdating, apps.StateUpdated, apps.StateNormal, apps.StatePreparingNormal, apps.StatePreparingDelete},
	apps.StateUpdating:        {apps.StateUpdated, apps.StateNormal, apps.StatePreparingNormal, apps.StatePreparingDelete},
	apps.StateUpdated:         {apps.StateNormal, apps.StatePreparingNormal, apps.StatePreparingUpdate, apps.StatePreparingDelete},
	apps.StatePreparingDelete: {apps.StatePreparingNormal},
}

func illegalMove(w *podWrite) {
	switch {
	case w.new == nil:
	case w.old == nil:
		if model.State(w.new) != apps.StatePreparingNormal {
			w.fail("is created in %s", model.State(w.new))
		}
	case w.moves() && !slices.Contains(moves[model.State(w.old)], model.State(w.new)):
		w.fail("moves from %s to %s", model.State(w.old), model.State(w.new))
	}
}

// gateForced: no Pod becomes Normal before preNormal confirms it, or leaves an update
// before the inPlaceUpdate hook holds again.
func gateForced(w *podWrite) {
	if !w.moves() || model.State(w.new) != apps.StateNormal {
		return
	}
	missing := w.hooks.PreNormal.Missing(w.old.Labels, w.old.Finalizers)
	if model.State(w.old) != apps.StatePreparingNormal {
		missing = append(missing, w.hooks.InPlaceUpdate.Missing(w.old.Labels, w.old.Finalizers)...)
	}
	if len(missing) > 0 {
		w.fail("moves from %s to Normal, and its hooks have not set %s", model.State(w.old), strings.Join(missing, ", "))
	}
}

// doneTooEarly: a Pod leaves Updating only when the kubelet runs its spec and the Pod is back in
// service, so that a hook operator that registers it sees it ready.
func doneTooEarly(w *podWrite) {
	if !w.moves() || model.State(w.old) != apps.StateUpdating || model.State(w.new) == apps.StatePreparingDelete {
		return
	}
	if what := w.process.nodes.truth(w.old); what != "" {
		w.fail("leaves Updating, but %s", what)
	}
	if model.Condition(w.new, apps.ConditionInPlaceUpdateReady).Status == corev1.ConditionFalse {
		w.fail("leaves Updating before it is back in service")
	}
}

// wrongRevision: a new Pod gets the current revision while there are fewer old Pods
// than the partition keeps.
func wrongRevision(w *podWrite) {
	current := w.set.Status.CurrentRevision
	if w.old != nil || current == "" || !of(w.new, w.update) || revision.Same(current, w.update) || !w.process.shows(current) {
		return
	}
	// A Pod that a scale-in chose counts as old: a growing set takes it back before it creates others. If that write is
	// refused, the next pass repeats it.
	planned := func(pod *corev1.Pod) bool {
		return model.State(pod) == apps.StatePreparingDelete && !specified(pod, w.set) && !w.leavesNode(pod)
	}
	if old := w.oldPods(planned); old < partitionOf(w.set) {
		w.fail("is created of the update revision, with %d old Pods and a partition of %d", old, partitionOf(w.set))
	}
}

// keepsOld reports whether a Pod has an old revision and is to stay.
func (w *podWrite) keepsOld(pod *corev1.Pod) bool {
	return model.Active(pod) && !of(pod, w.update) && !w.doomed(pod)
}

// oldPods counts the Pods of an old revision that are to stay, and the others for which also is true.
func (w *podWrite) oldPods(also func(*corev1.Pod) bool) int {
	return w.after.count(func(pod *corev1.Pod) bool {
		return w.keepsOld(pod) || (model.Active(pod) && !of(pod, w.update) && also(pod))
	})
}

// partitionOverrun: no Pod that the partition keeps is updated, or deleted for the update. A Pod that
// leaves its node counts until it is at its gate: its replacement keeps the old revision, too.
func partitionOverrun(w *podWrite) {
	pod, was := w.after.find(w.uid()), w.before.find(w.uid())
	if was == nil || !w.keepsOld(was) || (pod != nil && w.keepsOld(pod)) || w.frees() {
		return
	}
	waits := func(pod *corev1.Pod) bool { return w.leavesNode(pod) && model.State(pod) != apps.StatePreparingDelete }
	if old := w.oldPods(waits); old < partitionOf(w.set) {
		w.fail("leaves the old revision, %d Pods of it are left, and the partition is %d", old, partitionOf(w.set))
	}
}

// updatedAgainstWill: no update begins while paused, and none ever begins with
// OnDelete. A Pod whose update cannot go on may return to another revision.
func updatedAgainstWill(w *podWrite) {
	u := &w.set.Spec.UpdateStrategy
	begins := w.updates() || (w.moves() && model.State(w.new) == apps.StatePreparingUpdate)
	switch {
	case !begins, w.continues(), w.returns():
	case u.Paused:
		w.fail("is updated while the set is paused")
	case u.Type == apps.UpdateOnDelete:
		w.fail("is updated, and the type is OnDelete")
	}
}

// continues reports whether the write continues an update that has begun, if need be from the gate.
func (w *podWrite) continues() bool {
	return begun(w.old) && w.old.Labels[apps.LabelRevision] == w.new.Labels[apps.LabelRevision]
}

// returns reports whether the write leads a Pod out of an update that cannot go on.
func (w *podWrite) returns() bool {
	return model.State(w.old) == apps.StateUpdating && !of(w.new, w.update)
}

func (w *podWrite) uid() types.UID { return cmp.Or(w.new, w.old).UID }

func (w *podWrite) serves(pod *corev1.Pod) bool { return available(pod, w.set, w.now) }

// counted reports whether a Pod counts as a replica.
func (w *podWrite) counted(pod *corev1.Pod) bool {
	excluded := w.set.Labels[apps.LabelScalingExcludePreparingDelete] == "true" && model.State(pod) == apps.StatePreparingDelete
	return model.Active(pod) && !excluded
}

// rivals reports whether another process has written something this one cannot know
// yet: two leaders cannot share one budget.
func (w *podWrite) rivals() bool { return w.process.rivals(model.Pods) }

// tooManyUnavailable allows a serving Pod to be taken down only if enough others serve.
// Whether the Pod itself serves does not depend on what the process knew, because the
// write can carry that as a precondition. The process cannot be sure of the other Pods.
func tooManyUnavailable(w *podWrite) {
	if w.old == nil || !w.serves(w.old) || (w.new != nil && w.serves(w.new)) || w.rivals() {
		return
	}
	left, floor := w.after.count(w.serves), replicas(w.set)-unavailableOf(w.set)
	if left < floor {
		w.fail("is taken out of service and leaves %d available Pods of %d replicas, with maxUnavailable %d",
			left, replicas(w.set), unavailableOf(w.set))
	}
}

// tooManyTouched also limits how many Pods that do not serve are updated or replaced at
// a time. Surplus Pods that do not serve can always be deleted.
func tooManyTouched(w *podWrite) {
	if !w.touchesIdle() || w.rivals() || (w.leaves() && w.staying() >= replicas(w.set)) {
		return
	}
	if w.doomed(w.old) {
		w.tooManyNamed()
		return
	}
	settled := w.after.count(func(pod *corev1.Pod) bool {
		return w.counted(pod) && !w.serves(pod) && (w.underWay(pod) || w.arrives(pod))
	})
	room := unavailableOf(w.set) + w.after.count(w.counted) - replicas(w.set)
	if settled > room {
		w.fail("does not serve and is touched; now %d such Pods are being updated, replaced or started, and there is room for %d",
			settled, room)
	}
}

// touchesIdle reports whether the write starts the update or the deletion of a Pod that
// does not serve.
func (w *podWrite) touchesIdle() bool {
	return w.old != nil && model.Active(w.old) && !w.serves(w.old) && !w.underWay(w.old) &&
		(w.new == nil || !model.Active(w.new) || w.underWay(w.new))
}

// leaves reports whether the Pod is deleted, or is taken to the gate before deletion.
func (w *podWrite) leaves() bool {
	return w.new == nil || !model.Active(w.new) || model.State(w.new) == apps.StatePreparingDelete
}

// staying counts the Pods that are not being removed. That includes a Pod whose update had begun and
// that this same pass recreates instead: it is not surplus, and the surplus was decided independently
// of it, whatever the order of the two writes.
func (w *podWrite) staying() int {
	const gate = apps.StatePreparingDelete
	instead := map[types.UID]bool{}
	for _, c := range w.process.Server.Log[model.Pods][w.process.pass.upTo[model.Pods]:] {
		if old, ok := c.Old.(*corev1.Pod); ok && c.Actor == w.process.name && model.State(old) != gate && begun(old) {
			instead[old.UID] = true
		}
	}
	return w.after.count(func(pod *corev1.Pod) bool { return model.Active(pod) && (model.State(pod) != gate || instead[pod.UID]) })
}

// tooManyNamed limits how many Pods that are named for deletion and do not serve are
// deleted while their replacements are being created. Older broken Pods delay the
// deletion no more than they always did.
func (w *podWrite) tooManyNamed() {
	made := w.after.count(func(pod *corev1.Pod) bool {
		return w.counted(pod) && !w.serves(pod) &&
			(model.State(pod) == apps.StatePreparingDelete || (w.arrives(pod) && pod.CreationTimestamp.After(w.old.CreationTimestamp.Time)))
	})
	room := max(unavailableOf(w.set), 1) + w.after.count(w.counted) - replicas(w.set)
	if made > room {
		w.fail("was named for deletion and goes; now %d Pods are being replaced, and there is room for %d", made, room)
	}
}

// underWay reports whether the update or the deletion of a Pod has begun.
func (w *podWrite) underWay(pod *corev1.Pod) bool {
	return begun(pod) || model.State(pod) == apps.StatePreparingDelete
}

// arrives reports whether a Pod that stays has the update revision. An update in this pass that changes
// no running container does not count: it costs nothing, and the order of a pass's writes is not known.
func (w *podWrite) arrives(pod *corev1.Pod) bool {
	return of(pod, w.update) && !w.doomed(pod) && !slices.ContainsFunc(w.process.Server.Log[model.Pods][w.process.pass.decidedAt:], func(c *model.Commit) bool {
		old, next := c.Pods()
		return c.Actor == w.process.name && old != nil && next != nil && next.UID == pod.UID && !of(old, w.update) && of(next, w.update)
	})
}

// tooManyPods allows a Pod to be created only for a free place, and surge only while an update or a
// replacement needs it.
func tooManyPods(w *podWrite) {
	if w.old != nil || w.rivals() {
		return
	}
	surge := surgeOf(w.set)
	need := w.after.count(func(pod *corev1.Pod) bool {
		return model.Active(pod) && (w.needsSurge(pod) || w.doomed(pod))
	})
	need += goBack(w.set, w.after, w.update)
	most := replicas(w.set) + min(surge, need)
	if n := w.after.count(w.counted); n > most {
		w.fail("is created and makes %d, with %d replicas and a surge of %d for %d Pods", n, replicas(w.set), surge, need)
	}
}

// needsSurge reports whether another Pod should serve while this one is updated: not for a change of
// labels alone, nor for one in place if the user wants no surge for it. Where changes are refused, Pods
// may be recreated that need not be.
func (w *podWrite) needsSurge(pod *corev1.Pod) bool {
	if of(pod, w.update) {
		return false
	}
	was, is := templateOfPod(w.process.Server, pod), templateOf(w.process.Server, w.set.Namespace, w.update)
	recreates := w.set.Spec.UpdateStrategy.Type != apps.UpdateInPlaceIfPossible || w.process.refusedOnce
	if recreates || !inPlace(was, is) || w.recreatesForClaims(pod) {
		return true
	}
	if w.set.Annotations[apps.AnnotationSurgeInPlace] == "false" && unavailableOf(w.set) > 0 {
		return false
	}
	gated := begun(pod) || model.State(pod) == apps.StateUpdated || w.hooks.InPlaceUpdate.Holds(pod.Labels, pod.Finalizers)
	return gated || !reflect.DeepEqual(was.Spec, is.Spec)
}

// inPlace reports whether a Pod can get from one template to another; nil is a template that nobody
// knows. Only labels, annotations, images and the amounts of resources can change.
func inPlace(was, is *corev1.PodTemplateSpec) bool {
	if was == nil || is == nil {
		return false
	}
	return reflect.DeepEqual(fixed(was), fixed(is))
}

// fixed returns the template without what can change in place.
func fixed(template *corev1.PodTemplateSpec) *corev1.PodTemplateSpec {
	out := template.DeepCopy()
	out.Labels, out.Annotations = nil, nil
	for i := range out.Spec.Containers {
		c := &out.Spec.Containers[i]
		c.Image = ""
		for name := range c.Resources.Requests {
			c.Resources.Requests[name] = resource.Quantity{}
		}
	}
	return out
}

// leaveNodes reports whether a set's Pods leave cordoned nodes.
func leaveNodes(set *apps.CloneSet) bool {
	keepsClaims := len(set.Spec.VolumeClaimTemplates) > 0 && !set.Spec.ScaleStrategy.DisablePVCReuse
	return !lifecycle.FromSpec(set.Spec.Lifecycle).PreDelete.Empty() && !keepsClaims
}

// leftBehind names the cordoned node that a Pod is still on.
func (s *Simulation) leftBehind(pod *corev1.Pod, set *apps.CloneSet) string {
	if leaveNodes(set) && s.nodes.cordoned(pod.Spec.NodeName) {
		return "is still on " + pod.Spec.NodeName + ", which is cordoned"
	}
	return ""
}

// leavesNode reports whether the Pod is to leave its node, as far as the pass knew.
func (w *podWrite) leavesNode(pod *corev1.Pod) bool {
	return leaveNodes(w.set) && unschedulable(w.process.pass.nodes[key("", pod.Spec.NodeName)])
}

// doomed reports whether a Pod is to be deleted.
func (w *podWrite) doomed(pod *corev1.Pod) bool {
	return model.State(pod) == apps.StatePreparingDelete || specified(pod, w.set) || w.leavesNode(pod)
}

// namedForNothing: the controller names a Pod for deletion only if the user did, if it
// leaves its node, or if it is recreated for an update.
func namedForNothing(w *podWrite) {
	was := w.before.find(w.uid())
	if w.old == nil || w.new == nil || was == nil || w.new.Labels[apps.LabelSpecifiedDelete] == w.old.Labels[apps.LabelSpecifiedDelete] {
		return
	}
	if of(was, w.update) && !w.doomed(was) && goBack(w.set, w.before, w.update) == 0 {
		w.fail("is named for deletion, and nobody asked for that")
	}
}
