// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/plan"
)

// check holds the invariants that hold at every moment.
func (s *simulation) check() {
	s.Helper()
	held := map[string]bool{}
	for _, pod := range s.pods() {
		held[string(pod.UID)] = slices.Contains(pod.Finalizers, usherv1alpha1.Finalizer)
		if _, serving := s.listed(pod.UID); serving {
			s.lastSeen[pod.UID] = s.clock.Now()
		}
	}
	for _, name := range []string{"discovery", "backup"} {
		foreign := false
		object := &usherv1alpha1.Registry{}
		known := s.holds("", name, object)
		for _, e := range s.entries(name) {
			if e.ID == s.foreign.ID {
				foreign = e.Same(s.foreign) && e.Version == s.foreign.Version
			} else if !held[e.Owner.PodUID] {
				s.fail("%s lists %s, whose Pod could vanish or has", name, e.Owner.Pod)
			} else if !known || len(object.Status.Users) == 0 {
				s.fail("%s lists %s, and the Registry could vanish, or knows of no Registration: %+v", name, e.Owner.Pod, object)
			}
		}
		if !foreign {
			s.fail("the foreign entry in %s was touched", name)
		}
	}
}

// judge looks at a write of the operator to a Pod.
func (s *simulation) judge(before *corev1.Pod, o client.Object) {
	s.Helper()
	after, isPod := o.(*corev1.Pod)
	if !isPod || before == nil {
		return
	}
	for key, state := range map[string]appsv1alpha1.LifecycleState{
		keyInPlace: appsv1alpha1.StatePreparingUpdate, keyDelete: appsv1alpha1.StatePreparingDelete,
	} {
		if before.Labels[key] == "true" && after.Labels[key] == "false" {
			s.judgeRelease(before, key, state)
		}
	}
	lost := slices.Contains(before.Finalizers, usherv1alpha1.Finalizer) && !slices.Contains(after.Finalizers, usherv1alpha1.Finalizer)
	if listed, _ := s.listed(before.UID); lost && listed {
		s.fail("the finalizer of %s was removed while a registry lists it", before.Name)
	}
}

func (s *simulation) judgeRelease(pod *corev1.Pod, key string, state appsv1alpha1.LifecycleState) {
	s.Helper()
	gate := pod.Name + key + pod.Annotations[appsv1alpha1.AnnotationLifecycleTimestamp]
	s.released[gate]++
	stays := key == keyInPlace && s.features.policy == usherv1alpha1.InPlaceUpdateStay
	listed, serving := s.listed(pod.UID)
	switch last, ever := s.lastSeen[pod.UID]; {
	case plan.StateOf(pod) != state:
		s.fail("%s of %s was released in %s", key, pod.Name, plan.StateOf(pod))
	case s.released[gate] > 1:
		s.fail("%s of %s was released twice", key, pod.Name)
	case stays, s.overdue(key, pod):
	case serving, listed && key == keyDelete:
		s.fail("%s of %s was released while a registry lists it", key, pod.Name)
	case ever && s.clock.Now().Sub(last) < simPropagation:
		s.fail("%s of %s was released %s after it was last listed", key, pod.Name, s.clock.Now().Sub(last))
	case ever:
		s.judgeOutages(key, pod)
	}
}

// atRest checks what holds when nothing is left to do.
func (s *simulation) atRest() {
	s.Helper()
	want := map[string]bool{"/" + s.foreign.ID: true}
	for _, pod := range s.pods() {
		for _, name := range []string{"nginx", edge} {
			if s.matches(name, &pod) {
				want[name+"/"+plan.EntryID(&pod)] = true
			}
		}
		if wrong := unfinished(&pod); wrong != "" {
			s.fail("%s: %s", pod.Name, wrong)
		}
	}
	for _, name := range []string{"discovery", "backup"} {
		have := map[string]bool{}
		for _, e := range s.entries(name) {
			have[e.Owner.Registration+"/"+e.ID] = true
			if want := s.weightOf(e.Owner.Pod); e.ID != s.foreign.ID && e.Weight != want {
				s.fail("%s lists %s with the weight %d, want %d", name, e.Owner.Pod, e.Weight, want)
			}
		}
		if !maps.Equal(have, want) {
			s.fail("%s lists %v, want %v", name, have, want)
		}
	}
}

// unfinished says what is left to do for a Pod that ought to be at rest.
func unfinished(pod *corev1.Pod) string {
	switch {
	case pod.DeletionTimestamp != nil:
		return "it was never let go"
	case plan.StateOf(pod) != appsv1alpha1.StateNormal:
		return "it is stuck in " + string(plan.StateOf(pod))
	case pod.Labels[keyCreated] != "false", pod.Labels[keyInPlace] != "true", pod.Labels[keyDelete] != "true":
		return fmt.Sprintf("its hooks are %v", pod.Labels)
	case registeredStatus(pod) != corev1.ConditionTrue:
		return "it does not say that it is registered"
	case pod.Annotations[usherv1alpha1.AnnotationDrain] != "":
		return "it still has a drain record"
	}
	return ""
}
