// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math"
	"slices"
	"time"
)

// Distribution summarizes how long something took, in seconds.
type Distribution struct {
	// Count is the number of samples.
	Count int `json:"count"`
	// P50 and P99 are the times that half and 99 % of the samples did not exceed.
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	// Max is the longest time.
	Max float64 `json:"max"`

	sorted []time.Duration // all samples
}

// with merges two distributions; each may be nil.
func (d *Distribution) with(other *Distribution) *Distribution {
	switch {
	case d == nil:
		return other
	case other == nil:
		return d
	}
	return distribute(slices.Concat(d.sorted, other.sorted))
}

// distribute summarizes durations; nil if there are none.
func distribute(durations []time.Duration) *Distribution {
	if len(durations) == 0 {
		return nil
	}
	sorted := slices.Clone(durations)
	slices.Sort(sorted)
	return &Distribution{
		Count: len(sorted),
		P50:   percentile(sorted, 0.50).Seconds(), P99: percentile(sorted, 0.99).Seconds(),
		Max: sorted[len(sorted)-1].Seconds(), sorted: sorted,
	}
}

// percentile is the nearest-rank percentile of sorted values: the smallest one that at
// least a share of them does not exceed.
func percentile(sorted []time.Duration, share float64) time.Duration {
	rank := int(math.Ceil(share * float64(len(sorted))))
	return sorted[max(rank, 1)-1]
}
