// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/stage"
	"github.com/usher-dev/usher/test/traffic"
)

// Result is the outcome of a run.
type Result struct {
	// Report are the counters of all requests.
	Report traffic.Report
	// Faults and Changes count what happened, by kind.
	Faults, Changes map[string]int
	// Starts is how many processes of Usher there were.
	Starts int
	// Writes counts Usher's writes, and Strays are those of a replica that did not lead.
	Writes int
	Strays []string
	// Left are the objects and entries that remain although their workloads are deleted.
	Left []string

	seed    uint64
	apart   time.Duration // of the replicas' clocks
	took    time.Duration
	longest *life // nil if no leader was seen
	// before is the revision that Usher was upgraded from; empty if it was not. onTheirWay is how many Pods were on
	// their way out while its processes changed.
	before     string
	onTheirWay int
}

func (s *soak) result() (*Result, error) {
	r := &Result{Faults: s.faults, Changes: s.changes, seed: s.options.Seed, apart: s.apart(), took: time.Since(s.began), longest: s.lives.longest(),
		before: s.options.Before, onTheirWay: s.upgrades.onTheirWay}
	for _, w := range s.workloads {
		for _, c := range w.callers {
			r.Report = r.Report.Add(c.Report())
		}
	}
	for _, replica := range s.replicas {
		r.Starts += int(replica.starts.Load())
	}
	if r.before != "" {
		return r, nil
	}
	writes, err := readWrites(auditLog(s.Stage))
	r.Writes, r.Strays = len(writes), list.Map(strays(writes), stray.String)
	return r, err
}

// Failed says what is wrong; empty if nothing is.
func (r *Result) Failed() string {
	var wrong []string
	if lost := r.Report.Total().Lost; lost > 0 {
		wrong = append(wrong, fmt.Sprintf("%d requests were lost", lost))
	}
	if r.longest == nil {
		wrong = append(wrong, "no replica of Usher was seen to lead")
	} else if leak := r.longest.leak(); leak != "" && r.before == "" { // otherwise none lives long enough
		wrong = append(wrong, leak)
	}
	if len(r.Strays) > 0 {
		wrong = append(wrong, "a replica that did not lead wrote "+strings.Join(r.Strays, ", "))
	}
	if len(r.Left) > 0 {
		wrong = append(wrong, "there remain "+strings.Join(r.Left, ", "))
	}
	return strings.Join(wrong, "; ")
}

// Table returns the outcome for people.
func (r *Result) Table() stage.Table {
	total := r.Report.Total()
	t := stage.Table{Columns: []stage.Column{{Title: "What"}, {Title: "Found"}}}
	add := func(what, format string, args ...any) {
		t.Rows = append(t.Rows, stage.Cells(what, fmt.Sprintf(format, args...)))
	}
	add("requests", "%s in %s, seed %d; p99 %s", stage.Thousands(total.Sent), r.took.Round(time.Second), r.seed, stage.Milliseconds(total.Fast.Percentile(99)))
	add("lost", "%s", lost(total.Lost, r.Report.Reasons))
	add("answered by Pods that had left", "%s, %s of them slow", stage.Thousands(total.Drained), stage.Thousands(total.DrainedSlow))
	add("changes", "%s", stage.Counts(r.Changes))
	if r.before != "" {
		add("upgrades from "+r.before+", and back", "%s", stage.Counts(r.Faults))
		add("Pods on their way out when a process of Usher changed", "%d", r.onTheirWay)
	} else {
		between, others := r.faults()
		add("faults", "%s", stage.Counts(others))
		if len(between) > 0 {
			add("faults of several API servers", "%s", stage.Counts(between))
		}
		add("clocks of the two replicas", "%s", clocks(r.apart))
	}
	add("processes of Usher", "%d", r.Starts)
	if r.before == "" {
		add("Usher's writes, and those of a replica that did not lead", "%s, %d", stage.Thousands(r.Writes), len(r.Strays))
	}
	if l := r.longest; l != nil && r.before == "" {
		early, late := l.early(), l.late()
		add("the leader that led longest", "%s", l.last.Sub(l.began).Round(time.Second))
		add("its memory after a tenth, and at the end", "%s, %s", mebibytes(early.resident), mebibytes(late.resident))
		add("its goroutines after a tenth, and at the end", "%d, %d", early.goroutines, late.goroutines)
	}
	add("objects, finalizers and entries left", "%d", len(r.Left))
	return t
}

// faults counts those that only a highly available control plane has, and the others.
func (r *Result) faults() (between, others map[string]int) {
	between, others = map[string]int{}, maps.Clone(r.Faults)
	for _, k := range haFaults {
		if n := others[k.name]; n > 0 {
			between[k.name] = n
			delete(others, k.name)
		}
	}
	return between, others
}

func clocks(apart time.Duration) string {
	if apart < 0 {
		return fmt.Sprintf("%s apart, the second one's behind", -apart)
	}
	return fmt.Sprintf("%s apart, the second one's ahead", apart)
}

func lost(n int, reasons map[string]int) string {
	if n == 0 {
		return "0"
	}
	return stage.Thousands(n) + ": " + stage.Counts(reasons)
}
