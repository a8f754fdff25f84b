// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"strings"
	"testing"
	"time"

	"github.com/usher-dev/usher/test/demo/view"
	"github.com/usher-dev/usher/test/servers"
)

// Both halves register, fail over and deregister with a real etcd, and are killed in
// between: no entry leaves wrongly, and the watch would have noticed.
func TestRunRegistries(t *testing.T) {
	o := options(t)
	o.Registries, o.Repair = []string{"etcd"}, 2*time.Second
	report, err := RunRegistries(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	nothingLeft(t)
	if len(report.Runs) != 1 || len(report.Runs[0].Alone) != 2 || len(report.Runs[0].Phases) != len(moves(fewPods)) {
		t.Fatalf("the report lacks something: %+v", report)
	}
	for _, v := range report.Verdicts {
		if !v.OK {
			t.Errorf("%s: %s", v.What, v.Found)
		}
	}
	for i, m := range moves(fewPods) {
		m.check(t, report.Runs[0].Phases[i])
	}
}

// check compares the result with what was asked for.
func (m move) check(t *testing.T, p OperatorPhase) {
	t.Helper()
	times := func(moves bool) int {
		if moves || m.name == moveControl {
			return m.pods
		}
		return 0
	}
	joined, left := times(m.joining), times(m.leaving)
	// An update that was undone when Usher was killed is repeated.
	if p.Joined < joined || p.Left < left || p.Joined > 2*joined || p.Left > 2*left {
		t.Errorf("%s: %d entries came and %d left, want %d and %d", p.Name, p.Joined, p.Left, joined, left)
	}
	if p.Seconds <= 0 || p.PeakMiB <= 0 || sum(p.Calls) == 0 {
		t.Errorf("%s lacks something: %+v", p.Name, p)
	}
}

func TestRefusedRegistries(t *testing.T) {
	for want, o := range map[string]Options{
		"no registries are given":                    {Sizes: []int{fewPods}},
		`registry "disk": give some of etcd, consul`: {Sizes: []int{fewPods}, Registries: []string{"etcd", "disk"}},
		"size 4: with registries give numbers":       {Sizes: []int{4}, Registries: []string{"etcd"}},
		"no sizes are given":                         {Registries: []string{"etcd"}},
	} {
		if _, err := RunRegistries(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// operatorRun is a run without faults.
func operatorRun(pods int, changes ...func(*OperatorRun)) OperatorRun {
	run := OperatorRun{Registry: "etcd 3", Pods: pods, Alone: []Ceiling{{Name: "put", Seconds: 1, PerSecond: 1000}}}
	for _, m := range moves(pods) {
		p := OperatorPhase{
			Name: m.name, Pods: m.pods, Seconds: float64(m.pods) / 10, PodsPerSecond: 10, Calls: servers.Calls{"Range": 2 * m.pods, "Txn": m.pods},
			Usher: &Requests{Writes: map[string]int{"patch pods": 5 * m.pods, "patch registrations/status": 1}},
			CPU:   CPU{Usher: 0.01 * float64(m.pods)}, PeakMiB: 70,
		}
		switch m.name {
		case moveRest:
			p.Calls = servers.Calls{"Range": 4}
		case moveControl:
			p.Wrong = []string{"web-a"}
		default:
			p.Left = m.pods
		}
		run.Phases = append(run.Phases, p)
	}
	for _, change := range changes {
		change(&run)
	}
	return run
}

func TestJudgeOperator(t *testing.T) {
	for name, c := range map[string]struct {
		runs  []OperatorRun
		wrong string // prefix of the finding, "" if nothing is missed
	}{
		"all is well": {runs: []OperatorRun{operatorRun(100), operatorRun(1000)}},
		"an entry left wrongly": {wrong: "1 of 360 entries that left: web-b", runs: []OperatorRun{operatorRun(100, func(r *OperatorRun) {
			r.Phases[3].Wrong = []string{"web-b"}
		})}},
		"the watch is blind": {wrong: "0 noticed", runs: []OperatorRun{operatorRun(100, func(r *OperatorRun) { r.Phases[6].Wrong = nil })}},
		"a restart writes": {wrong: "1 writes", runs: []OperatorRun{operatorRun(100, func(r *OperatorRun) {
			r.Phases[1].Calls["Txn"] = 1
		})}},
		"a restart removes": {wrong: "2 writes", runs: []OperatorRun{operatorRun(100, func(r *OperatorRun) {
			r.Phases[1].Left = 2
		})}},
		"the cost grows": {wrong: "2.0 ×: 20 ms with 1,000 Pods, 10 ms with 100", runs: []OperatorRun{operatorRun(100),
			operatorRun(1000, func(r *OperatorRun) { r.Phases[2].CPU.Usher = 20 })}},
		"a fifth costs more, for it is killed": {runs: []OperatorRun{operatorRun(100),
			operatorRun(1000, func(r *OperatorRun) { r.Phases[3].CPU.Usher = 20 })}},
	} {
		missed := ""
		for _, v := range judgeOperator(c.runs) {
			if !v.OK {
				missed += v.Found
			}
		}
		if missed != c.wrong {
			t.Errorf("%s: missed %q, want %q", name, missed, c.wrong)
		}
	}
}

func TestOperatorTables(t *testing.T) {
	r := &OperatorReport{Runs: []OperatorRun{operatorRun(1000)}, Machine: Machine{CPUs: 2}}
	r.Verdicts = judgeOperator(r.Runs)
	drawn := strings.Join(r.lines(view.Style{}), "\n")
	for text, wants := range map[string][]string{
		r.Markdown(): {
			"| etcd 3 | 1,000 | fail over | 1,000 | 100.0 s | 10.0 | 3.00 | 5.00 | 0.00 % | 0 | 1,000 | 0 | 10 ms | 70 |",
			"| etcd 3 | 1,000 | killed at rest | 0 | 100.0 s | - |", "| 4 | 4 × Range |",
			"| etcd 3 | 1,000 | put | 1.00 s | 1000 | - | - |", "| ok | etcd 3, 1,000 Pods: no wrong deregistration",
		},
		drawn: {"2 processors", "ok      etcd 3, 1,000 Pods: a restart at rest writes nothing to the registry\n        0 writes"},
	} {
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("the report lacks %q:\n%s", want, text)
			}
		}
	}
}
