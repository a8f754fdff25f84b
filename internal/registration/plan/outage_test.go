// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/scenariotest"
)

// at is a time so many seconds after the epoch.
func at(seconds int) time.Time { return epoch.Add(time.Duration(seconds) * time.Second) }

// outage is one by seconds, of which 0 is none.
func outage(from, to int) (o Outage) {
	if from != 0 {
		o.From = at(from)
	}
	if to != 0 {
		o.To = at(to)
	}
	return o
}

func TestHeard(t *testing.T) {
	scenariotest.Table(t, "testdata/heard.txt", func(_ *testing.T, c struct {
		// From and To are those of an outage, Gone is when an entry went.
		From, To, Gone int
		Recalled       bool
	}) string {
		o := outage(c.From, c.To)
		o.Recalled = c.Recalled
		heard, late := o.heard(at(c.Gone), 5*time.Second, 30*time.Second, at(120))
		return "heard at " + heard.Sub(epoch).String() + map[bool]string{true: ", late"}[late]
	})
	have, _ := outage(80, 95).heard(at(100), 5*time.Second, 0, at(120))
	if !have.Equal(at(105)) {
		t.Errorf("without a bound for callers: %s, want 105s", have.Sub(epoch))
	}
}

func TestNextOutage(t *testing.T) {
	scenariotest.Table(t, "testdata/next-outage.txt", func(_ *testing.T, c struct{ From, To, Next int }) string {
		return outage(c.From, c.To).Next(at(c.Next)).String()
	})
}
