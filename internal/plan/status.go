// SPDX-License-Identifier: Apache-2.0

package plan

// Counts are the numbers of a set's status.
type Counts struct {
	Replicas, Ready, Available              int
	Updated, UpdatedReady, UpdatedAvailable int
	ExpectedUpdated                         int
	// RolledOut says that every Pod there shall be has the update revision, so
	// that it becomes the current one.
	RolledOut bool
}

// Tally counts the set's Pods.
func Tally(s *Snapshot) Counts {
	var c Counts
	for _, pod := range s.Pods {
		var v podView
		s.read(&v, pod)
		if !v.active() {
			continue
		}
		c.Replicas++
		c.Ready += one(v.ready)
		c.Available += one(v.available)
		c.Updated += one(v.isTarget)
		c.UpdatedReady += one(v.isTarget && v.ready)
		c.UpdatedAvailable += one(v.isTarget && v.available)
	}
	c.ExpectedUpdated = s.Spec.Replicas - s.Spec.partition()
	c.RolledOut = c.Updated == c.Replicas && c.Replicas == s.Spec.Replicas
	return c
}

func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}
