// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/usher-dev/usher/test/cluster/process"
	"github.com/usher-dev/usher/test/cluster/progress"
	"github.com/usher-dev/usher/test/cluster/state"
)

// superviseCmd is the hidden command that "up" runs in the background.
const superviseCmd = "run"

// eventsFD is the supervisor's descriptor for the pipe to its "up".
const eventsFD = 3

func supervisorLog(dir string) string { return filepath.Join(dir, "logs", "supervisor.log") }

// superviseCommand is the supervisor's side.
func superviseCommand(ctx context.Context, args []string, t terminal) error {
	s := settings{}
	fs := newFlags(superviseCmd, &s)
	clusterFlags(fs, &s)
	fs.IntVar(&s.events, "events", 0, "the `descriptor` for messages to the parent")
	if err := parse(fs, args, "Keep a cluster: used by devcluster up.", t); err != nil {
		return err
	}
	if err := s.check(); err != nil {
		return err
	}
	logger := log.New(t.err, "", log.LstdFlags)
	// The components must not inherit the pipe: up would never see its end.
	syscall.CloseOnExec(s.events)
	pipe := os.NewFile(uintptr(s.events), "events")
	report := &reporter{out: pipe}
	err := (&supervisor{settings: s, logger: logger,
		tell: func(e progress.Event) {
			if e.State != progress.Waiting {
				logger.Println(strings.TrimSpace(strings.Join([]string{e.Task, string(e.State), e.Detail}, " ")))
			}
			report.event(e)
		},
		ready: func(now state.State) {
			logger.Printf("ready: %s", now.Server)
			report.send(message{Ready: &now})
		},
	}).run(ctx)
	if err != nil {
		report.send(message{Error: err.Error()})
		return err
	}
	logger.Println("stopped")
	return nil
}

// background is a supervisor as seen by the "up" that started it.
type background struct {
	process  *os.Process
	log      string
	messages <-chan message
	pipe     *os.File
}

// startBackground runs this program again as a supervisor, detached from the terminal,
// which it outlives.
func startBackground(s settings) (*background, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program's file: %w", err)
	}
	logPath := supervisorLog(s.dir)
	logFile, err := freshLog(logPath)
	if err != nil {
		return nil, err
	}
	defer func() { _ = logFile.Close() }()
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	defer func() { _ = writer.Close() }()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer func() { _ = null.Close() }()
	proc, err := os.StartProcess(path, supervisorArgs(path, s), &os.ProcAttr{
		Files: []*os.File{null, logFile, logFile, writer},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the supervisor: %w", err), reader.Close())
	}
	return &background{process: proc, log: logPath, messages: receive(reader), pipe: reader}, nil
}

func supervisorArgs(path string, s settings) []string {
	return []string{
		path, superviseCmd, "--dir=" + s.dir, "--port=" + strconv.Itoa(s.port), "--nodes=" + strconv.Itoa(s.nodes),
		"--simulate=" + strconv.FormatBool(s.simulate), "--programs=" + s.programs, "--events=" + strconv.Itoa(eventsFD),
	}
}

// freshLog opens the supervisor's log and keeps the previous run's.
func freshLog(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make the log's folder: %w", err)
	}
	err := os.Rename(path, strings.TrimSuffix(path, ".log")+".previous.log")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("keep the old log: %w", err)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("make the supervisor's log: %w", err)
	}
	return file, nil
}

// wait shows the progress until the cluster is ready. When ctx ends, it stops the
// supervisor and everything that was started.
func (b *background) wait(ctx context.Context, tell progress.Sink) (state.State, error) {
	defer func() { _ = b.pipe.Close() }()
	for {
		select {
		case <-ctx.Done():
			return state.State{}, errors.Join(errInterrupted, b.stop())
		case m, open := <-b.messages:
			switch {
			case !open:
				return state.State{}, fmt.Errorf("the supervisor ended without a word; its last lines were:\n    %s\n  whole log: %s",
					strings.Join(process.TailFile(b.log, 12), "\n    "), b.log)
			case m.Error != "":
				return state.State{}, errors.Join(errors.New(m.Error), b.stop())
			case m.Ready != nil:
				return *m.Ready, nil
			case m.Event != nil:
				tell.Tell(*m.Event)
			}
		}
	}
}

// errInterrupted means that the user has stopped the start.
var errInterrupted = errors.New("interrupted")

// stop ends the supervisor and waits until it is gone.
func (b *background) stop() error {
	if err := b.process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop the supervisor (process %d): %w", b.process.Pid, err)
	}
	// Keep reading its messages, or it would hang on a full pipe.
	go func() {
		for range b.messages {
		}
	}()
	timer := time.AfterFunc(stopTimeout+5*time.Second, func() { _ = b.process.Kill() })
	defer timer.Stop()
	if _, err := b.process.Wait(); err != nil {
		return fmt.Errorf("wait for the supervisor (process %d): %w", b.process.Pid, err)
	}
	return nil
}
