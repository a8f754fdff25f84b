// SPDX-License-Identifier: Apache-2.0

package plan

import "slices"

// scaleIn removes surplus Pods. While a named Pod still waits for its removal, no other
// Pod has to go. One that leaves its node goes first too, but others need not wait for it:
// it may stay.
func (p *pass) scaleIn() {
	if slices.ContainsFunc(p.pods, func(v *podState) bool { return v.awaitsRemoval() && v.leavesNode == "" }) {
		return
	}
	surplus := p.ledger.pods - p.desired()
	for _, v := range p.pods {
		surplus -= one(v.leaving)
	}
	if surplus <= 0 {
		return
	}
	for _, v := range p.victims(surplus) {
		if v.fixed {
			continue // the next pass handles it; no other Pod goes instead
		}
		if v.available && !p.ledger.spare() {
			return
		}
		if !v.deferred && !p.ledger.start() {
			p.plan.More = true
			return
		}
		p.remove(v, ReasonScaleIn)
	}
}

// victims picks the Pods to remove: old ones that the partition does not keep, then new
// ones, then the rest; in each group the least useful first.
func (p *pass) victims(count int) []*podState {
	stays := func(v *podState) bool { return !v.toBeDeleted() && !v.leaving }
	old, updated := byRevision(slices.DeleteFunc(slices.Clone(p.pods), func(v *podState) bool { return !stays(v) }))
	counts := p.countDomains(stays)
	surplusOld := min(max(len(old)-p.Spec.partition(), 0), count)
	out := counts.pick(old, surplusOld)
	out = append(out, counts.pick(updated, count-len(out))...)
	gone := make(map[*podState]bool, len(out))
	for _, v := range out {
		gone[v] = true
	}
	kept := slices.DeleteFunc(old, func(v *podState) bool { return gone[v] })
	return append(out, counts.pick(kept, count-len(out))...)
}

// byRevision separates the Pods that have the update revision from the others.
func byRevision(pods []*podState) (old, updated []*podState) {
	for _, v := range pods {
		if v.isUpdated {
			updated = append(updated, v)
		} else {
			old = append(old, v)
		}
	}
	return old, updated
}
