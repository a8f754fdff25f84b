// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/cluster/process"
	"github.com/usher-dev/usher/test/cluster/progress"
	"github.com/usher-dev/usher/test/cluster/state"
)

// pollEvery is how often to check the state of another process.
const pollEvery = 100 * time.Millisecond

const upAbout = `Start the cluster in the background and wait until it is ready.
The first time, this builds Kubernetes from source, which takes some minutes.

Usage: devcluster up [FLAGS]`

// up starts the cluster.
func up(ctx context.Context, args []string, t terminal) error {
	s := settings{}
	fs := newFlags("up", &s)
	clusterFlags(fs, &s)
	fs.BoolVar(&s.foreground, "foreground", false, "stay in the foreground until Ctrl-C")
	if err := parse(fs, args, upAbout, t); err != nil {
		return err
	}
	if err := s.check(); err != nil {
		return err
	}
	began := time.Now()
	// 1. What already exists.
	running, err := clearGround(ctx, s.dir, t)
	if err != nil {
		return err
	}
	if running != nil {
		t.sayf("The cluster is running already, since %s.%s\n", since(running.Since, time.Now()), otherPort(s.port, running))
		t.sayf("%s", nextSteps(*running, s))
		return nil
	}
	if err := cluster.ClaimDir(s.dir); err != nil {
		return err
	}
	if err := cluster.CheckPort(ctx, s.port); err != nil {
		return err
	}
	// 2. The binaries, then the cluster.
	ready, err := launch(ctx, s, t)
	if errors.Is(err, errInterrupted) {
		t.warnf("Interrupted: nothing is left running. %s\n", resume())
		return errSilent
	}
	if err != nil || s.foreground {
		return err
	}
	t.sayf("The cluster is ready after %s: Kubernetes %s on %s.\n%s",
		progress.Short(time.Since(began)), ready.Version, ready.Server, nextSteps(*ready, s))
	return nil
}

// resume describes what an interruption has cost.
func resume() string {
	if _, missing, err := build.Locate(build.Options{}); err == nil && len(missing) > 0 {
		return "What is compiled is kept: the next \"up\" goes on from there."
	}
	return "The next \"up\" starts anew."
}

// launch builds what is missing and starts the cluster, with live progress.
func launch(ctx context.Context, s settings, t terminal) (*state.State, error) {
	display := progress.Show(progress.ScreenOf(t.err))
	closeDisplay := sync.OnceFunc(display.Close)
	defer closeDisplay()
	if _, err := build.Ensure(ctx, build.Options{Tell: display.Sink()}); err != nil {
		return nil, interruptedOr(ctx, err)
	}
	if s.foreground {
		return nil, foreground(ctx, s, t, display.Sink(), closeDisplay)
	}
	supervisor, err := startBackground(s)
	if err != nil {
		return nil, err
	}
	ready, err := supervisor.wait(ctx, display.Sink())
	if err != nil {
		return nil, err
	}
	return &ready, nil
}

// foreground runs the cluster in this process until Ctrl-C.
func foreground(ctx context.Context, s settings, t terminal, tell progress.Sink, shown func()) error {
	isReady := false
	err := (&supervisor{settings: s, tell: tell, logger: log.New(t.err, "", log.LstdFlags), ready: func(now state.State) {
		isReady = true
		shown()
		t.sayf("The cluster is ready: Kubernetes %s on %s. Ctrl-C stops it.\n%s", now.Version, now.Server, nextSteps(now, s))
	}}).run(ctx)
	if !isReady {
		return interruptedOr(ctx, err)
	}
	if err == nil {
		t.sayf("The cluster has stopped.\n")
	}
	return err
}

// interruptedOr distinguishes an interruption from a failure.
func interruptedOr(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errInterrupted
	}
	return err
}

// clearGround prepares the directory for a start: it returns the state of a cluster
// that already runs, waits for one that another "up" is starting or "down" is stopping,
// and removes what a crash has left.
func clearGround(ctx context.Context, dir string, t terminal) (*state.State, error) {
	told := state.Phase("")
	for {
		found, err := state.Examine(dir, process.Table{})
		if err != nil {
			return nil, err
		}
		switch found.Verdict {
		case state.None:
			return nil, nil
		case state.Ended:
			t.warnf("The last cluster ended %s: %s\n", since(found.State.Since, time.Now()), firstLine(found.State.Message))
			return nil, state.Remove(dir)
		case state.Stale:
			return nil, clearStale(dir, found, t)
		case state.Running:
		}
		if found.State.Phase == state.Ready {
			return &found.State, nil
		}
		if told != found.State.Phase {
			told = found.State.Phase
			t.warnf("The cluster is %s (process %d): waiting for that.\n", told, found.State.Supervisor.PID)
		}
		if err := pause(ctx); err != nil {
			return nil, err
		}
	}
}

// clearStale removes what a supervisor left that ended without reporting it. Its
// components ended with it; one that did not is ended here.
func clearStale(dir string, found state.Finding, t terminal) error {
	t.warnf("A cluster was left behind in %s: %s. Cleaning up.\n", dir, found.Reason)
	for _, c := range state.Survivors(found.State, process.Table{}) {
		t.warnf("Ending %s, process %d, which outlived it.\n", c.Name, c.Process.PID)
		if err := syscall.Kill(c.Process.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("end %s, process %d: %w", c.Name, c.Process.PID, err)
		}
	}
	return state.Remove(dir)
}

func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return errInterrupted
	case <-time.After(pollEvery):
		return nil
	}
}

// otherPort warns that a flag has no effect on a running cluster.
func otherPort(port int, running *state.State) string {
	if port == 0 || strings.HasSuffix(running.Server, fmt.Sprintf(":%d", port)) {
		return ""
	}
	return fmt.Sprintf(" Its port is not %d: run down first to change that.", port)
}

// nextSteps describes what a newcomer can do now.
func nextSteps(now state.State, s settings) string {
	flags := ""
	if s.dirFlag {
		flags = "--dir " + s.dir
	}
	try := ""
	if len(now.Nodes) > 0 && s.programs == "" {
		try = "\n            kubectl create deployment web --image=web:v1 --replicas=3"
	}
	return fmt.Sprintf(`
Use it:     export KUBECONFIG=%s
            kubectl get nodes%s
Look at it: %s
Stop it:    %s
`, now.Kubeconfig, try, again("status", flags), again("down", flags))
}

// again is how the user calls another command of this program. The file built by "go
// run" is gone when that ends, and a user of make calls make again.
func again(command, flags string) string {
	source, err := build.FindSource(".", os.Getenv)
	line := os.Args[0] + " " + command + " " + flags
	switch {
	case err != nil || !strings.Contains(os.Args[0], string(filepath.Separator)+"go-build"):
	case os.Getenv("MAKELEVEL") == "":
		line = "go -C " + source.Gear() + " run ./cmd/devcluster " + command + " " + flags
	case flags == "":
		line = "make " + command
	default:
		line = "make " + command + " ARGS='" + flags + "'"
	}
	return strings.TrimSpace(line)
}

// since formats a past time as a person would.
func since(at, now time.Time) string {
	return fmt.Sprintf("%s (%s ago)", at.Format(time.TimeOnly), progress.Short(now.Sub(at)))
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}
