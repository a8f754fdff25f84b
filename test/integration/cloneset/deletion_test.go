// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// TestDeletingASet deletes a set whose Pods a hook holds, under the real garbage collector.
func TestDeletingASet(t *testing.T) {
	answer := func(s *story) {
		for _, pod := range s.in(apps.StatePreparingDelete) {
			s.label(pod.Name, deleteKey, "false")
		}
	}
	for _, test := range []struct {
		name, patch string
		how         metav1.DeletionPropagation
		// then lets the Pods go; nil if the set waits for none of them.
		then func(*story)
	}{
		{name: "in background", how: metav1.DeletePropagationBackground, then: answer},
		{name: "paused, with a partition", how: metav1.DeletePropagationBackground, then: answer,
			patch: `spec: {updateStrategy: {paused: true, partition: 2, type: OnDelete}}`},
		{name: "the hook is removed in mid-deletion", how: metav1.DeletePropagationBackground,
			then: func(s *story) { s.patch(`spec: {lifecycle: {preDelete: null}}`) }},
		{name: "in foreground", how: metav1.DeletePropagationForeground},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := withoutController(t)
			stop := s.startController()
			s.create("hooked")
			s.settled(2)
			if test.patch != "" {
				s.patch("%s", test.patch)
			}
			s.Must(s.Delete(t.Context(), s.key(), client.PropagationPolicy(test.how)))
			if test.then != nil {
				s.atTheGate()
				stop()
				s.startController()
				test.then(s)
			}
			s.Gone(s.key())
			s.until("its Pods and revisions to be gone", func() bool { return len(s.pods()) == 0 && len(s.revisions()) == 0 })
		})
	}
}

// atTheGate waits until the deleted set says that it waits for both of its Pods.
func (s *story) atTheGate() {
	s.Helper()
	s.until("both Pods at their gate", func() bool { return len(s.in(apps.StatePreparingDelete)) == 2 })
	s.isTrue(apps.ConditionBlocked, deleteKey+" since ", ", before the CloneSet is deleted", "1 other Pod waits")
	if got := s.set().Finalizers; !slices.Contains(got, apps.FinalizerPreDelete) {
		s.Errorf("nothing but %q holds the set", got)
	}
}

// TestDeletingASetWithoutItsPods orphans the Pods, at once or after all, and a new set of
// that name takes them over.
func TestDeletingASetWithoutItsPods(t *testing.T) {
	for name, waits := range map[string]bool{"at once": false, "after it has waited": true} {
		t.Run(name, func(t *testing.T) {
			s := running(t, "hooked")
			before, labels := s.identities(), s.podLabels()
			if waits {
				s.Must(s.Delete(t.Context(), s.key()))
				s.atTheGate()
			}
			s.Must(s.Delete(t.Context(), s.key(), client.PropagationPolicy(metav1.DeletePropagationOrphan)))
			s.Gone(s.key())
			if !waits && !slices.Equal(labels, s.podLabels()) {
				t.Errorf("Pods %q became %q", labels, s.podLabels())
			}
			s.create("hooked")
			s.settled(2)
			s.samePods(before)
		})
	}
}

// podLabels are the labels of each Pod.
func (s *story) podLabels() []string {
	s.Helper()
	var out []string
	for _, pod := range s.pods() {
		out = append(out, pod.Name+" "+metav1.FormatLabelSelector(metav1.SetAsLabelSelector(pod.Labels)))
	}
	return out
}
