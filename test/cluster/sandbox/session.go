// SPDX-License-Identifier: Apache-2.0

// Package sandbox runs a program in its own network, mount and process namespaces and
// its own control group, and removes all of them afterwards.
//
// A program that calls Enter first thing in main can run itself inside: Run starts it again as process
// 1 of the namespaces, which prepares the mounts, runs the program with its arguments and reaps
// orphans. Inside there is one network interface, loopback, and no way out. Mounts made there are
// visible only there, /run is empty, and files in /var/lib and /var/log are gone afterwards.
//
// Everything inside ends with process 1, and process 1 ends with the process that
// called Run, however that ends: the kernel ensures both.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Session is a complete run of a program that prepares itself outside a sandbox and
// then runs inside.
type Session struct {
	// Prefix starts the names of temporary directories, for instance "usher-e2e-".
	Prefix string
	// Prepare puts files into dir that are not available inside, where there is no network.
	Prepare func(ctx context.Context, dir string) error
	// Logs are paths below the directory that are kept if the run has failed.
	Logs []string
	// Done is called with the directory after a successful run.
	Done func(dir string) error
	// Args are the arguments of the program inside; Out receives its output and the
	// session's.
	Args []string
	Out  *os.File
}

// ErrFailed means that the program inside has reported the failure.
var ErrFailed = errors.New("the run has failed")

// Run checks the machine, prepares, runs the program inside and removes everything.
// Only the logs of a failed run are left.
func (s Session) Run(ctx context.Context) error {
	if err := check(); err != nil {
		return err
	}
	if err := removeStale(os.TempDir(), s.Prefix); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", fmt.Sprintf("%s%d-", s.Prefix, os.Getpid()))
	if err != nil {
		return fmt.Errorf("make a folder for the run: %w", err)
	}
	err = s.run(ctx, dir)
	if err != nil && ctx.Err() == nil {
		err = errors.Join(err, s.keepLogs(dir))
	}
	return errors.Join(err, os.RemoveAll(dir))
}

func (s Session) run(ctx context.Context, dir string) error {
	if err := s.Prepare(ctx, dir); err != nil {
		return err
	}
	code, err := s.runInside(ctx, dir)
	if err != nil {
		return fmt.Errorf("take the node down: %w", err)
	}
	_, _ = fmt.Fprintln(s.Out, "Everything is down: no process, mount or control group is left.")
	switch {
	case code != 0 && ctx.Err() != nil:
		return context.Cause(ctx)
	case code != 0:
		return ErrFailed
	}
	return s.Done(dir)
}

// removeStale removes the directories of killed runs.
func removeStale(root, prefix string) error {
	found, err := filepath.Glob(filepath.Join(root, prefix+"[0-9]*"))
	if err != nil {
		return err
	}
	for _, dir := range found {
		number, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), prefix), "-")
		pid, err := strconv.Atoi(number)
		if err != nil || alive(pid) {
			continue
		}
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove what a killed run has left: %w", err)
		}
	}
	return nil
}

// keepLogs moves the logs to where they outlive the run.
func (s Session) keepLogs(dir string) error {
	kept, err := os.MkdirTemp("", s.Prefix+"logs-")
	if err != nil {
		return fmt.Errorf("keep the logs: %w", err)
	}
	for _, name := range s.Logs {
		err := os.Rename(filepath.Join(dir, name), filepath.Join(kept, strings.ReplaceAll(name, "/", "-")))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("keep the logs: %w", err)
		}
	}
	_, _ = fmt.Fprintf(s.Out, "All logs are kept in %s\n", kept)
	return nil
}
