// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"strconv"
	"strings"
)

// Count is a number of Pods, or a percentage of them.
type Count struct {
	Value   int
	Percent bool
}

// ParsePercent reads a text such as "20%". Anything else is an error: an illegal
// value must never pass for 0.
func ParsePercent(text string) (Count, error) {
	digits, ok := strings.CutSuffix(text, "%")
	value, err := strconv.Atoi(digits)
	if !ok || err != nil || value < 0 {
		return Count{}, fmt.Errorf("%q is neither a number of Pods nor a percentage such as \"20%%\"", text)
	}
	return Count{Value: value, Percent: true}, nil
}

// up computes the count of a whole, percentages rounded up.
func (c Count) up(whole int) int {
	if !c.Percent {
		return c.Value
	}
	return (c.Value*whole + 99) / 100
}

// down computes the count of a whole, percentages rounded down.
func (c Count) down(whole int) int {
	if !c.Percent {
		return c.Value
	}
	return c.Value * whole / 100
}

// partition is how many Pods keep the old revision: clamped to 0..replicas, and
// a percentage below 100 % of more than one replica leaves at least one to update.
func (s *Spec) partition() int {
	p := min(max(s.Partition.up(s.Replicas), 0), s.Replicas)
	if s.Partition.Percent && s.Partition.Value < 100 && s.Replicas > 1 {
		p = min(p, s.Replicas-1)
	}
	return p
}

// maxSurge is how many Pods there may be above replicas; none while paused.
func (s *Spec) maxSurge() int {
	if s.Paused || s.Method == InPlaceOnly {
		return 0
	}
	return s.MaxSurge.up(s.Replicas)
}

// maxUnavailable is how many Pods an update may have unavailable.
func (s *Spec) maxUnavailable() int {
	if s.MaxSurge.up(s.Replicas) == 0 {
		return s.MaxUnavailable.up(s.Replicas)
	}
	return s.MaxUnavailable.down(s.Replicas)
}

// ledger counts, through the steps of one pass, what the budgets allow. Every
// step that takes a Pod out of service pays here first.
type ledger struct {
	replicas, maxUnavailable int
	// pods counts the active Pods that hold a place in the set.
	pods int
	// available counts those of them that serve.
	available int
	// settling counts the unavailable Pods that are as they should be, or on
	// their way there. An unavailable Pod that still waits to be replaced or
	// updated is not among them.
	settling int
	// starts counts how many Pods may still be taken out of service or created
	// in this pass.
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

// takeDown pays for taking a Pod out of service in order to replace or update
// it. An available Pod can go while enough others serve. One that is
// unavailable already costs nobody anything, but no more of those are touched
// at a time than may be unavailable: else a node that hiccups would have all
// its Pods updated at once, whatever the new revision is worth.
func (l *ledger) takeDown(p *podView) bool {
	if p.settled {
		return l.start() // paid for in an earlier pass
	}
	if p.available && l.available <= l.replicas-l.maxUnavailable {
		return false
	}
	if !p.available && l.settling >= max(l.maxUnavailable+l.pods-l.replicas, 0) {
		return false
	}
	if !l.start() {
		return false
	}
	if p.available {
		l.hold(p)
	} else {
		l.settling++
		p.settled = true
	}
	return true
}

// hold counts a Pod as out of service that keeps its place.
func (l *ledger) hold(p *podView) {
	if p.available {
		l.available--
		l.settling++
		p.available, p.settled = false, true
	}
}

// drop takes a Pod out of the count that is deleted in this pass.
func (l *ledger) drop(p *podView) {
	l.pods--
	if p.available {
		l.available--
	} else if p.settled {
		l.settling--
	}
}
