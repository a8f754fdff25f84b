// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"time"
)

// replace removes the Pods that are named for deletion or leave their nodes, the least useful
// first, as far as the budget allows.
func (p *pass) replace() {
	var waiting []*podState
	for _, v := range p.pods {
		if v.awaitsRemoval() {
			waiting = append(waiting, v)
		}
	}
	if len(waiting) == 0 {
		return
	}
	inFlight := p.countReplacements()
	p.replacing = inFlight
	stays := func(v *podState) bool { return !v.leaving && !v.removed }
	for _, v := range p.countDomains(stays).pick(waiting, len(waiting)) {
		if v.fixed {
			continue
		}
		if !p.ledger.takeDown(v, inFlight.roomFor(v, &p.ledger)) {
			if p.outOfStarts() {
				return
			}
			continue
		}
		p.remove(v, v.replaceReason())
		inFlight.oldest = Earlier(inFlight.oldest, v.created)
		if v.leaving {
			inFlight.taken++ // one that is deleted outright is missing from the surplus instead
		}
	}
}

// replaceReason is why a Pod is replaced.
func (p *podState) replaceReason() string {
	if p.leavesNode != "" {
		return ReasonNodeGoes
	}
	return ReasonSpecified
}

// replacements counts the Pods that are being created or removed, so that Pods which are
// unavailable anyway are replaced in small batches, each after the replacements of the
// previous batch. Pods that are merely broken, and older than the one to be replaced, do
// not block others.
type replacements struct {
	// created are the sorted creation times of unavailable Pods.
	created []time.Time
	// taken counts those that are at the gate, or were created in this pass.
	taken int
	// oldest is the creation time of the oldest Pod that this pass replaces.
	oldest time.Time
}

func (p *pass) countReplacements() *replacements {
	m := &replacements{}
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

// roomFor reports whether one more unavailable Pod may be replaced. The room must also
// suffice for those that this pass already replaces: their order of deletion is unknown.
func (m *replacements) roomFor(v *podState, l *ledger) bool {
	return m.room(Earlier(m.oldest, v.created), l)
}

// roomBeside reports whether a Pod whose update has begun may be recreated in a pass that
// replaces others. As an older Pod it blocked none of them; while being removed it would,
// and their order of deletion is unknown.
func (m *replacements) roomBeside(v *podState, l *ledger) bool {
	if m == nil || m.oldest.IsZero() || !v.underway || v.created.After(m.oldest) {
		return true
	}
	return m.room(m.oldest, l)
}

// room reports whether one more Pod may be created while one of that age is replaced.
func (m *replacements) room(oldest time.Time, l *ledger) bool {
	notLater, _ := slices.BinarySearchFunc(m.created, oldest, func(at, limit time.Time) int {
		if at.After(limit) {
			return 1
		}
		return -1
	})
	return m.taken+len(m.created)-notLater < max(l.maxUnavailable, 1)+l.surplus()
}
