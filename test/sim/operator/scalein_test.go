// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usher "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/podread"
	"github.com/usher-dev/usher/internal/registration/plan"
)

const (
	// steadily and quietly are how much is under way in some Pods that are in service: always the same, or nothing.
	steadily, quietly = "steadily", "quietly"
	// load is how many requests are under way in the former.
	load = 3
	// costEvery is how often a Pod's cost is written at most. settled is how long Pods have to be the same, and tell the
	// truth, before the operator writes what follows from that; enoughPasses how many passes it gets after that.
	costEvery    = 30 * time.Second
	settled      = costEvery + untilFor + 2*maxSkew
	enoughPasses = 3
)

// drawHabit draws how busy a Pod is while callers choose it; empty for as it comes.
func (s *simulation) drawHabit() string {
	if !s.features.idleFirst {
		return ""
	}
	return []string{steadily, quietly, ""}[s.fates.IntN(3)]
}

// follows the habit of a Pod that callers choose; false if it has none.
func (w *work) followsHabit(called bool) bool {
	switch {
	case !called, w.habit == "":
		return false
	case w.habit == steadily:
		w.underWay = load
	default:
		w.underWay = 0
	}
	return true
}

// noteSettled notes since when a Pod is one that the operator can order: it serves, tells the truth, and is as busy as
// ever.
func (s *simulation) noteSettled(pod *corev1.Pod, w *work, called bool) {
	if !called || !w.sameHabit() || !servesOn(pod) || !s.mayOrder(pod) {
		w.same, w.passes = time.Time{}, 0
	} else if w.same.IsZero() {
		w.same = s.clock.Now()
	}
}

// sameHabit reports whether a Pod tells the truth, and is as busy as its habit says.
func (w *work) sameHabit() bool {
	return w.says == truly && w.habit != "" && (w.underWay == load) == (w.habit == steadily)
}

// servesOn reports whether a Pod serves, and nobody wants it to go.
func servesOn(pod *corev1.Pod) bool {
	ready, _ := plan.Ready(pod)
	asked := pod.Annotations[usher.AnnotationDeletionRequest] != "" || pod.DeletionTimestamp != nil
	return ready && !asked && plan.StateOf(pod) == apps.StateNormal && podread.IsTrue(pod, usher.ConditionRegistered)
}

// mayOrder reports whether a Registration has the Pod ordered, in the caches too, and nobody else has set its cost.
func (s *simulation) mayOrder(pod *corev1.Pod) bool {
	return s.guardian.costs[pod.UID] == "" && slices.ContainsFunc([]string{"nginx", edge}, func(name string) bool {
		return s.process.exists(name) && s.matches(name, pod) && s.ordersIn(name)
	})
}

// ordersIn reports whether the Registration has its Pods ordered.
func (s *simulation) ordersIn(name string) bool {
	r := s.registered(name)
	return r != nil && r.DeletionTimestamp == nil && r.Spec.ScaleInOrder == usher.ScaleInIdleFirst
}

func (s *simulation) registered(name string) *usher.Registration {
	for _, r := range s.registrations() {
		if r.Name == name {
			return r
		}
	}
	return nil
}

// notePass notes a pass that has seen all Pods as they are, and that nothing has stopped.
func (s *simulation) notePass() {
	for _, w := range s.work {
		if !w.same.IsZero() && s.clock.Now().Sub(w.same) >= settled {
			w.passes++
		}
	}
}

// knows reports whether the operator has known for long enough how busy a Pod is.
func (s *simulation) knows(pod *corev1.Pod, habit string) bool {
	w := s.work[pod.UID]
	return w != nil && w.habit == habit && w.passes >= enoughPasses
}

// judgeChoice checks whom the ReplicaSet deletes: no busy Pod while it keeps one of which the operator knows
// that nothing is under way there.
func (s *simulation) judgeChoice(chosen, kept []*corev1.Pod) {
	for _, pod := range chosen {
		if !s.features.idleFirst || !s.knows(pod, steadily) || pod.Annotations[usher.AnnotationDeletionRequest] != "" {
			continue
		}
		for _, other := range kept {
			if s.knows(other, quietly) {
				s.fail("%s is scaled in while it is busy, and %s is idle: they cost %q and %q", pod.Name, other.Name,
					pod.Annotations[corev1.PodDeletionCost], other.Annotations[corev1.PodDeletionCost])
			}
		}
	}
}

// judgeCost checks a write of the operator: it overwrites no cost of anybody else, and writes none too often.
func (s *simulation) judgeCost(before, after *corev1.Pod) {
	was, is := before.Annotations[corev1.PodDeletionCost], after.Annotations[corev1.PodDeletionCost]
	own, next := plan.CostOf(before), plan.CostOf(after)
	if was != "" && own == nil && was != plan.DeletionCost && was != is && after.UID != "" {
		s.fail("the operator overwrites the deletion cost %q of %s, which somebody else has set, by %q", was, before.Name, is)
	}
	if own != nil && next != nil && was != is && !s.features.clocks && next.At.Sub(own.At) < costEvery {
		s.fail("the operator writes a cost of %s twice in %s", before.Name, next.At.Sub(own.At))
	}
}

// checkOrder has the ReplicaSet scale in by one, when all is well and the operator had the time to know that its first
// Pod is busy and the other one is not.
func (s *simulation) checkOrder() {
	if s.ending != "" || s.replicaSet() == "none" {
		return
	}
	s.scaleTo(2)
	for i, habit := range []string{steadily, quietly} {
		name := []string{"nginx-2", "nginx-4"}[i]
		if s.pod(name) == nil {
			s.kubelet(s.create(name, ""))
		}
		s.work[s.pod(name).UID] = &work{says: truly, idleSince: s.clock.Now(), habit: habit}
	}
	s.rounds(35)
	if pods := s.replicas(); len(pods) > 1 {
		s.chosen += one(s.knows(s.pod("nginx-2"), steadily) && s.knows(s.pod("nginx-4"), quietly))
		s.judgeChoice(pods[:1], pods[1:])
	}
}

// checkCostsGo takes the option out: what the operator has written goes.
func (s *simulation) checkCostsGo() {
	for _, r := range s.registrations() {
		edit(s, namespace, r.Name, func(r *usher.Registration) { r.Spec.ScaleInOrder = ""; r.Generation++ })
	}
	s.process.left = unlimited
	for range 4 {
		s.passes(1)
		s.wait(3 * time.Second)
	}
	for _, pod := range s.pods() {
		if text := pod.Annotations[usher.AnnotationScaleIn]; text != "" && pod.DeletionTimestamp == nil {
			s.fail("%s still has %s although nobody orders it any more", pod.Name, text)
		}
		if cost := pod.Annotations[corev1.PodDeletionCost]; cost != s.guardian.costs[pod.UID] && pod.DeletionTimestamp == nil {
			s.fail("%s has the deletion cost %q, and its user has set %q", pod.Name, cost, s.guardian.costs[pod.UID])
		}
	}
}

func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}
