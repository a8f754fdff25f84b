// SPDX-License-Identifier: Apache-2.0

package plan

import (
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

// mostPercent is more Pods than any set has to handle at once, and overflows in no product.
const mostPercent = 9999

// parsePercent reads a text such as "20%". Anything else is an error: an illegal value must
// never count as 0. However many digits it has: more than all Pods is all of them.
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

// partition is how many Pods keep the old revision: clamped to 0..replicas, and a
// percentage below 100 % of more than one replica leaves at least one Pod to update.
func (s *Spec) partition() int {
	p := min(max(s.Partition.up(s.Replicas), 0), s.Replicas)
	if s.Partition.Percent && s.Partition.Value < 100 && s.Replicas > 1 {
		p = min(p, s.Replicas-1)
	}
	return p
}

// maxSurge is how many Pods may exist above replicas; none while paused.
func (s *Spec) maxSurge() int {
	if s.Paused || s.Method == apps.UpdateInPlaceOnly {
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
