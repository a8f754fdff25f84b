// SPDX-License-Identifier: Apache-2.0

// Command measure measures Usher on a real control plane with simulated containers, and
// reports whether it is as fast and as frugal as required: the CloneSet half or, with
// -registries, both halves with real registries.
package main

import (
	"cmp"
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

	"github.com/usher-dev/usher/test/bench"
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
	registries    []string
	limit         time.Duration
	out, markdown string
	check         bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The second Ctrl-C ends this process immediately; its children end with it.
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
	report, err := s.measure(ctx, bench.Options{Sizes: s.sizes, Registries: s.registries, PhaseLimit: s.limit, Out: stdout, Getenv: getenv})
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

// result is the result of a measurement.
type result interface {
	Markdown() string
	Missed() bool
}

// measure measures the selected half; the result is nil if there is none.
func (s settings) measure(ctx context.Context, options bench.Options) (result, error) {
	if len(s.registries) == 0 {
		report, err := bench.Run(ctx, options)
		if report == nil {
			return nil, err
		}
		return report, err
	}
	report, err := bench.RunRegistries(ctx, options)
	if report == nil {
		return nil, err
	}
	return report, err
}

func parse(args []string, stderr io.Writer) (settings, error) {
	var s settings
	sizes, registries := "", ""
	flags := flag.NewFlagSet("measure", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&sizes, "sizes", "", "comma-separated `numbers` of Pods to measure with; default 100,2000, with -registries 200,5000")
	flags.StringVar(&registries, "registries", "", "measure the hook operator, with these `kinds` of registries: etcd, consul, or both with a comma")
	flags.DurationVar(&s.limit, "phase-limit", bench.DefaultPhaseLimit, "how long each phase may take")
	flags.StringVar(&s.out, "out", "", "`file` that gets the results as JSON")
	flags.StringVar(&s.markdown, "markdown", "", "`file` that gets the tables for a document")
	flags.BoolVar(&s.check, "check", false, "end with exit code 1 if a requirement is missed")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if flags.NArg() > 0 {
		return s, fmt.Errorf("%w: unexpected argument %q: measure takes flags only, see measure --help", errUsage, flags.Arg(0))
	}
	if registries != "" {
		s.registries = strings.Split(registries, ",")
	}
	for _, text := range strings.Split(cmp.Or(sizes, s.usualSizes()), ",") {
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil {
			return s, fmt.Errorf("%w: --sizes=%s: %q is no number: give numbers of Pods, such as 100,2000", errUsage, sizes, text)
		}
		s.sizes = append(s.sizes, n)
	}
	return s, nil
}

func (s settings) usualSizes() string {
	if len(s.registries) > 0 {
		return "200,5000"
	}
	return "100,2000"
}

// checkFolders refuses a file that cannot be written: after the measurement it would be
// too late.
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

// write writes the requested files.
func (s settings) write(report result) error {
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
