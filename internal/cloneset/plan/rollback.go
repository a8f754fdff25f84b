// SPDX-License-Identifier: Apache-2.0

package plan

import "github.com/usher-dev/usher/internal/cloneset/revision"

// rollback returns the snapshot of a set whose partition keeps more Pods old than there are, and whose
// user wants Pods to go back for it; nil of any other set. It is the same snapshot with the two
// revisions exchanged: Pods of the update revision are to get the current one, except for as many as
// the partition lets be new. So they go back as they came: in place or recreated, within the same
// budgets, through the same gates.
func (s *Snapshot) rollback() *Snapshot {
	if !s.Spec.PartitionRollback || s.Spec.beginsNone() || s.Deletion != NotDeleted || s.Current.Template == nil ||
		revision.Same(s.Current.Name, s.Update.Name) {
		return nil
	}
	stay := s.Spec.Replicas - s.Spec.partition()
	if s.countUpdated() <= stay {
		return nil
	}
	out := *s
	out.back, out.Current, out.Update, out.Changes = true, s.Update, s.Current, nil
	out.Spec.Partition = Count{Value: stay}
	out.UpdateRefused = "" // the current revision has Pods
	return &out
}

// countUpdated counts the Pods of the update revision that are to stay.
func (s *Snapshot) countUpdated() int {
	n := 0
	var v podState
	for i := range s.Pods {
		v = podState{}
		s.read(&v, s.at(i))
		n += one(v.isUpdated && v.active() && !v.toBeDeleted())
	}
	return n
}

// goesBack reports whether the Pod has a revision that Pods leave in this pass. While Pods go back to
// the current revision, those of a third one stay as they are.
func (p *pass) goesBack(v *podState) bool {
	return !p.back || v.hash == revision.Short(p.Current.Name)
}
