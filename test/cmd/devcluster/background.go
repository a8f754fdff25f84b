// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/cluster/process"
)

// pollEvery is how often to check the state of another process.
const pollEvery = 50 * time.Millisecond

// logLines is how much of its log a failed start shows.
const logLines = 20

var (
	errNotRunning  = errors.New("no cluster is running")
	errInterrupted = errors.New("interrupted: nothing is left running")
)

func logFile(dir string) string { return filepath.Join(dir, "logs", "devcluster.log") }

// up starts the cluster in the background.
func up(ctx context.Context, s settings) error {
	if pid, err := cluster.Running(s.dir); err != nil || pid != 0 {
		fmt.Println("A cluster is already running.")
		return errors.Join(err, status(ctx, s))
	}
	if err := cluster.ClaimDir(s.dir); err != nil {
		return err
	}
	if err := os.Remove(readyFile(s.dir)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	// Built here, because this process shows the progress.
	if _, err := build.Ensure(ctx, build.Options{}); err != nil {
		return err
	}
	child, err := startBackground(s)
	if err != nil {
		return err
	}
	return await(ctx, s, child)
}

// startBackground runs this program again, detached from the terminal, which it outlives.
func startBackground(s settings) (*exec.Cmd, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(logFile(s.dir)), 0o755); err != nil {
		return nil, err
	}
	log, err := os.Create(logFile(s.dir))
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()                                                 // the child has its own descriptor
	child := exec.Command(path, "run", "--dir="+s.dir, "--port="+strconv.Itoa(s.port), //nolint:noctx // it outlives this process
		"--nodes="+strconv.Itoa(s.nodes), "--simulate="+strconv.FormatBool(s.simulate))
	child.Stdout, child.Stderr = log, log
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return child, child.Start()
}

// await waits until the cluster is ready. When ctx ends, it stops everything that was
// started.
func await(ctx context.Context, s settings, child *exec.Cmd) error {
	ended := make(chan struct{})
	go func() {
		_ = child.Wait() // its log says why it ended
		close(ended)
	}()
	for {
		select {
		case <-ctx.Done():
			if err := child.Process.Signal(syscall.SIGTERM); err == nil {
				<-ended
			}
			return errInterrupted
		case <-ended:
			return fmt.Errorf("the cluster has not started; the end of %s:\n%s", logFile(s.dir),
				strings.Join(process.TailFile(logFile(s.dir), logLines), "\n"))
		case <-time.After(pollEvery):
		}
		if _, err := os.Stat(readyFile(s.dir)); err == nil {
			return status(ctx, s)
		}
	}
}

// status describes the running cluster.
func status(_ context.Context, s settings) error {
	pid, err := cluster.Running(s.dir)
	if err != nil {
		return err
	}
	if pid == 0 {
		return errNotRunning
	}
	ready, err := os.ReadFile(readyFile(s.dir))
	if err != nil {
		return fmt.Errorf("process %d is starting or stopping the cluster, see %s", pid, logFile(s.dir))
	}
	fmt.Printf("%sLogs:     %s\n", ready, filepath.Dir(logFile(s.dir)))
	return nil
}

// down stops the cluster with SIGTERM and, if that takes too long, with SIGKILL: the
// kernel then ends all of its processes.
func down(ctx context.Context, s settings) error {
	stopped, err := cluster.Running(s.dir)
	if stopped == 0 {
		fmt.Println("No cluster is running.")
		return err
	}
	if err := syscall.Kill(stopped, syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop process %d: %w", stopped, err)
	}
	late := time.After(2 * stopTimeout)
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx) // the cluster goes on stopping
		case <-late:
			return errors.Join(fmt.Errorf("process %d did not stop in time, killing it", stopped), syscall.Kill(stopped, syscall.SIGKILL))
		case <-time.After(pollEvery):
		}
		if pid, err := cluster.Running(s.dir); pid != stopped {
			fmt.Println("The cluster has stopped.")
			return err
		}
	}
}
