// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"
)

// TestParsePercent: an illegal value is an error, and never 0.
func TestParsePercent(t *testing.T) {
	for text, want := range map[string]int{"0%": 0, "20%": 20, "100%": 100, "007%": 7, "9999%": 9999} {
		if got, err := ParsePercent(text); err != nil || got != (Count{Value: want, Percent: true}) {
			t.Errorf("ParsePercent(%q) = %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "%", "5", "-1%", "+1%", "1.5%", "20 %", "20%%", "abc%", "99999%", "９%"} {
		if got, err := ParsePercent(text); err == nil {
			t.Errorf("ParsePercent(%q) = %+v, want an error", text, got)
		}
	}
}

func percent(n int) Count { return Count{Value: n, Percent: true} }

// TestPartition: percentages round up, but leave one Pod to update.
func TestPartition(t *testing.T) {
	for _, test := range []struct {
		replicas int
		value    Count
		want     int
	}{
		{10, Count{}, 0}, {10, Count{Value: 3}, 3}, {10, Count{Value: 12}, 10}, {0, Count{Value: 3}, 0},
		{10, percent(0), 0}, {10, percent(30), 3}, {10, percent(31), 4}, {10, percent(91), 9}, {10, percent(99), 9}, {10, percent(100), 10},
		{10, percent(200), 10}, {3, percent(99), 2}, {2, percent(51), 1}, {1, percent(50), 1}, {1, percent(0), 0}, {0, percent(50), 0},
	} {
		spec := Spec{Replicas: test.replicas, Partition: test.value}
		if got := spec.partition(); got != test.want {
			t.Errorf("partition %+v of %d = %d, want %d", test.value, test.replicas, got, test.want)
		}
	}
}

// TestBudgets: maxSurge rounds up and does not count while paused; maxUnavailable rounds
// up without a surge and down with one.
func TestBudgets(t *testing.T) {
	for _, test := range []struct {
		name               string
		spec               Spec
		surge, unavailable int
	}{
		{"default", Spec{Replicas: 3, MaxUnavailable: percent(20)}, 0, 1},
		{"no replicas", Spec{MaxUnavailable: percent(20)}, 0, 0},
		{"numbers", Spec{Replicas: 10, MaxUnavailable: Count{Value: 2}, MaxSurge: Count{Value: 3}}, 3, 2},
		{"rounded down with a surge", Spec{Replicas: 9, MaxUnavailable: percent(20), MaxSurge: Count{Value: 1}}, 1, 1},
		{"rounded up without", Spec{Replicas: 9, MaxUnavailable: percent(20)}, 0, 2},
		{"surge rounded up", Spec{Replicas: 9, MaxUnavailable: percent(20), MaxSurge: percent(10)}, 1, 1},
		{"paused: no surge, so rounded up", Spec{Replicas: 9, MaxUnavailable: percent(20), MaxSurge: percent(10), Paused: true}, 0, 2},
		{"InPlaceOnly: no surge", Spec{Replicas: 9, MaxUnavailable: percent(20), MaxSurge: percent(10), Method: InPlaceOnly}, 0, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := test.spec.maxSurge(); got != test.surge {
				t.Errorf("maxSurge = %d, want %d", got, test.surge)
			}
			if got := test.spec.maxUnavailable(); got != test.unavailable {
				t.Errorf("maxUnavailable = %d, want %d", got, test.unavailable)
			}
		})
	}
}
