// SPDX-License-Identifier: Apache-2.0

package plan

// desired is how many Pods there should be now: the replicas, plus a surge while Pods are
// to be updated or replaced.
func (p *pass) desired() int {
	return p.Spec.Replicas + min(p.Spec.maxSurge(), max(len(p.queue), p.shortfall()))
}

// shortfall is how many of the Pods named for deletion maxUnavailable does not cover. Those
// that leave their nodes all count: a node is drained fastest if all replacements start at
// once.
func (p *pass) shortfall() int {
	waiting, unavailable, going := 0, 0, 0
	for _, v := range p.pods {
		switch {
		case v.awaitsRemoval():
			waiting++
			going += one(v.leavesNode != "")
		case !v.available && p.counted(v) && (v.leaving || !v.removed):
			unavailable++
		}
	}
	return max(going, min(unavailable+waiting-p.ledger.maxUnavailable, waiting))
}

// create creates the missing Pods, starting with those that the partition keeps at the
// current revision.
func (p *pass) create() {
	missing := p.desired() - p.ledger.pods
	if missing <= 0 {
		return
	}
	if limit := p.Spec.ScaleMaxUnavailable; limit != nil {
		room := max(limit.up(p.Spec.Replicas)-(p.ledger.pods-p.ledger.available), 0)
		p.plan.ScaleUpLimited = max(missing-room, 0)
		missing = min(missing, room)
	}
	current := p.Spec.partition() - p.old
	ids, missing := p.instancesFor(missing)
	taken := p.taken()
	for n := range missing {
		a := Action{Verb: Create, Reason: ReasonScaleOut, Revision: p.Update, Taken: taken}
		if n < len(ids) {
			a.Instance = ids[n]
		}
		if current > 0 || p.refused(a.Revision) {
			current--
			a.Revision = p.Current
		}
		if p.refused(a.Revision) {
			return
		}
		if !p.ledger.start() {
			p.plan.More = true
			return
		}
		p.ledger.pods++
		p.ledger.underway++
		p.plan.Actions = append(p.plan.Actions, a)
	}
}
