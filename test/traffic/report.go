// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// Latencies are the times of answered requests, each counted from when the request was
// due. All of them are kept, so percentiles are exact.
type Latencies []time.Duration

// Percentile returns the smallest latency that at least p percent (0 to 100) of the requests did not
// exceed (nearest rank); 0 if there were none.
func (l Latencies) Percentile(p float64) time.Duration {
	if len(l) == 0 {
		return 0
	}
	sorted := slices.Clone(l)
	slices.Sort(sorted)
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// Section has the counts of one phase of the demonstration.
type Section struct {
	// Name is the phase's name.
	Name string
	// Sent is the number of requests due in it, including lost ones.
	Sent int
	// Lost is the number of requests found lost in it, whenever they were due.
	Lost int
	// Drained counts the requests that were answered in full although their instance had left the
	// registry before or meanwhile.
	Drained int
	// DrainedSlow counts the slow ones among them.
	DrainedSlow int
	// Fast and Slow are the latencies of the answered requests of each kind.
	Fast, Slow Latencies
}

// Loss is one lost request.
type Loss struct {
	// Due is when the request was due, At when it was found lost.
	Due, At time.Time
	// Addr is the instance it was sent to; empty if the caller knew none.
	Addr string
	// Reason is the cause in a few words: the same cause gives the same words.
	Reason string
}

// Report is the outcome of a stream.
type Report struct {
	// Sections are the phases in their order.
	Sections []Section
	// Losses are the first lost requests, in the order in which they were found.
	Losses []Loss
	// Reasons counts all lost requests by reason.
	Reasons map[string]int
}

// Total sums up all sections.
func (r Report) Total() Section {
	total := Section{Name: "total"}
	for _, s := range r.Sections {
		total = total.plus(s)
	}
	return total
}

// ByName returns the sum of the sections of each name, in the order of the names.
func (r Report) ByName() []Section {
	sums := map[string]Section{}
	for _, s := range r.Sections {
		sum := sums[s.Name].plus(s)
		sum.Name = s.Name
		sums[s.Name] = sum
	}
	return slices.SortedFunc(maps.Values(sums), func(a, b Section) int { return strings.Compare(a.Name, b.Name) })
}

// plus adds the counts of another section.
func (s Section) plus(o Section) Section {
	s.Sent += o.Sent
	s.Lost += o.Lost
	s.Drained += o.Drained
	s.DrainedSlow += o.DrainedSlow
	s.Fast = slices.Concat(s.Fast, o.Fast)
	s.Slow = slices.Concat(s.Slow, o.Slow)
	return s
}

// Add joins the reports of two streams.
func (r Report) Add(o Report) Report {
	sum := Report{Sections: slices.Concat(r.Sections, o.Sections), Losses: slices.Concat(r.Losses, o.Losses), Reasons: map[string]int{}}
	for _, reasons := range []map[string]int{r.Reasons, o.Reasons} {
		for reason, n := range reasons {
			sum.Reasons[reason] += n
		}
	}
	return sum
}
