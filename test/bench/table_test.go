// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"strings"
	"testing"
	"time"

	"github.com/usher-dev/usher/test/demo/view"
)

func report() *Report {
	r := &Report{
		Taken:   time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Machine: Machine{CPUs: 2, Kubernetes: "v1.36.3", Go: "go1.26", Nodes: 12},
		Sizes: []Size{size(100), size(2000, func(s *Size) {
			s.Phases[0].Usher.Rejected = map[string]int{"patch pods 422": 3, "patch pods 409": 7}
		})},
	}
	r.Verdicts = judge(r.Sizes)
	r.Verdicts[0].OK = false
	return r
}

func TestLines(t *testing.T) {
	got := strings.Join(report().lines(view.Style{}), "\n")
	for _, want := range []string{
		" Pods  phase        wall  Pods/s  writes/Pod  rejected  not ready p50     p99  least ready     CPU  peak MiB\n" +
			"  100  in place   10.0 s    10.0        4.10    0.00 %         100 ms  300 ms           80  0.00 s        50\n" +
			"  100  scale in   1.00 s   100.0        1.00    0.00 %              -       -            -  0.00 s        60\n" +
			"\n" +
			"2,000  in place  200.0 s    10.0        4.10    0.12 %",
		"patch clonesets/status  other  all of Usher's  reads  writes of others  rejected\n" +
			"  100  in place            -        2.00               2.00            -                       -   0.10            4.10      -              8.00  -\n",
		"7 × patch pods 409, 3 × patch pods 422",
		"2 processors for everything, Kubernetes v1.36.3, 12 simulated nodes, go1.26.",
		"missed  in place, at least 80 % of the raw patch ceiling ÷ 4\n        100 % at 2,000 Pods",
		"ok      Usher's memory under 100 MiB\n        at most 60 MiB, with 100 Pods",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the report lacks\n%s\nit is\n%s", want, got)
		}
	}
}

// Every row of a Markdown table has as many cells as its heading.
func TestMarkdown(t *testing.T) {
	got := report().Markdown()
	for _, want := range []string{
		"Measured on 2026-01-02. 2 processors", "\n**CPU seconds**\n\n| Pods | phase |", "|\n| ---: | --- |",
		"| 2,000 | in place | 200.0 s | 10.0 | 4.10 | 0.12 % | 100 ms | 300 ms | 1,600 | 0.00 s | 50 |",
		"| **missed** | in place, at least", "| ok | Usher's memory",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the Markdown lacks %q:\n%s", want, got)
		}
	}
	cells := 0
	for line := range strings.SplitSeq(got, "\n") {
		count := strings.Count(line, "|")
		if cells > 0 && count > 0 && count != cells {
			t.Errorf("%d bars instead of %d: %s", count, cells, line)
		}
		cells = count
	}
}

func TestNumbers(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{group(0), "0"}, {group(999), "999"}, {group(1000), "1,000"}, {group(1234567), "1,234,567"}, {group(-1000), "-1,000"}, {group(-100), "-100"},
		{seconds(1.234), "1.23 s"}, {seconds(12.34), "12.3 s"},
		{milliseconds(0.0012), "1.2 ms"}, {milliseconds(1.2), "1200 ms"},
		{perPod(0, 7), "-"}, {perPod(1, 8), "0.12"},
		{list(nil), "-"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}
