// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// short is a demo with hooks that takes seconds. The tests wait more than they work, so they
// run side by side.
func short(t *testing.T) Options {
	t.Helper()
	t.Parallel()
	out, err := os.Create(filepath.Join(t.TempDir(), "out.txt"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = out.Close()
		if text, err := os.ReadFile(out.Name()); err == nil && t.Failed() {
			t.Logf("what the demo showed:\n%s", text)
		}
	})
	return Options{Out: out, Getenv: os.Getenv, hooksOnly: true, pace: pace{
		rate: 100, cacheDelay: 200 * time.Millisecond, slowMin: 200 * time.Millisecond, slowMax: 500 * time.Millisecond,
		propagation: 1500 * time.Millisecond, outage: 8 * time.Second, bound: 90 * time.Second,
	}}
}

// play plays a demo, which must lose nothing with hooks, and returns what it showed.
func play(t *testing.T, options Options) (Result, string) {
	t.Helper()
	result, err := Run(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	on := result.Runs[0]
	if !on.Hooks || len(on.Took) != len(options.phases()) {
		t.Fatalf("the first run, with hooks %t, has the phases %v", on.Hooks, on.Took)
	}
	for _, o := range on.Outcomes {
		if sent := o.Report.Total().Sent; sent < 300 || o.Charged() != 0 {
			t.Errorf("%s: of %d requests %d were lost: %v", o.name, sent, o.Charged(), o.Report.Reasons)
		}
	}
	if on.DrainedSlow() == 0 {
		t.Error("no slow request was drained: the run has not shown that they are not cut")
	}
	text, err := os.ReadFile(options.Out.Name())
	if err != nil {
		t.Fatal(err)
	}
	return result, string(text)
}

// The whole life of all CloneSets: with hooks nothing is lost, without them something
// is.
func TestHooksLoseNothing(t *testing.T) {
	options := short(t)
	options.hooksOnly, options.Page = false, filepath.Join(t.TempDir(), "demo.html")
	result, shown := play(t, options)
	off := result.Runs[1].sum(func(o Outcome) int { return o.Report.Total().Lost })
	if lost := recorded(t, options.Page); lost[runOn] != 0 || lost[runOff] != off {
		t.Errorf("the page has lost requests %v, want none with hooks, and %d without", lost, off)
	}
	if len(result.Runs) != 2 || result.Runs[1].Hooks || result.Runs[1].Lost() == 0 {
		t.Error("nothing was lost without hooks: the run has not shown what hooks are for")
	}
	for _, want := range []string{
		"PreparingUpdate → Updating  (left etcd", "runs v2", "Updated → Normal", "PreparingDelete", "has left discovery; callers may still use it",
		"is deleted  (left etcd", "is gone", "Draining", " is drained of ", "hooks and guard on: ", "hooks and guard off: ",
	} {
		if !strings.Contains(shown, want) {
			t.Errorf("the output does not say %q", want)
		}
	}
}

// Usher is killed in every phase, and in one of them the registry is stopped as well.
func TestTroubleLosesNothing(t *testing.T) {
	options := short(t)
	options.KillUsher, options.StopRegistry = true, true
	result, shown := play(t, options)
	if kills := strings.Count(shown, "Usher is killed"); kills != len(options.phases()) {
		t.Errorf("Usher was killed %d times in %d phases", kills, len(options.phases()))
	}
	waited := strings.Join(result.Runs[0].Waited, "\n")
	for _, want := range []string{"Pod web-", "inPlaceUpdate", "Registry discovery"} {
		if !strings.Contains(waited, want) {
			t.Errorf("during the outage the objects do not say %q; they say:\n%s", want, waited)
		}
	}
}
