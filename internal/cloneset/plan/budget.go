// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// Count is a number of Pods, or a percentage of them.
type Count struct {
	Value   int
	Percent bool
}

// mostPercent bounds percentages: a larger one allows nothing more, and products with this one cannot
// overflow.
const mostPercent = 9999

// parsePercent reads a text such as "20%". Anything else is an error: an illegal value must never count
// as 0. A percentage with too many digits is not illegal: it allows all Pods.
func parsePercent(text string) (Count, error) {
	digits, ok := strings.CutSuffix(text, "%")
	value, err := strconv.ParseUint(digits, 10, 64) // the largest one if it is out of range
	if !ok || (err != nil && !errors.Is(err, strconv.ErrRange)) {
		return Count{}, fmt.Errorf("%q is neither a number of Pods nor a percentage such as \"20%%\"", text)
	}
	return Count{Value: int(min(value, mostPercent)), Percent: true}, nil
}

// up computes the count of a whole, rounding percentages up.
func (c Count) up(whole int) int {
	if !c.Percent {
		return c.Value
	}
	return (c.Value*whole + 99) / 100
}

// down computes the count of a whole, rounding percentages down.
func (c Count) down(whole int) int {
	if !c.Percent {
		return c.Value
	}
	return c.Value * whole / 100
}

// partition returns how many Pods keep the old revision: clamped to 0..replicas, and a percentage below
// 100 % of more than one replica leaves at least one Pod to update.
func (s *Spec) partition() int {
	p := min(max(s.Partition.up(s.Replicas), 0), s.Replicas)
	if s.Partition.Percent && s.Partition.Value < 100 && s.Replicas > 1 {
		p = min(p, s.Replicas-1)
	}
	return p
}

// maxSurge returns how many Pods may exist above replicas; none while paused.
func (s *Spec) maxSurge() int {
	if s.Paused || s.Method == apps.UpdateInPlaceOnly {
		return 0
	}
	return s.MaxSurge.up(s.Replicas)
}

// maxUnavailable returns how many Pods an update may have unavailable.
func (s *Spec) maxUnavailable() int {
	if s.maxSurge() == 0 {
		return s.MaxUnavailable.up(s.Replicas)
	}
	return s.MaxUnavailable.down(s.Replicas)
}

// ledger counts, through the steps of one pass, what the budgets allow. Every step that
// takes a Pod out of service pays here first.
type ledger struct {
	replicas, maxUnavailable int
	// pods counts the active Pods that hold a place in the set.
	pods int
	// available counts those of them that serve.
	available int
	// underway counts the unavailable Pods that have the update revision or are on their way to it. At
	// most maxUnavailable Pods are updated at a time, even among unavailable ones: otherwise all Pods
	// of a node with a brief outage would be updated at once, even to a broken revision.
	underway int
	// starts counts how many Pods may still be taken out of service or created in this
	// pass; below 0 means no bound.
	starts int
}

// start takes one of the pass's starts.
func (l *ledger) start() bool {
	if l.starts == 0 {
		return false
	}
	l.starts--
	return true
}

// spare reports whether one more available Pod may leave service.
func (l *ledger) spare() bool { return l.available > l.replicas-l.maxUnavailable }

// surplus returns the number of Pods above the replicas; negative if some are missing.
func (l *ledger) surplus() int { return l.pods - l.replicas }

// takeDown pays for taking a Pod out of service to replace or update it. An unavailable Pod costs
// nothing, but needs room: see underway.
func (l *ledger) takeDown(p *podState, room bool) bool {
	switch {
	case p.underway: // paid for in an earlier pass
	case p.available && !l.spare(), !p.available && !room:
		return false
	}
	if !p.deferred && !l.start() { // a deferred deletion has had its start
		return false
	}
	l.hold(p)
	return true
}

// roomForUpdate reports whether one more unavailable Pod may be updated.
func (l *ledger) roomForUpdate() bool { return l.underway < l.maxUnavailable+l.surplus() }

// hold counts a Pod as out of service and under way; it keeps its place.
func (l *ledger) hold(p *podState) {
	l.available -= one(p.available)
	l.underway += one(!p.underway)
	p.available, p.underway = false, true
}

// drop stops counting a Pod that leaves its place in this pass.
func (l *ledger) drop(p *podState) {
	l.pods--
	l.available -= one(p.available)
	l.underway -= one(p.underway)
}

// openLedger counts the set as the previous steps left it.
func (p *pass) openLedger() {
	p.ledger = ledger{replicas: p.Spec.Replicas, maxUnavailable: p.Spec.maxUnavailable(), starts: cmp.Or(p.Starts, -1)}
	for _, v := range p.pods {
		p.wakeAt(v.wakeAt)
		v.underway = v.isUnderway()
		if !p.counted(v) {
			continue
		}
		v.leaving = v.preparesDelete()
		p.ledger.pods++
		p.ledger.available += one(v.available)
		p.ledger.underway += one(v.underway)
	}
}

// isUnderway reports whether a Pod does not serve and either has the update revision, is on its way to
// it, is being removed, or returns in this pass. A Pod under way remains so when it is named for
// deletion: its removal is paid for.
func (p *podState) isUnderway() bool {
	return !p.available && (p.begun() || (!p.awaitsRemoval() && (p.isUpdated || p.preparesDelete() || p.fixed)))
}
