// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"time"
)

// desired is how many Pods there shall be now: the replicas, and a surge while
// Pods are to be updated or replaced.
func (p *pass) desired() int {
	return p.Spec.Replicas + min(p.Spec.maxSurge(), max(len(p.queue), p.shortfall()))
}

// shortfall is how many of the Pods that were named for deletion maxUnavailable
// does not cover.
func (p *pass) shortfall() int {
	waiting, unavailable := 0, 0
	for _, v := range p.pods {
		switch {
		case v.waits():
			waiting++
		case !v.available && p.counted(v) && (v.leaving || !v.removed):
			unavailable++
		}
	}
	return min(max(unavailable+waiting-p.ledger.maxUnavailable, 0), waiting)
}

// create makes the Pods that are missing, first those that the partition keeps
// at the current revision.
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

// release deletes the Pods whose preDelete hook has let go.
func (p *pass) release() {
	for _, v := range p.pods {
		if v.fixed || !v.preparesDelete() || v.holds(p.Spec.Hooks.PreDelete) {
			continue
		}
		if p.counted(v) {
			p.ledger.drop(v)
		}
		v.leaving = false
		p.act(v, Action{Verb: Delete, Reason: ReasonHookReleased, Claims: p.claimsOf(v)})
	}
}

// replace removes the Pods that were named for deletion, the least useful
// first, as far as the budget goes.
func (p *pass) replace() {
	var waiting []*podView
	for _, v := range p.pods {
		if v.waits() {
			waiting = append(waiting, v)
		}
	}
	if len(waiting) == 0 {
		return
	}
	made := p.beingMade()
	p.made = made
	stays := func(v *podView) bool { return !v.leaving && !v.removed }
	for _, v := range p.crowding(stays).take(waiting, len(waiting)) {
		if v.fixed {
			continue
		}
		if !p.ledger.takeDown(v, made.roomFor(v, &p.ledger)) {
			if p.outOfStarts() {
				return
			}
			continue
		}
		p.remove(v, ReasonSpecified)
		made.took(v)
		if v.leaving {
			made.taken++ // one that is deleted outright is missing from the surplus instead
		}
	}
}

// making tells how many Pods are being made or taken out, so that Pods which
// are unavailable anyway are replaced a few at a time, each batch after the
// replacements of the one before it. Pods that are merely broken, and older
// than the one to be replaced, hold nobody up.
type making struct {
	// created are the creation times of unavailable Pods, in order.
	created []time.Time
	// taken counts those that are at the gate, or were created in this pass.
	taken int
	// oldest is the creation time of the oldest Pod that this pass replaces.
	oldest time.Time
}

func (m *making) took(v *podView) {
	if m.oldest.IsZero() || v.created.Before(m.oldest) {
		m.oldest = v.created
	}
}

func (p *pass) beingMade() *making {
	m := &making{}
	for _, v := range p.pods {
		switch {
		case v.leaving:
			m.taken++
		case v.underway && p.counted(v):
			m.created = append(m.created, v.created)
		}
	}
	for i := range p.plan.Actions {
		if p.plan.Actions[i].Verb == Create {
			m.taken++
		}
	}
	slices.SortFunc(m.created, time.Time.Compare)
	return m
}

// roomFor says whether one more Pod that is unavailable may be replaced. The room
// has to do for those too that this pass replaces already: nobody knows which of
// them goes first.
func (m *making) roomFor(v *podView, l *ledger) bool {
	oldest := v.created
	if !m.oldest.IsZero() && m.oldest.Before(oldest) {
		oldest = m.oldest
	}
	return m.room(oldest, l)
}

// roomBeside says whether a Pod whose update has begun may be recreated in the pass
// that replaces others. As an older Pod it has held none of them up; on its way out
// it would, and nobody knows which of them goes first.
func (m *making) roomBeside(v *podView, l *ledger) bool {
	if m == nil || m.oldest.IsZero() || !v.underway || v.created.After(m.oldest) {
		return true
	}
	return m.room(m.oldest, l)
}

// room says whether one more Pod may be made while one of that age is replaced.
func (m *making) room(oldest time.Time, l *ledger) bool {
	notLater, _ := slices.BinarySearchFunc(m.created, oldest, func(at, limit time.Time) int {
		if at.After(limit) {
			return 1
		}
		return -1
	})
	return m.taken+len(m.created)-notLater < max(l.maxUnavailable, 1)+l.surplus()
}

// scaleIn removes surplus Pods. While a named Pod still waits to go, nobody
// else has to.
func (p *pass) scaleIn() {
	leaving := 0
	for _, v := range p.pods {
		if v.waits() {
			return
		}
		if v.leaving {
			leaving++
		}
	}
	surplus := p.ledger.pods - p.desired() - leaving
	if surplus <= 0 {
		return
	}
	for _, v := range p.victims(surplus) {
		if v.fixed {
			continue // its turn comes with the next pass; nobody else goes instead
		}
		if v.available && !p.ledger.spare() {
			return
		}
		if !p.ledger.start() {
			p.plan.More = true
			return
		}
		p.remove(v, ReasonScaleIn)
	}
}

// victims picks the Pods to go: old ones that the partition does not keep, then
// new ones, then the rest; among these the least useful.
func (p *pass) victims(count int) []*podView {
	old, updated := make([]*podView, 0, p.old), make([]*podView, 0, p.updated)
	for _, v := range p.pods {
		switch {
		case v.doomed() || v.leaving:
		case v.isTarget:
			updated = append(updated, v)
		default:
			old = append(old, v)
		}
	}
	crowd := p.crowding(func(v *podView) bool { return !v.doomed() && !v.leaving })
	surplusOld := min(max(len(old)-p.Spec.partition(), 0), count)
	out := crowd.take(old, surplusOld)
	out = append(out, crowd.take(updated, count-len(out))...)
	gone := make(map[*podView]bool, len(out))
	for _, v := range out {
		gone[v] = true
	}
	kept := slices.DeleteFunc(old, func(v *podView) bool { return gone[v] })
	return append(out, crowd.take(kept, count-len(out))...)
}
