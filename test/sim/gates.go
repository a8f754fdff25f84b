// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/test/model"
)

// This file is about what a set does only if an annotation asks for it.

func asks(set *apps.CloneSet, annotation string) bool { return set.Annotations[annotation] == "true" }

// goBack returns how many Pods of the update revision are to go back to the current one, if the user
// wants that.
func goBack(set *apps.CloneSet, pods knowledge, update string) int {
	current := set.Status.CurrentRevision
	if !asks(set, apps.AnnotationPartitionRollback) || current == "" || revision.Same(current, update) {
		return 0
	}
	updated := pods.count(func(pod *corev1.Pod) bool { return model.Active(pod) && of(pod, update) })
	return max(updated-(replicas(set)-partitionOf(set)), 0)
}

// missingBack describes the Pods that have not gone back; "" if all have.
func (s *Simulation) missingBack(set *apps.CloneSet, pods knowledge, update string) string {
	if n := goBack(set, pods, update); n > 0 && s.updates(set) {
		return fmt.Sprintf("%d Pods have not gone back to the current revision, and the partition is %d", n, partitionOf(set))
	}
	return ""
}

// wentBack: a Pod leaves the update revision only because the partition keeps more Pods old than there
// are, and only if the user wants that.
func wentBack(w *podWrite) {
	if w.old == nil || w.new == nil || !of(w.old, w.update) || of(w.new, w.update) || !w.changesContainers() {
		return
	}
	updated := w.after.count(func(pod *corev1.Pod) bool { return model.Active(pod) && of(pod, w.update) && !w.doomed(pod) })
	switch stay := replicas(w.set) - partitionOf(w.set); {
	case !asks(w.set, apps.AnnotationPartitionRollback):
		w.fail("goes back to an old revision, and nobody asked for that")
	case updated < stay:
		w.fail("goes back to an old revision, %d Pods of the update revision are left, and %d may be", updated, stay)
	}
}

// gateLeft: a Pod at the gate before its update stays there as long as the partition allows so many
// updated Pods, if the user counts it as updated.
func gateLeft(w *podWrite) {
	if !w.keepsAtGate() || !w.moves() || of(w.old, w.update) || !atGate(w.old) || w.updates() || w.leaves() {
		return
	}
	n := w.before.count(func(pod *corev1.Pod) bool {
		return model.Active(pod) && !w.doomed(pod) && (of(pod, w.update) || atGate(pod))
	})
	if n <= replicas(w.set)-partitionOf(w.set) {
		w.fail("leaves the gate before its update, %d Pods are updated or at it, and the partition is %d of %d",
			n, partitionOf(w.set), replicas(w.set))
	}
}

// ofOtherClaims: a Pod whose claims are not those of the templates gets the update revision as a new Pod, if
// the user wants that.
func ofOtherClaims(w *podWrite) {
	if w.updates() && !w.goesOn() && of(w.new, w.update) && hasOtherClaims(w.set, w.old) {
		w.fail("is updated in place with the claims %v, and the templates are %v", claimTemplatesOf(w.old), templateNames(w.set))
	}
}

// hasOtherClaims reports whether a Pod's claims are not those of the templates, and the user wants another Pod
// for that.
func hasOtherClaims(set *apps.CloneSet, pod *corev1.Pod) bool {
	wants := slices.Sorted(slices.Values(templateNames(set)))
	return asks(set, apps.AnnotationRecreateForClaims) && !slices.Equal(claimTemplatesOf(pod), wants)
}

// recreatesForClaims reports whether a Pod's claims are not those of the templates, or one is not the set's any more,
// and the user wants another Pod for that.
func (w *podWrite) recreatesForClaims(pod *corev1.Pod) bool {
	return hasOtherClaims(w.set, pod) || asks(w.set, apps.AnnotationRecreateForClaims) && slices.ContainsFunc(claimsOf(pod), func(name string) bool {
		claim := model.Get[*corev1.PersistentVolumeClaim](w.process.Server.Objects, key(pod.Namespace, name))
		return claim == nil || model.OwnerOf(claim) != string(w.set.UID)
	})
}

// claimTemplatesOf names the templates of the claims that a Pod mounts, sorted.
func claimTemplatesOf(pod *corev1.Pod) (names []string) {
	for i := range pod.Spec.Volumes {
		if volume := &pod.Spec.Volumes[i]; volume.PersistentVolumeClaim != nil {
			names = append(names, volume.Name)
		}
	}
	slices.Sort(names)
	return names
}

// atGate reports whether a Pod is at the gate before its update.
func atGate(pod *corev1.Pod) bool { return model.State(pod) == apps.StatePreparingUpdate }

// keepsAtGate reports whether the set counts Pods at their gates as updated, and neither its strategy
// nor an image or a refusal sends them back.
func (w *podWrite) keepsAtGate() bool {
	u := &w.set.Spec.UpdateStrategy
	return asks(w.set, apps.AnnotationPreparingUpdateAsUpdated) && !u.Paused && u.Type == apps.UpdateInPlaceIfPossible &&
		!w.process.refusedOnce && w.process.Simulation.config.Nodes.Pull == 0
}

// randomGates switches on what users ask for by annotations. It has its own random source, as in
// randomEnd.
func randomGates(seed uint64, set *apps.CloneSet) {
	w := newWorld(seed ^ 0x9a7e5)
	for _, gate := range []string{"surgeInPlace false", "partitionRollback true", "preparingAsUpdated true"} {
		if w.roll(0.2) {
			to(gate)(set)
		}
	}
	if len(set.Spec.VolumeClaimTemplates) > 0 && w.roll(0.7) {
		to("recreateForClaims true")(set)
	}
}
