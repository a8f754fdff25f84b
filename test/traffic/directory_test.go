// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/checktest"
)

func at(seconds float64) time.Time {
	return time.Unix(1_000, 0).Add(time.Duration(seconds * float64(time.Second)))
}

// A caller knows the addresses that the registry had before the caller's lag; none before the first
// list.
func TestViewLagsBehindTheRegistry(t *testing.T) {
	d := &directory{keep: 2 * time.Second}
	checktest.Same(t, "what an empty directory gives", nil, d.view(at(0), 0))
	d.replace(at(0), []string{"a"})
	d.replace(at(1), []string{"b", "a"})
	d.replace(at(2), []string{"b"})
	for _, c := range []struct {
		now  float64
		lag  time.Duration
		want []string
	}{
		{1.9, 2 * time.Second, nil}, // 1.9 s after the first list
		{2, 0, []string{"b"}},
		{2, time.Second, []string{"a", "b"}},
		{2, 2 * time.Second, []string{"a"}},
		{2.9, time.Second, []string{"a", "b"}}, // gone for 0.9 s, still used
		{3, time.Second, []string{"b"}},
		{3.9, 2 * time.Second, []string{"a", "b"}},
		{60, 2 * time.Second, []string{"b"}}, // an outage leaves the last list
	} {
		checktest.Same(t, fmt.Sprintf("at %gs a caller %s behind knows", c.now, c.lag), c.want, d.view(at(c.now), c.lag))
	}
}

// Addresses that leave and join at once are seen at once: a caller knows an instance at every moment.
func TestChangesSayWhatCameAndWhatLeft(t *testing.T) {
	d := &directory{keep: time.Second}
	for i, test := range []struct{ list, left, joined []string }{
		{[]string{"b", "a", "b"}, nil, []string{"a", "b"}},
		{[]string{"c", "b"}, []string{"a"}, []string{"c"}},
		{[]string{"b", "c"}, nil, nil},
		{[]string{"d"}, []string{"b", "c"}, []string{"d"}},
	} {
		left, joined := d.replace(at(float64(i)), test.list)
		if !slices.Equal(left, test.left) || !slices.Equal(joined, test.joined) {
			t.Errorf("%v: %v left and %v joined", test.list, left, joined)
		}
		clear(test.list) // the list belongs to the caller
		for _, half := range []float64{-0.5, 0, 0.5} {
			if got := d.view(at(float64(i)+half), 0); i > 0 && (len(got) == 0 || got[0] == "") {
				t.Errorf("around change %d callers know %v", i, got)
			}
		}
	}
	checktest.Same(t, "versions that are kept", 2, len(d.versions))
}

func TestUsableUntilTheSlowestCallerHasHeard(t *testing.T) {
	d := &directory{keep: time.Second}
	d.replace(at(0), []string{"a"})
	d.replace(at(10), nil)
	if d.lists("a") {
		t.Error("the address was removed and is still listed")
	}
	for now, heard := range map[float64]bool{10.9: false, 11: true} {
		d := &directory{keep: d.keep, versions: slices.Clone(d.versions)}
		if d.usable(at(now), "a") == heard || d.caughtUp(at(now)) != heard || (len(d.versions) == 1) != heard {
			t.Errorf("at %gs a caller one second behind has heard that the address is gone: %t, want %t", now, d.caughtUp(at(now)), heard)
		}
	}
}

// The slowest caller lags behind by the whole delay.
func TestLagsReachTheWholeDelay(t *testing.T) {
	if got := lags(time.Second); got[0] != time.Second/callers || got[callers-1] != time.Second {
		t.Errorf("lags %v", got)
	}
}
