// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"
)

// Latencies are the times of answered requests, each counted from when the request was
// due. All of them are kept, so percentiles are exact.
type Latencies []time.Duration

// Percentile is the smallest latency that at least p percent (0 to 100) of the
// requests did not exceed (nearest rank); 0 if there were none.
func (l Latencies) Percentile(p float64) time.Duration {
	if len(l) == 0 {
		return 0
	}
	sorted := slices.Clone(l)
	slices.Sort(sorted)
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// Section is what happened while one phase of the demonstration ran.
type Section struct {
	// Name is the phase's name.
	Name string
	// From and To are the section's bounds, counted from the start of the stream.
	From, To time.Duration
	// Sent is the number of requests due in it, including lost ones.
	Sent int
	// Lost is the number of requests found lost in it, whenever they were due.
	Lost int
	// Drained counts the requests answered in full although their instance had left the
	// registry meanwhile or before.
	Drained int
	// DrainedSlow counts the slow ones among them.
	DrainedSlow int
	// Fast and Slow are the latencies of the answered requests of each kind.
	Fast, Slow Latencies
}

// add sums two sections; the result spans both.
func (s Section) add(o Section) Section {
	s.To = max(s.To, o.To)
	s.Sent += o.Sent
	s.Lost += o.Lost
	s.Drained += o.Drained
	s.DrainedSlow += o.DrainedSlow
	s.Fast = append(slices.Clone(s.Fast), o.Fast...)
	s.Slow = append(slices.Clone(s.Slow), o.Slow...)
	return s
}

// Loss is one lost request.
type Loss struct {
	// Due is when the request was due, At when it was found lost.
	Due, At time.Time
	// Addr is the instance it was sent to; empty if the caller knew none.
	Addr string
	// Slow reports whether it had requested a slow answer.
	Slow bool
	// Reason is the cause in a few words: the same cause gives the same words.
	Reason string
	// Section is the phase in which it was found lost.
	Section string
}

// ReasonCount is how often a reason occurred.
type ReasonCount struct {
	Reason string
	Count  int
}

// Report is the outcome of a stream.
type Report struct {
	// Sections are the phases in their order.
	Sections []Section
	// Losses are the first lost requests, in the order in which they were found.
	Losses []Loss
	// Reasons counts all lost requests by reason, the most common first.
	Reasons []ReasonCount
}

// Total sums up all sections.
func (r Report) Total() Section {
	total := Section{Name: "total"}
	for _, section := range r.Sections {
		total = total.add(section)
	}
	return total
}

// Add joins the reports of two streams.
func (r Report) Add(o Report) Report {
	counts := map[string]int{}
	for _, reason := range slices.Concat(r.Reasons, o.Reasons) {
		counts[reason.Reason] += reason.Count
	}
	return Report{
		Sections: slices.Concat(r.Sections, o.Sections), Losses: slices.Concat(r.Losses, o.Losses), Reasons: countReasons(counts),
	}
}

func countReasons(counts map[string]int) []ReasonCount {
	list := make([]ReasonCount, 0, len(counts))
	for reason, count := range counts {
		list = append(list, ReasonCount{Reason: reason, Count: count})
	}
	slices.SortFunc(list, func(a, b ReasonCount) int {
		return cmp.Or(b.Count-a.Count, strings.Compare(a.Reason, b.Reason))
	})
	return list
}

// meter counts events of the last second, in slots of a quarter second.
type meter struct {
	slots [meterSlots]int
	last  int64 // number of the newest slot
}

const (
	meterSlot  = 250 * time.Millisecond
	meterSlots = 5 // four whole ones and the one being filled
)

func (m *meter) add(now time.Time) {
	m.turn(now)
	m.slots[m.last%meterSlots]++
}

// perSecond is the number of events in the last four whole slots.
func (m *meter) perSecond(now time.Time) int {
	m.turn(now)
	sum := 0
	for i, count := range m.slots {
		if int64(i) != m.last%meterSlots {
			sum += count
		}
	}
	return sum
}

// turn advances to the slot of now. A clock that goes back changes nothing.
func (m *meter) turn(now time.Time) {
	slot := now.UnixNano() / int64(meterSlot)
	if slot-m.last >= meterSlots {
		m.slots, m.last = [meterSlots]int{}, slot
	}
	for m.last < slot {
		m.last++
		m.slots[m.last%meterSlots] = 0
	}
}
