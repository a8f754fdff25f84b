// SPDX-License-Identifier: Apache-2.0

// Command measure measures the CloneSet half of Usher on a real control plane
// with simulated containers, and says whether it is as fast and as frugal as is
// asked of it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/usher-dev/usher/devcluster/internal/measure"
)

// The exit codes.
const (
	exitMissed      = 1
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

var errUsage = errors.New("usage")

// settings are the flags.
type settings struct {
	sizes         []int
	limit         time.Duration
	out, markdown string
	check         bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The second Ctrl-C ends this process at once; its children end with it.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr, os.Getenv))
}

func run(ctx context.Context, args []string, stdout *os.File, stderr io.Writer, getenv func(string) string) int {
	s, err := parse(args, stderr)
	if err == nil {
		err = s.checkFolders()
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		_, _ = fmt.Fprintln(stderr, "measure:", err)
		return exitUsage
	}
	report, err := measure.Run(ctx, measure.Options{Sizes: s.sizes, PhaseLimit: s.limit, Out: stdout, Getenv: getenv})
	if report != nil {
		err = errors.Join(err, s.write(report))
	}
	switch {
	case err != nil && ctx.Err() != nil:
		_, _ = fmt.Fprintln(stderr, "Interrupted: nothing is left running.")
		return exitInterrupted
	case err != nil:
		_, _ = fmt.Fprintln(stderr, "measure:", err)
		return exitFailed
	case s.check && report.Missed():
		_, _ = fmt.Fprintln(stderr, "measure: a requirement is missed: see the lines above")
		return exitMissed
	}
	return 0
}

func parse(args []string, stderr io.Writer) (settings, error) {
	var s settings
	sizes := ""
	flags := flag.NewFlagSet("measure", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&sizes, "sizes", "100,2000", "comma-separated `numbers` of Pods to measure with")
	flags.DurationVar(&s.limit, "phase-limit", measure.DefaultPhaseLimit, "how long each phase may take")
	flags.StringVar(&s.out, "out", "", "`file` that gets the results as JSON")
	flags.StringVar(&s.markdown, "markdown", "", "`file` that gets the tables for a document")
	flags.BoolVar(&s.check, "check", false, "end with exit code 1 if a requirement is missed")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if flags.NArg() > 0 {
		return s, fmt.Errorf("%w: unexpected argument %q: measure takes flags only, see measure --help", errUsage, flags.Arg(0))
	}
	for _, text := range strings.Split(sizes, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil {
			return s, fmt.Errorf("%w: --sizes=%s: %q is no number: give numbers of Pods, such as 100,2000", errUsage, sizes, text)
		}
		s.sizes = append(s.sizes, n)
	}
	return s, nil
}

// checkFolders refuses a file that could not be written: after the measurement
// it would be too late to say so.
func (s settings) checkFolders() error {
	for _, file := range []string{s.out, s.markdown} {
		if file == "" {
			continue
		}
		folder := filepath.Dir(file)
		if info, err := os.Stat(folder); err != nil || !info.IsDir() {
			return fmt.Errorf("%w: %s cannot be written: there is no folder %s: make it, or name another file with --out or --markdown", errUsage, file, folder)
		}
	}
	return nil
}

// write writes the files that were asked for.
func (s settings) write(report *measure.Report) error {
	var errs []error
	if s.out != "" {
		data, err := json.MarshalIndent(report, "", "  ")
		if err == nil {
			err = os.WriteFile(s.out, append(data, '\n'), 0o644)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("--out: %w", err))
		}
	}
	if s.markdown != "" {
		if err := os.WriteFile(s.markdown, []byte(report.Markdown()), 0o644); err != nil {
			errs = append(errs, fmt.Errorf("--markdown: %w", err))
		}
	}
	return errors.Join(errs...)
}
