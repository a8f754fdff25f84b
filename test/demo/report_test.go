// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/usher-dev/usher/test/demo/view"
	"github.com/usher-dev/usher/test/traffic"
)

func latencies(fast, slow time.Duration) (traffic.Latencies, traffic.Latencies) {
	return traffic.Latencies{fast, fast, 10 * fast}, traffic.Latencies{slow}
}

func section(name string, sent, lost, drained, drainedSlow int) traffic.Section {
	fast, slow := latencies(900*time.Microsecond, 1500*time.Millisecond)
	return traffic.Section{Name: name, Sent: sent, Lost: lost, Drained: drained, DrainedSlow: drainedSlow, Fast: fast, Slow: slow}
}

// played is a demonstration in which everything went as it should.
func played() Result {
	return Result{
		On: &RunResult{
			Hooks: true,
			Outcomes: []Outcome{
				{Name: "web", Report: traffic.Report{Sections: []traffic.Section{
					section(phaseCreate, 800, 0, 0, 0), section(phaseInPlace, 12_000, 0, 600, 40),
				}}},
				{Name: "prenormal", JoinsOnly: true, Leaving: 678, Report: traffic.Report{
					Sections: []traffic.Section{section(phaseCreate, 800, 0, 0, 0), section(phaseRecreate, 6_000, 678, 0, 0)},
					Reasons:  []traffic.ReasonCount{{Reason: "connection refused", Count: 678}},
				}},
			},
			Phases: []PhaseTime{{phaseCreate, 1500 * time.Millisecond}, {phaseInPlace, 8700 * time.Millisecond}, {phaseRecreate, 12 * time.Second}},
		},
		Off: &RunResult{
			Outcomes: []Outcome{
				{Name: "web", Report: traffic.Report{
					Sections: []traffic.Section{section(phaseCreate, 700, 0, 0, 0), section(phaseInPlace, 900, 51, 3, 0)},
					Reasons:  []traffic.ReasonCount{{Reason: "connection refused", Count: 50}, {Reason: "connection reset", Count: 1}},
				}},
				{Name: "prenormal", Report: traffic.Report{
					Sections: []traffic.Section{section(phaseCreate, 700, 0, 0, 0), section(phaseRecreate, 900, 1300, 0, 0)},
					Reasons:  []traffic.ReasonCount{{Reason: "connection reset", Count: 1300}},
				}},
			},
			Phases: []PhaseTime{{phaseCreate, 1300 * time.Millisecond}, {phaseInPlace, 300 * time.Millisecond}, {phaseRecreate, 500 * time.Millisecond}},
		},
	}
}

func golden(t *testing.T, name string, lines []string) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(lines, "\n") + "\n"; got != string(raw) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, raw)
	}
}

func TestReport(t *testing.T) {
	lost := played()
	lost.Off = nil
	lost.On.Outcomes[0].Report.Sections[1].Lost = 2
	lost.On.Outcomes[0].Report.Reasons = []traffic.ReasonCount{{Reason: "connection reset", Count: 2}}
	for _, c := range []struct {
		file   string
		result Result
		failed bool
	}{
		{"both.txt", played(), false},
		{"lost.txt", lost, true},
	} {
		golden(t, c.file, c.result.write(view.Style{}))
		if c.result.Failed() != c.failed {
			t.Errorf("%s: Failed() = %t, want %t", c.file, c.result.Failed(), c.failed)
		}
	}
}

// Losses without hooks are the point of that run.
func TestOnlyTheRunWithHooksCanFail(t *testing.T) {
	result := played()
	result.On = nil
	if result.Failed() {
		t.Error("a run without hooks failed because it lost requests")
	}
}

// Losses because a Pod left do not count against a hook that covers how Pods join; all
// others do.
func TestJoinsAreHeldAgainstPreNormal(t *testing.T) {
	left := map[string]time.Time{"127.9.0.3:8080": time.Unix(100, 0)}
	leftAt := func(addr string) (time.Time, bool) {
		at, ok := left[addr]
		return at, ok
	}
	for _, c := range []struct {
		name string
		loss traffic.Loss
		want bool
	}{
		{"after its Pod's deletion", traffic.Loss{Addr: "127.9.0.3:8080", At: time.Unix(101, 0)}, true},
		{"a moment before the board heard of that", traffic.Loss{Addr: "127.9.0.3:8080", At: time.Unix(99, 700_000_000)}, true},
		{"long before", traffic.Loss{Addr: "127.9.0.3:8080", At: time.Unix(95, 0)}, false},
		{"at a Pod that stays", traffic.Loss{Addr: "127.9.0.4:8080", At: time.Unix(101, 0)}, false},
		{"with no instance known", traffic.Loss{At: time.Unix(101, 0)}, false},
	} {
		if got := leaving(c.loss, leftAt); got != c.want {
			t.Errorf("lost %s: leaving = %t, want %t", c.name, got, c.want)
		}
	}
}
