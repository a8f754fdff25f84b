// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"testing"
	"time"

	"github.com/usher-dev/usher/test/traffic"
)

func TestOutcome(t *testing.T) {
	for name, c := range map[string]struct {
		story   Story
		lost    int
		failure error
		want    string
	}{
		"none lost":            {},
		"lost":                 {lost: 2, want: "2 requests were lost, want none"},
		"lost and measured":    {story: Story{MayLose: true}, lost: 2},
		"failed and lost more": {lost: 2, failure: errors.New("broken"), want: "broken"},
	} {
		report := traffic.Report{Sections: []traffic.Section{{Sent: 1200, Lost: c.lost, Fast: traffic.Latencies{time.Millisecond, 3 * time.Millisecond}}}}
		o := outcomeOf(c.story, report, time.Second, c.failure)
		if o.failure != c.want || o.total.Sent != 1200 || o.p99() != "3.0 ms" {
			t.Errorf("%s: the failure is %q, want %q; %d requests, p99 %s", name, o.failure, c.want, o.total.Sent, o.p99())
		}
	}
}
