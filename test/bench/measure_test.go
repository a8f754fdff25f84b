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
	return Options{Sizes: []int{fewPods}, Out: out, Getenv: os.Getenv}
}

func nothingLeft(t *testing.T) {
	t.Helper()
	left, err := os.ReadDir(os.Getenv("TMPDIR"))
	if err != nil || len(left) > 0 {
		t.Errorf("files are left: %v, %v", left, err)
	}
}

func TestMeasure(t *testing.T) {
	report, err := Run(t.Context(), options(t))
	if err != nil {
		t.Fatal(err)
	}
	nothingLeft(t)
	if len(report.results) != 12 || len(report.goals) == 0 {
		t.Fatalf("%d results and %d goals", len(report.results), len(report.goals))
	}
	type counts struct{ patches, creates, deletes, out, startup int }
	want := map[string]counts{
		"scale out":      {patches: 1, creates: 1, startup: 1},
		stepInPlace:      {patches: 1, out: 1},
		"in place, hook": {patches: 3, out: 1},
		"recreate":       {patches: 1, creates: 1, deletes: 1, startup: 1},
		"scale in, hook": {patches: 1, deletes: 1},
		"scale in":       {deletes: 1},
	}
	for _, r := range report.results {
		if r.wall <= 0 || r.done < r.wall || r.cpu[apiServer] <= 0 || r.alone != (r.latency != nil) {
			t.Errorf("%s lacks something: %+v", r.name, r)
		}
		if r.alone {
			continue
		}
		if r.peak <= 0 || r.others <= 0 {
			t.Errorf("%s lacks something: %+v", r.name, r)
		}
		w, want := r.own.writes, want[r.name]
		for what, count := range map[string][2]int{
			"patches of Pods": {w["patch pods"], want.patches}, "creates": {w["create pods"], want.creates},
			"deletes": {w["delete pods"], want.deletes}, "times out of service": {len(r.out), want.out}, "startups": {len(r.startup), want.startup},
		} {
			// A write may conflict with a change and be repeated.
			if count[0] < fewPods*count[1] || count[0] > 2*fewPods*count[1] {
				t.Errorf("%s: %d %s, want %d for each of %d Pods; writes %v", r.name, count[0], what, count[1], fewPods, w)
			}
		}
	}
}

func TestRegistries(t *testing.T) {
	o := options(t)
	o.Registries, o.Repair = []string{"etcd"}, 2*time.Second
	report, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	nothingLeft(t)
	for _, g := range report.goals {
		if !g.met {
			t.Errorf("%s: %s", g.what, g.found)
		}
	}
	// How many entries come and leave, by step.
	want := [][2]int{{fewPods, 0}, {}, {fewPods, fewPods}, {0, 2}, {2, 0}, {2, 2}, {1, 1}, {0, fewPods}}
	if len(report.results) != 2+len(want) {
		t.Fatalf("%d results, want %d", len(report.results), 2+len(want))
	}
	for i, r := range report.results[2:] {
		joined, left := want[i][0], want[i][1]
		// An update that was undone when Usher was killed is repeated.
		if r.joined < joined || r.left < left || r.joined > 2*joined || r.left > 2*left {
			t.Errorf("%s: %d entries came and %d left, want %d and %d", r.name, r.joined, r.left, joined, left)
		}
		if r.wall <= 0 || r.peak <= 0 || sum(r.calls) == 0 {
			t.Errorf("%s lacks something: %+v", r.name, r)
		}
	}
}

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
	if report == nil || len(report.results) > 0 {
		t.Errorf("a size is reported that was not finished: %+v", report)
	}
	nothingLeft(t)
	if err := writer.Close(); err != nil {
		t.Error(err)
	}
	<-heard
}
