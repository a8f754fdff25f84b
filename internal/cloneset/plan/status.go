// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"iter"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Counts are the numbers of a set's status.
type Counts struct {
	Replicas, Ready, Available              int
	Updated, UpdatedReady, UpdatedAvailable int
	ExpectedUpdated                         int
	// RolledOut means that every Pod that should exist has the update revision, so that
	// it becomes the current one.
	RolledOut bool
}

// Review examines a set as a pass left it: it counts the Pods, and lists those that wait
// at a gate, in an update for a container, or for a stuck container, longest first.
func Review(s *Snapshot) (Counts, []Blocked) {
	var c Counts
	var waiting []Blocked
	for status := range PodStatuses(s) {
		waiting = append(waiting, status.Waits...)
		if status.Active {
			c.add(&status)
		}
	}
	c.ExpectedUpdated = s.Spec.Replicas - s.Spec.partition()
	c.RolledOut = c.Updated == c.Replicas && c.Replicas == s.Spec.Replicas
	slices.SortStableFunc(waiting, byWait)
	return c, waiting
}

// Serving counts the available Pods, as Review does.
func (s *Snapshot) Serving() int {
	n := 0
	for i := range s.Pods {
		info := s.at(i)
		if serves, _ := s.availability(info); serves && info.active() {
			n++
		}
	}
	return n
}

// PodStatus is what a set's status says of one Pod.
type PodStatus struct {
	Pod *corev1.Pod
	// Active means that the Pod holds a place in the set: it is neither terminating nor
	// ended.
	Active bool
	// Updated means that it has the update revision. Available Pods serve.
	Updated, Ready, Available bool
	// Waits are what it waits for, as in Review.
	Waits []Blocked
}

// PodStatuses yields what Review counts, Pod by Pod, in name order.
func PodStatuses(s *Snapshot) iter.Seq[PodStatus] {
	return func(yield func(PodStatus) bool) {
		for i := range s.Pods {
			var v podState
			s.read(&v, s.at(i))
			if !yield(PodStatus{
				Pod: v.pod, Active: v.active(), Updated: v.isUpdated, Ready: v.ready, Available: v.available, Waits: s.blocked(&v),
			}) {
				return
			}
		}
	}
}

// Budget is what an update may do to a set's Pods.
type Budget struct {
	// Partition is how many Pods keep the old revision, MaxUnavailable how many may be out
	// of service, MaxSurge how many may exist above replicas.
	Partition, MaxUnavailable, MaxSurge int
}

// Budget computes percentages.
func (s *Spec) Budget() Budget {
	return Budget{Partition: s.partition(), MaxUnavailable: s.maxUnavailable(), MaxSurge: s.maxSurge()}
}

func (c *Counts) add(p *PodStatus) {
	c.Replicas++
	c.Ready += one(p.Ready)
	c.Available += one(p.Available)
	c.Updated += one(p.Updated)
	c.UpdatedReady += one(p.Updated && p.Ready)
	c.UpdatedAvailable += one(p.Updated && p.Available)
}

func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}
