// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/cluster/process"
	"github.com/usher-dev/usher/test/cluster/progress"
	"github.com/usher-dev/usher/test/cluster/state"
)

// buildOnly builds the binaries.
func buildOnly(ctx context.Context, args []string, t terminal) error {
	s := settings{}
	if err := parse(newFlags("build", &s), args, "Only build etcd and the Kubernetes binaries.\n\nUsage: devcluster build", t); err != nil {
		return err
	}
	_, missing, err := build.Locate(build.Options{})
	if err != nil {
		return err
	}
	display := progress.Show(progress.ScreenOf(t.err))
	bins, err := build.Ensure(ctx, build.Options{Tell: display.Sink()})
	display.Close()
	if err != nil && ctx.Err() != nil {
		t.warnf("Interrupted: what is compiled is kept, the next build goes on from there.\n")
		return errSilent
	}
	if err != nil {
		return err
	}
	word := "are built"
	if len(missing) == 0 {
		word = "were built before"
	}
	t.sayf("Kubernetes %s and etcd %s %s: %s\n", bins.Kubernetes, bins.Etcd, word, bins.Dir)
	return nil
}

// down stops the cluster.
func down(ctx context.Context, args []string, t terminal) error {
	s := settings{}
	if err := parse(newFlags("down", &s), args, "Stop the cluster.\n\nUsage: devcluster down [FLAGS]", t); err != nil {
		return err
	}
	if err := s.check(); err != nil {
		return err
	}
	found, err := state.Examine(s.dir, process.Table{})
	if err != nil {
		return err
	}
	switch found.Verdict {
	case state.Running:
		return stopSupervisor(ctx, s.dir, found.State, t)
	case state.Stale:
		return clearStale(s.dir, found, t)
	case state.Ended:
		t.sayf("No cluster is running. The last one ended %s: %s\n", since(found.State.Since, time.Now()), found.State.Message)
		return state.Remove(s.dir)
	case state.None:
	}
	t.sayf("No cluster is running.\n")
	return nil
}

// stopSupervisor ends a supervisor with SIGTERM, which lets it end the cluster in
// order, and with SIGKILL if that takes too long: the kernel then ends its children.
func stopSupervisor(ctx context.Context, dir string, s state.State, t terminal) error {
	began := time.Now()
	bounded, cancel := context.WithTimeout(ctx, stopTimeout+5*time.Second)
	defer cancel()
	sig := syscall.SIGTERM
	for (process.Table{}).Alive(s.Supervisor) {
		if sig != 0 {
			if err := syscall.Kill(s.Supervisor.PID, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("stop the supervisor, process %d: %w", s.Supervisor.PID, err)
			}
			sig = 0
		}
		if pause(bounded) == nil {
			continue
		}
		if ctx.Err() != nil {
			t.warnf("Interrupted: the cluster goes on stopping by itself.\n")
			return errSilent
		}
		t.warnf("The supervisor, process %d, does not end: killing it.\n", s.Supervisor.PID)
		sig, bounded = syscall.SIGKILL, context.WithoutCancel(ctx)
	}
	if err := state.Remove(dir); err != nil {
		return err
	}
	t.sayf("The cluster has stopped (%s).\n", progress.Short(time.Since(began)))
	return nil
}

// kubeconfig prints the path of a kubeconfig.
func kubeconfig(_ context.Context, args []string, t terminal) error {
	s := settings{}
	fs := newFlags("kubeconfig", &s)
	fs.StringVar(&s.user, "user", "", "make a kubeconfig for this `name`, who has only the rights that RBAC gives")
	fs.Func("group", "a `group` of the user; may be repeated", func(group string) error {
		s.groups = append(s.groups, group)
		return nil
	})
	const about = "Print the path of the administrator's kubeconfig, or of a new one for another user.\n\n" +
		"Usage: devcluster kubeconfig [FLAGS]\n\nFor a shell: export KUBECONFIG=$(devcluster kubeconfig)"
	if err := parse(fs, args, about, t); err != nil {
		return err
	}
	if err := s.check(); err != nil {
		return err
	}
	if s.user == "" && len(s.groups) > 0 {
		return &usageError{errors.New("--group needs --user")}
	}
	found, err := state.Examine(s.dir, process.Table{})
	if err != nil {
		return err
	}
	if found.Verdict != state.Running || found.State.Phase != state.Ready {
		return errors.New("no cluster is running: start one with up")
	}
	path := found.State.Kubeconfig
	if s.user != "" {
		if path, err = cluster.IssueKubeconfig(s.dir, found.State.Server, s.user, time.Now(), s.groups...); err != nil {
			return err
		}
	}
	t.sayf("%s\n", path)
	return nil
}

// status shows the components.
func status(ctx context.Context, args []string, t terminal) error {
	s := settings{}
	if err := parse(newFlags("status", &s), args, "Show the components with their health. The exit code is 0 when the cluster runs, else 1.\n\n"+
		"Usage: devcluster status [FLAGS]", t); err != nil {
		return err
	}
	if err := s.check(); err != nil {
		return err
	}
	found, err := state.Examine(s.dir, process.Table{})
	if err != nil {
		return err
	}
	now := time.Now()
	switch found.Verdict {
	case state.None:
		t.sayf("Not running. Start it with: %s\n", again("up", ""))
		return errSilent
	case state.Ended:
		t.sayf("Not running. The last cluster ended %s: %s\n", since(found.State.Since, now), found.State.Message)
		return errSilent
	case state.Stale:
		t.sayf("Not running. A cluster was left behind: %s. \"up\" and \"down\" clean that up.\n", found.Reason)
		return errSilent
	case state.Running:
	}
	if found.State.Phase != state.Ready {
		t.sayf("The cluster is %s, since %s. Log: %s\n", found.State.Phase, since(found.State.Since, now), supervisorLog(s.dir))
		return errSilent
	}
	return showRunning(ctx, s.dir, found.State, now, t)
}

// showRunning prints the table of a running cluster.
func showRunning(ctx context.Context, dir string, s state.State, now time.Time, t terminal) error {
	prober, err := cluster.ProberFor(dir)
	if err != nil {
		return err
	}
	t.sayf("Kubernetes %s on %s, running since %s\nKubeconfig: %s\nLogs:       %s\n", s.Version, s.Server, since(s.Since, now), s.Kubeconfig, dir+"/logs")
	if len(s.Nodes) > 0 {
		t.sayf("Nodes:      %s\n", strings.Join(shorten(s.Nodes, 8), ", "))
	}
	t.sayf("\n")
	table := tabwriter.NewWriter(t.out, 0, 0, 3, ' ', 0)
	writef(table, "COMPONENT\tPID\tUPTIME\tPORT\tMEMORY\tHEALTH\n")
	writef(table, "supervisor\t%d\t%s\t-\t%s\tok\n", s.Supervisor.PID, progress.Short(now.Sub(s.Since)), memory(s.Supervisor.PID))
	for _, c := range s.Components {
		writef(table, "%s\t%d\t%s\t%d\t%s\t%s\n", c.Name, c.Process.PID, progress.Short(now.Sub(c.Started)), c.Port,
			memory(c.Process.PID), health(ctx, prober, c))
	}
	return table.Flush()
}

func memory(pid int) string {
	bytes, err := process.Table{}.RSS(pid)
	if err != nil {
		return "-"
	}
	return fmt.Sprintf("%d MiB", bytes>>20)
}

func health(ctx context.Context, prober *cluster.Prober, c cluster.Component) string {
	if !(process.Table{}).Alive(c.Process) {
		return "has ended, see " + c.Log
	}
	if err := prober.Healthy(ctx, c.Name, c.Port); err != nil {
		return firstLine(err.Error())
	}
	return "ok"
}
