// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"
	"time"
)

// at is a time so many seconds after the epoch.
func at(seconds int) time.Time { return epoch.Add(time.Duration(seconds) * time.Second) }

func away(from, to int) Outage { return Outage{From: at(from), To: at(to)} }

func TestHeard(t *testing.T) {
	for name, c := range map[string]struct {
		outage Outage
		gone   int
		want   int
		late   bool
	}{
		"no outage":                            {Outage{}, 100, 105, false},
		"one that callers have got over":       {away(60, 80), 100, 105, false},
		"one that some have yet to get over":   {away(60, 81), 100, 107, true},
		"gone as soon as it is back":           {away(80, 95), 100, 115, true},
		"a long one counts as the bound says":  {away(0, 95), 100, 130, true},
		"gone while it was away":               {away(80, 110), 100, 145, true},
		"away before callers could have heard": {away(102, 110), 100, 123, true},
		"it goes on":                           {Outage{From: at(90)}, 100, 155, true}, // of the 120 seconds, 30 count
		"by a clock that may be behind":        {Outage{From: at(80), To: at(85), Recalled: true}, 100, 125, true},
		"by a clock, long ago":                 {Outage{From: at(40), To: at(45), Recalled: true}, 100, 105, false},
	} {
		t.Run(name, func(t *testing.T) {
			have, late := c.outage.heard(at(c.gone), 5*time.Second, 30*time.Second, at(120))
			if !have.Equal(at(c.want)) || late != c.late {
				t.Errorf("heard %s after the epoch, late %t; want %ds, %t", have.Sub(epoch), late, c.want, c.late)
			}
		})
	}
	have, _ := away(80, 95).heard(at(100), 5*time.Second, 0, at(120))
	if !have.Equal(at(105)) {
		t.Errorf("without a bound for callers: %s, want 105s", have.Sub(epoch))
	}
}

func TestNextOutage(t *testing.T) {
	for name, c := range map[string]struct {
		before Outage
		from   int
		want   int
	}{
		"the first":                {Outage{}, 100, 100},
		"callers were back":        {away(60, 80), 100, 100},
		"some were not: it is one": {away(60, 81), 100, 60},
		"nobody takes longer than the longest bound": {away(-10000, 81), 681, 681},
	} {
		if have := c.before.Next(at(c.from)); have != (Outage{From: at(c.want)}) {
			t.Errorf("%s: %+v, want it from %ds", name, have, c.want)
		}
	}
}
