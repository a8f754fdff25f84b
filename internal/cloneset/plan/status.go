// SPDX-License-Identifier: Apache-2.0

package plan

import "slices"

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
	for i := range s.Pods {
		var v podState
		s.read(&v, s.at(i))
		waiting = append(waiting, s.blocked(&v)...)
		if v.active() {
			c.add(&v)
		}
	}
	c.ExpectedUpdated = s.Spec.Replicas - s.Spec.partition()
	c.RolledOut = c.Updated == c.Replicas && c.Replicas == s.Spec.Replicas
	slices.SortStableFunc(waiting, byWait)
	return c, waiting
}

func (c *Counts) add(v *podState) {
	c.Replicas++
	c.Ready += one(v.ready)
	c.Available += one(v.available)
	c.Updated += one(v.isUpdated)
	c.UpdatedReady += one(v.isUpdated && v.ready)
	c.UpdatedAvailable += one(v.isUpdated && v.available)
}

func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}
