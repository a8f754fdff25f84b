// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Count is a number of Pods, or a percentage of them.
type Count struct {
	Value   int
	Percent bool
}

// maxDigits bounds a percentage's digits, so that no product overflows.
const maxDigits = 4

// ParsePercent reads a text such as "20%". Anything else is an error: an illegal
// value must never pass for 0.
func ParsePercent(text string) (Count, error) {
	digits, ok := strings.CutSuffix(text, "%")
	if !ok || digits == "" || len(digits) > maxDigits || strings.Trim(digits, "0123456789") != "" {
		return Count{}, fmt.Errorf("%q is neither a number of Pods nor a percentage such as \"20%%\"", text)
	}
	value, err := strconv.Atoi(digits)
	if err != nil {
		return Count{}, fmt.Errorf("percentage %q: %w", text, err)
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
	if s.maxSurge() == 0 {
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
	// underway counts the unavailable Pods that have the update revision or are
	// on their way to it. No more than may be unavailable are touched at a time:
	// else a node that hiccups would have all its Pods updated at once, since
	// they are unavailable anyway, whatever the new revision is worth.
	underway int
	// starts counts how many Pods may still be taken out of service or created
	// in this pass; below 0 is no bound.
	starts int
	// settling counts the Pods that left service for an update in place a moment
	// ago, and settled is when the first of them is no longer counted. One that
	// restarts fast is back by then; who restarts slowly holds up nobody.
	settling int
	settled  time.Time
}

// returnTime is how long a Pod is expected back before others follow it.
const returnTime = time.Second

// leave counts a Pod that is out of service since then.
func (l *ledger) leave(since, now time.Time) {
	end := since.Add(returnTime)
	if since.IsZero() || !now.Before(end) {
		return
	}
	l.settling++
	if l.settled.IsZero() || end.Before(l.settled) {
		l.settled = end
	}
}

// start takes one of the pass's starts.
func (l *ledger) start() bool {
	if l.starts == 0 {
		return false
	}
	l.starts--
	return true
}

// spare says whether one more available Pod can go.
func (l *ledger) spare() bool { return l.available > l.replicas-l.maxUnavailable }

// surplus is how many Pods there are above the replicas; negative if some are
// missing.
func (l *ledger) surplus() int { return l.pods - l.replicas }

// takeDown pays for taking a Pod out of service in order to replace or update
// it. One that is unavailable already costs nobody anything, but room has to be
// left: see underway.
func (l *ledger) takeDown(p *podView, room bool) bool {
	switch {
	case p.underway: // paid for in an earlier pass
	case p.available && !l.spare(), !p.available && !room:
		return false
	}
	if !l.start() {
		return false
	}
	l.hold(p)
	return true
}

// roomForUpdate says whether one more unavailable Pod may be updated.
func (l *ledger) roomForUpdate() bool { return l.underway < l.maxUnavailable+l.surplus() }

// hold counts a Pod as out of service and under way; it keeps its place.
func (l *ledger) hold(p *podView) {
	if p.available {
		l.available--
		p.available = false
	}
	if !p.underway {
		l.underway++
		p.underway = true
	}
}

// drop takes a Pod out of the count that leaves its place in this pass.
func (l *ledger) drop(p *podView) {
	l.pods--
	if p.available {
		l.available--
	}
	if p.underway {
		l.underway--
	}
}
