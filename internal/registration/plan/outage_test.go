// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"github.com/usher-dev/usher/internal/scenariotest"
	"testing"
	"time"
)

// at is a time so many seconds after the epoch.
func at(seconds int) time.Time { return epoch.Add(time.Duration(seconds) * time.Second) }

func away(from, to int) Outage { return Outage{From: at(from), To: at(to)} }

func TestHeard(t *testing.T) {
	scenariotest.Table(t, "testdata/heard.txt", func(_ *testing.T, c struct {
		// From and To are those of an outage, Gone is when an entry went.
		From, To, Gone int
		Recalled       bool
	}) string {
		var outage Outage
		for when, seconds := range map[*time.Time]int{&outage.From: c.From, &outage.To: c.To} {
			if seconds != 0 {
				*when = at(seconds)
			}
		}
		outage.Recalled = c.Recalled
		heard, late := outage.heard(at(c.Gone), 5*time.Second, 30*time.Second, at(120))
		return "heard at " + heard.Sub(epoch).String() + map[bool]string{true: ", late"}[late]
	})
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
