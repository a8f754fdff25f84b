// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const fewPods = 10

func options(t *testing.T) Options {
	t.Helper()
	t.Setenv("TMPDIR", t.TempDir())
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = out.Close() })
	return Options{Sizes: []int{fewPods}, PhaseLimit: time.Minute, Out: out, Getenv: os.Getenv}
}

func nothingLeft(t *testing.T) {
	t.Helper()
	left, err := os.ReadDir(os.Getenv("TMPDIR"))
	if err != nil || len(left) > 0 {
		t.Errorf("files are left: %v, %v", left, err)
	}
}

// All phases run on a real control plane, and the machine-independent numbers are
// correct.
func TestMeasure(t *testing.T) {
	report, err := Run(t.Context(), options(t))
	if err != nil {
		t.Fatal(err)
	}
	nothingLeft(t)
	if len(report.Sizes) != 1 || len(report.Sizes[0].Ceilings) != 6 || len(report.Sizes[0].Phases) != 6 || len(report.Verdicts) == 0 {
		t.Fatalf("the report lacks something: %+v", report)
	}
	for name, want := range map[string]expected{
		phaseScaleOut:    {patches: 1, creates: 1, joins: 1},
		phaseInPlace:     {patches: 1, outs: 1},
		phaseInPlaceHook: {patches: 3, hooks: 2, outs: 1},
		"recreate":       {patches: 1, creates: 1, deletes: 1, joins: 1},
		phaseScaleInHook: {patches: 1, deletes: 1, hooks: 1},
		phaseScaleIn:     {deletes: 1},
	} {
		p := report.Sizes[0].phase(name)
		if p == nil {
			t.Fatalf("there is no %s", name)
		}
		want.check(t, p)
	}
}

// expected are counts per Pod.
type expected struct{ patches, creates, deletes, hooks, outs, joins int }

func (e expected) check(t *testing.T, p *Phase) {
	t.Helper()
	if p.Seconds <= 0 || p.CPU.APIServer <= 0 || p.PeakMiB <= 0 || p.OtherWrites <= 0 {
		t.Errorf("%s lacks something: %+v", p.Name, *p)
	}
	w := p.Usher.Writes
	for what, counts := range map[string][2]int{
		"patches of Pods": {w["patch pods"], e.patches}, "creates": {w["create pods"], e.creates},
		"deletes": {w["delete pods"], e.deletes}, "hooks": {p.HookAnswers, e.hooks},
		"times out of service": {count(p.OutOfService), e.outs}, "startups": {count(p.Startup), e.joins},
	} {
		// A write may conflict with a change and be repeated.
		if counts[0] < fewPods*counts[1] || counts[0] > 2*fewPods*counts[1] {
			t.Errorf("%s: %d %s, want %d for each of %d Pods; writes %v", p.Name, counts[0], what, counts[1], fewPods, w)
		}
	}
}

func count(d *Distribution) int {
	if d == nil {
		return 0
	}
	return d.Count
}

// Ctrl-C in the middle leaves nothing behind.
func TestInterrupted(t *testing.T) {
	o := options(t)
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	o.Out = writer
	stop := errors.New("Ctrl-C")
	ctx, cancel := context.WithCancelCause(t.Context())
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		for lines := bufio.NewScanner(reader); lines.Scan(); {
			if strings.HasSuffix(lines.Text(), "10 Pods: in place") {
				cancel(stop)
			}
		}
	}()
	report, err := Run(ctx, o)
	if !errors.Is(err, stop) {
		t.Errorf("Run: %v, want the cause", err)
	}
	if report == nil || len(report.Sizes) > 0 {
		t.Errorf("a size is reported that was not finished: %+v", report)
	}
	nothingLeft(t)
	if err := writer.Close(); err != nil {
		t.Error(err)
	}
	<-heard
}
