// SPDX-License-Identifier: Apache-2.0

package measure

import "testing"

// TestMedian: each line is that of its own median round, and what must hold in every
// round is the worst of all.
func TestMedian(t *testing.T) {
	size := func(ceiling, phase, peak float64, least int) Size {
		return Size{
			Pods: 100, Ceilings: []Ceiling{{Name: ceilingImage, Seconds: ceiling}},
			Phases: []Phase{{Name: phaseInPlace, Seconds: phase, PeakMiB: peak, LeastReady: least}},
		}
	}
	got := median([]Size{size(3, 10, 50, 80), size(1, 30, 70, 81), size(2, 20, 60, 82)})
	if got.Pods != 100 || got.Rounds != 3 || got.ceiling(ceilingImage).Seconds != 2 {
		t.Errorf("got %+v", got)
	}
	if p := got.phase(phaseInPlace); p.Seconds != 20 || p.PeakMiB != 70 || p.LeastReady != 80 {
		t.Errorf("got %+v", p)
	}
	if rounds(100)%2 == 0 || rounds(2_000) != 1 {
		t.Errorf("%d rounds for 100 Pods, %d for 2,000", rounds(100), rounds(2_000))
	}
}
