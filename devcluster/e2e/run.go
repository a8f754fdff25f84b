// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/usher-dev/usher/devcluster/internal/checkout"
	"github.com/usher-dev/usher/devcluster/internal/sandbox"
)

// exitInterrupted is the code of a program inside that was interrupted.
const exitInterrupted = 130

// dirPrefix and the id of the process begin the name of a run's folder.
const dirPrefix = "usher-e2e-"

// ErrFailed is returned when the program inside has said what is wrong.
var ErrFailed = errors.New("the run has failed")

// Run brings the node up, plays the stories and takes everything down. place is
// what sandbox.Enter returned: the same program is run outside first, and then
// inside. When it returns outside, nothing of the run is left but the logs of one
// that failed.
func Run(ctx context.Context, place *sandbox.Place, options Options) error {
	o, err := options.withDefaults()
	if err != nil {
		return err
	}
	if place != nil {
		return inside(ctx, place, o)
	}
	if err := sandbox.Check(); err != nil {
		return err
	}
	if err := removeStale(os.TempDir()); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", fmt.Sprintf("%s%d-", dirPrefix, os.Getpid()))
	if err != nil {
		return fmt.Errorf("make a folder for the run: %w", err)
	}
	err = outside(ctx, dir, o)
	if err != nil && ctx.Err() == nil {
		err = errors.Join(err, keepLogs(o, dir))
	}
	return errors.Join(err, os.RemoveAll(dir))
}

func outside(ctx context.Context, dir string, o Options) error {
	tell, end := display(o.Out)
	err := prepare(ctx, o, dir, tell)
	end()
	if err != nil {
		return err
	}
	code, err := sandbox.Run(ctx, sandbox.Options{
		Dir: dir, Args: o.Args, Stdin: os.Stdin, Stdout: o.Out, Stderr: os.Stderr,
	})
	if err != nil {
		return fmt.Errorf("take the node down: %w", err)
	}
	_, _ = fmt.Fprintln(o.Out, "Everything is down: no process, mount or control group is left.")
	switch {
	case code == exitInterrupted && ctx.Err() != nil:
		return context.Cause(ctx)
	case code != 0:
		return ErrFailed
	case o.Report:
		return report(dir, o)
	}
	return nil
}

func report(dir string, o Options) error {
	outcomes, err := readOutcomes(dir)
	if err != nil {
		return err
	}
	root, err := checkout.Find(o.Getenv)
	if err != nil {
		return err
	}
	return writeReport(root, outcomes, time.Now())
}

// removeStale removes the folders of runs that were killed.
func removeStale(root string) error {
	found, err := filepath.Glob(filepath.Join(root, dirPrefix+"[0-9]*"))
	if err != nil {
		return err
	}
	for _, dir := range found {
		number, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), dirPrefix), "-")
		pid, err := strconv.Atoi(number)
		if err != nil || !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			continue
		}
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove what a killed run has left: %w", err)
		}
	}
	return nil
}

// logs are what is worth keeping of a run that failed.
func logs() []string {
	return []string{"logs", "node/logs", "node/cluster/logs", "etcd/etcd.log", "varlog/pods", outcomesFile}
}

// keepLogs puts the logs where they outlive the run.
func keepLogs(o Options, dir string) error {
	kept, err := os.MkdirTemp("", dirPrefix+"logs-")
	if err != nil {
		return fmt.Errorf("keep the logs: %w", err)
	}
	for _, name := range logs() {
		err := os.Rename(filepath.Join(dir, name), filepath.Join(kept, strings.ReplaceAll(name, "/", "-")))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("keep the logs: %w", err)
		}
	}
	_, _ = fmt.Fprintf(o.Out, "All logs are kept in %s\n", kept)
	return nil
}
