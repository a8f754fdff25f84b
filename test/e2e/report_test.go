// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
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

// TestRounds: a story that is played several times has another name in each round, and one outcome.
// TestByName: a story with ByName is played if its name is asked for, or the report of all.
func TestByName(t *testing.T) {
	for _, row := range []struct {
		options Options
		want    []string
	}{
		{Options{}, []string{"a"}}, {Options{Report: true}, []string{"a", "a-control"}},
		{Options{Run: regexp.MustCompile("control")}, []string{"a-control"}},
		{Options{Run: regexp.MustCompile(".")}, []string{"a", "a-control"}},
	} {
		row.options.Stories = []Story{{Name: "a"}, {Name: "a-control", ByName: true}}
		names := list.Map(row.options.chosen(), func(s Story) string { return s.Name })
		what := fmt.Sprintf("the stories with -run=%v -report=%v", row.options.Run, row.options.Report)
		checktest.Same(t, what, row.want, names)
	}
}

func TestRounds(t *testing.T) {
	chosen := Options{Stories: []Story{{Name: "a"}, {Name: "b"}}, Times: 2}.chosen()
	var names []string
	var outcomes []outcome
	for i, story := range chosen {
		names = append(names, story.Name)
		report := traffic.Report{Sections: []traffic.Section{{Sent: 10 + i, Lost: i}}, Reasons: map[string]int{"refused": i}}
		outcomes = append(outcomes, outcomeOf(story, report, time.Second, nil))
	}
	checktest.Same(t, "names", []string{"a", "a-2", "b", "b-2"}, names)
	checktest.Same(t, "rounds", 2, rounds(chosen))
	var lines []string
	for _, o := range together(outcomes) {
		lines = append(lines, fmt.Sprintf("%s: %d sent, %d refused, %s: %s", o.Name, o.total.Sent, o.reasons["refused"], o.took, o.failure))
	}
	checktest.Same(t, "outcomes", []string{
		"a: 21 sent, 1 refused, 2s: round 2: 1 requests were lost, want none", "b: 25 sent, 5 refused, 2s: 2 requests were lost, want none",
	}, lines)
}
