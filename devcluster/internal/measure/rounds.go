// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"cmp"
	"context"
	"slices"
)

const (
	// chancyPods are so few that a phase is over in a second or three: then chance has a
	// large part in it, and the median of several rounds is taken.
	chancyPods = 200
	// roundsOfFew is how many; an odd number.
	roundsOfFew = 3
)

// rounds says how often a size is measured.
func rounds(pods int) int {
	if pods <= chancyPods {
		return roundsOfFew
	}
	return 1
}

// sizeInRounds measures with one number of Pods as often as it takes.
func (s *session) sizeInRounds(ctx context.Context, n int) (Size, error) {
	var sizes []Size
	for round := range rounds(n) {
		s.say("%s Pods, round %d of %d", group(n), round+1, rounds(n))
		size, err := s.size(ctx, n)
		if err != nil {
			return size, err
		}
		sizes = append(sizes, size)
	}
	return median(sizes), nil
}

// median takes each ceiling and each phase from the round in which it took the
// median time, but for what must hold in every round: the fewest Pods that were
// ready, and the most memory.
func median(sizes []Size) Size {
	middle := Size{Pods: sizes[0].Pods, Rounds: len(sizes)}
	for i := range sizes[0].Ceilings {
		middle.Ceilings = append(middle.Ceilings, middleOf(sizes,
			func(s *Size) Ceiling { return s.Ceilings[i] }, func(c Ceiling) float64 { return c.Seconds }))
	}
	for i := range sizes[0].Phases {
		phase := middleOf(sizes, func(s *Size) Phase { return s.Phases[i] }, func(p Phase) float64 { return p.Seconds })
		for j := range sizes {
			phase.LeastReady = min(phase.LeastReady, sizes[j].Phases[i].LeastReady)
			phase.PeakMiB = max(phase.PeakMiB, sizes[j].Phases[i].PeakMiB)
		}
		middle.Phases = append(middle.Phases, phase)
	}
	return middle
}

// middleOf is the one of the median time.
func middleOf[T any](sizes []Size, of func(*Size) T, seconds func(T) float64) T {
	all := make([]T, 0, len(sizes))
	for i := range sizes {
		all = append(all, of(&sizes[i]))
	}
	slices.SortFunc(all, func(a, b T) int { return cmp.Compare(seconds(a), seconds(b)) })
	return all[len(all)/2]
}
