// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestTogether: times are means, counts are sums, distributions cover all rounds, and
// what must hold in every round is the worst of all.
func TestTogether(t *testing.T) {
	round := func(seconds, peak float64, least, patches int, outs ...time.Duration) Size {
		return Size{
			Pods: 100, Ceilings: []Ceiling{{Name: ceilingImage, Seconds: seconds, Latency: distribute(outs)}},
			Phases: []Phase{{
				Name: phaseInPlace, Seconds: seconds, PeakMiB: peak, LeastReady: least, OutOfService: distribute(outs),
				Usher: &Requests{Writes: map[string]int{"patch pods": patches}, Rejected: map[string]int{}}, CPU: CPU{Usher: seconds},
			}},
		}
	}
	got := together([]Size{
		round(3, 50, 80, 300, time.Second, 5*time.Second), round(1, 70, 81, 301, 2*time.Second), round(2, 60, 79, 302),
	})
	c, p := got.ceiling(ceilingImage), got.phase(phaseInPlace)
	for what, pair := range map[string][2]float64{
		"Pods": {float64(got.Pods), 100}, "rounds": {float64(got.Rounds), 3}, "Pods moved": {float64(got.moved()), 300},
		"ceiling": {c.Seconds, 2}, "its rate": {c.PerSecond, 50}, "its requests": {float64(c.Latency.Count), 3},
		"phase": {p.Seconds, 2}, "its rate, Pods": {p.PodsPerSecond, 50}, "CPU": {p.CPU.Usher, 2},
		"memory": {p.PeakMiB, 70}, "least ready": {float64(p.LeastReady), 79},
		"writes": {float64(p.Usher.Total()), 903}, "writes per Pod": {p.WritesPerPod, 3.01},
		"Pods out": {float64(p.OutOfService.Count), 3}, "out, p50": {p.OutOfService.P50, 2}, "out, longest": {p.OutOfService.Max, 5},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: %v, want %v", what, pair[0], pair[1])
		}
	}
}

func TestRounds(t *testing.T) {
	for _, c := range []struct{ pods, largest, want int }{{2_000, 2_000, 1}, {100, 2_000, maxRounds}, {500, 2_000, 4}, {1_500, 2_000, 1}, {1, 20_000, maxRounds}} {
		if got := rounds(c.pods, c.largest); got != c.want {
			t.Errorf("%d Pods are measured %d times beside %d, want %d", c.pods, got, c.largest, c.want)
		}
	}
}

// TestInTurn: half of the rounds of a smaller size come before the largest; incomplete
// sizes are left out after a failure.
func TestInTurn(t *testing.T) {
	sizes := []int{500, 2_000, 1_500}
	for failAt, want := range map[int]string{
		-1: "500 500 1500 2000 500 500: [500 2000 1500]",
		4:  "500 500 1500 2000: [2000 1500]",
		0:  ": []",
	} {
		var order []string
		done, err := inTurn(sizes, func(n int, _ turn) (Size, error) {
			if len(order) == failAt {
				return Size{}, errors.New("gone")
			}
			order = append(order, strconv.Itoa(n))
			return Size{Pods: n}, nil
		})
		var complete []int
		for _, size := range done {
			complete = append(complete, size.Pods)
		}
		if got := fmt.Sprintf("%s: %v", strings.Join(order, " "), complete); got != want || (err == nil) != (failAt < 0) {
			t.Errorf("failing at %d: %s, %v; want %s", failAt, got, err, want)
		}
	}
}
