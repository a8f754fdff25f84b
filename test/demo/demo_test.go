// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// short returns options for a demonstration of half a minute. The time allowed to
// callers and slow requests is shorter than propagation, with a margin for a busy
// machine.
func short(t *testing.T) Options {
	t.Helper()
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
	return Options{
		Out: out, Hooks: HooksOn, Rate: 100, Seed: 1,
		CacheDelay: 200 * time.Millisecond, SlowMin: 200 * time.Millisecond, SlowMax: 500 * time.Millisecond,
		Propagation: 1500 * time.Millisecond,
	}
}

func play(t *testing.T, options Options) Result {
	t.Helper()
	result, err := Run(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	if result.On == nil {
		t.Fatal("there is no run with hooks")
	}
	if result.Failed() || result.On.Lost() != 0 {
		t.Errorf("%d requests were lost with hooks", result.On.Lost())
	}
	for _, o := range result.On.Outcomes {
		if sent := o.Report.Total().Sent; sent < 300 {
			t.Errorf("%s: only %d requests were sent", o.Name, sent)
		}
		if o.Held() != 0 {
			t.Errorf("%s: %d requests were lost: %v", o.Name, o.Held(), o.Report.Reasons)
		}
	}
	if result.On.DrainedSlow() == 0 {
		t.Error("no slow request was drained: the run has not shown that they are not cut")
	}
	return result
}

// The whole life of all CloneSets: with hooks nothing is lost, without them something
// is.
func TestHooksLoseNothing(t *testing.T) {
	options := short(t)
	options.Hooks = HooksBoth
	result := play(t, options)
	if len(result.On.Phases) != len(phaseNames()) {
		t.Errorf("phases %v, want all", result.On.Phases)
	}
	if result.Off == nil || result.Off.Lost() == 0 {
		t.Error("nothing was lost without hooks: the run has not shown what hooks are for")
	}
	text, err := os.ReadFile(options.Out.Name())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"PreparingUpdate → Updating  (left etcd", "runs v2", "Updated → Normal", "PreparingDelete", "hooks on: ", "hooks off: ",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the output does not say %q", want)
		}
	}
}

func TestKillingUsherLosesNothing(t *testing.T) {
	options := short(t)
	options.KillUsher = true
	play(t, options)
	text, err := os.ReadFile(options.Out.Name())
	if err != nil {
		t.Fatal(err)
	}
	if kills, phases := strings.Count(string(text), "Usher is killed"), len(phaseNames()); kills != phases {
		t.Errorf("Usher was killed %d times in %d phases", kills, phases)
	}
}

// While the registry is away, no Pod is updated or deleted (Run fails if one is), the
// objects report what they wait for, and the rollout finishes afterwards.
func TestStoppingTheRegistryLosesNothing(t *testing.T) {
	options := short(t)
	options.StopRegistry, options.Outage = true, 8*time.Second
	options.Phases = []string{phaseInPlace, phaseRecreate}
	result := play(t, options)
	waited := strings.Join(result.On.Waited, "\n")
	for _, want := range []string{"Pod web-", "inPlaceUpdate", "Registry discovery"} {
		if !strings.Contains(waited, want) {
			t.Errorf("during the outage the objects do not say %q; they say:\n%s", want, waited)
		}
	}
}

// An error for what does not happen in time includes the state at that moment.
func TestAMissedBoundTellsTheState(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	options := short(t)
	options.Propagation, options.Bound = time.Minute, 5*time.Second
	options.Phases = []string{phaseInPlace}
	_, err := Run(t.Context(), options)
	var late *WaitError
	if !errors.As(err, &late) {
		t.Fatalf("Run: %v, want a *WaitError", err)
	}
	for what, said := range map[string]string{
		"CloneSet web to have 2 Pods, all updated": late.What,
		"PreparingUpdate":                          strings.Join(late.State, "\n"),
		"waits for the inPlaceUpdate hook":         strings.Join(late.Waiting, "\n"),
		"Wait begins":                              strings.Join(late.Log, "\n"),
		`phase "in-place update"`:                  err.Error(),
		"All logs are kept in " + os.TempDir():     err.Error(),
	} {
		if !strings.Contains(said, what) {
			t.Errorf("the error does not say %q but\n%s", what, said)
		}
	}
	if len(children(t)) > 0 {
		t.Errorf("child processes were left behind: %v", children(t))
	}
}

// An interruption ends everything and leaves no file.
func TestInterruptionLeavesNothing(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	options := short(t)
	why := errors.New("Ctrl-C")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	go func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if text, err := os.ReadFile(options.Out.Name()); err == nil && strings.Contains(string(text), "waits for callers") {
				cancel(why)
			}
		}
	}()
	if _, err := Run(ctx, options); !errors.Is(err, why) {
		t.Errorf("Run: %v, want %v", err, why)
	}
	left, err := os.ReadDir(os.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range left {
		t.Errorf("%s was left behind", entry.Name())
	}
	for _, child := range children(t) {
		t.Errorf("a child process was left behind: %s", child)
	}
}

// children lists the processes that this one has started and that still run.
func children(t *testing.T) []string {
	t.Helper()
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil || len(lists) == 0 {
		t.Fatalf("cannot list child processes: %v", err)
	}
	found := []string{}
	for _, list := range lists {
		pids, err := os.ReadFile(list)
		if err != nil {
			continue // the thread has ended
		}
		for _, pid := range strings.Fields(string(pids)) {
			command, err := os.ReadFile("/proc/" + pid + "/cmdline")
			if err == nil {
				found = append(found, pid+" "+strings.ReplaceAll(string(command), "\x00", " "))
			}
		}
	}
	return found
}
