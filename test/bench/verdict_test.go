// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"slices"
	"strings"
	"testing"
)

// size builds results that meet all requirements: 100 Pods take 10 s.
func size(pods int, changes ...func(*Size)) Size {
	share := float64(pods) / 100
	s := Size{
		Pods: pods,
		Ceilings: []Ceiling{
			{Name: ceilingImage, PerSecond: 40, SettledSeconds: float64(pods) / 32, Latency: &Distribution{Count: pods, P50: 0.1, P99: 0.2}},
			{Name: ceilingDelete, PerSecond: 40, SettledSeconds: share * share, Latency: &Distribution{Count: pods, P50: 0.1, P99: 0.2}},
			{Name: ceilingByHand, PerSecond: 20, SettledSeconds: share, Latency: &Distribution{Count: pods, P50: 0.1, P99: 0.2}},
		},
		Phases: []Phase{
			{
				Name: phaseInPlace, Kind: KindInPlace, Seconds: 10 * share, StatusSeconds: 10 * share, PodsPerSecond: 10,
				WritesPerPod: 4.1, OtherWrites: 8 * pods, LeastReady: pods * 80 / 100, PeakMiB: 50,
				OutOfService: &Distribution{Count: pods, P50: 0.1, P99: 0.3},
				Usher:        &Requests{Writes: map[string]int{"patch pods": 2 * pods, "patch pods/status": 2 * pods, "create events": pods / 10}},
			},
			{
				Name: "scale in", Kind: KindScale, Seconds: share, StatusSeconds: share, PodsPerSecond: 100, WritesPerPod: 1, PeakMiB: 60,
				Usher: &Requests{Writes: map[string]int{"delete pods": pods}},
			},
		},
	}
	for _, change := range changes {
		change(&s)
	}
	return s
}

func missed(verdicts []Verdict) []string {
	out := []string{}
	for _, v := range verdicts {
		if !v.OK {
			out = append(out, v.What+": "+v.Found)
		}
	}
	return out
}

func TestJudge(t *testing.T) {
	good := judge([]Size{size(100), size(2000)})
	if len(missed(good)) > 0 || len(good) != 7 {
		t.Errorf("%d verdicts, want 7; missed %v", len(good), missed(good))
	}
	for name, c := range map[string]struct {
		change func(*Size)
		want   string
	}{
		"slow":        {func(s *Size) { s.Phases[0].PodsPerSecond = 7.9 }, "79 % at 2,000 Pods: 7.9 Pods/s of 40 ÷ 4 = 10.0; of the 32/s that the nodes keep up with, ÷ 4: 99 %; by hand 20.0 Pods/s, of which Usher has 40 %"},
		"rejected":    {func(s *Size) { s.Phases[1].Usher.Rejected = map[string]int{"delete pods 409": 20} }, `1.00 %: 20 of 2,000 in "scale in"`},
		"over budget": {func(s *Size) { s.Phases[0].LeastReady = 1599 }, `at least 1,599 of 2,000 were, in "in place"`},
		"long outage": {func(s *Size) { s.Phases[0].OutOfService.P99 = 0.91 }, "3.0 ×: 910 ms at 2,000 Pods, 300 ms at 100"},
		"quadratic":   {func(s *Size) { s.Phases[1].Seconds = 22.1 }, "1.10 × the time per Pod: 22.1 s for 2,000 Pods, 1.00 s for 100; without a controller delete takes 20.00 ×"},
		"memory":      {func(s *Size) { s.Phases[1].PeakMiB = 100 }, "at most 100 MiB, with 2,000 Pods"},
	} {
		// The order of the sizes does not matter.
		got := missed(judge([]Size{size(2000, c.change), size(100)}))
		if len(got) != 1 || !strings.Contains(got[0], c.want) {
			t.Errorf("%s: missed %q, want one with %q", name, got, c.want)
		}
		report := Report{Verdicts: judge([]Size{size(2000, c.change)})}
		compares := slices.Contains([]string{"long outage", "quadratic"}, name)
		if report.Missed() == compares {
			t.Errorf("%s: with one size missed is %t", name, report.Missed())
		}
	}
	if got := judge(nil); got != nil {
		t.Errorf("verdicts on nothing: %v", got)
	}
}

func TestReadyFloor(t *testing.T) {
	for pods, want := range map[int]int{1: 0, 4: 3, 5: 4, 6: 4, 100: 80, 2000: 1600} {
		if got := readyFloor(pods); got != want {
			t.Errorf("of %d Pods %d must be ready, want %d", pods, got, want)
		}
	}
}
