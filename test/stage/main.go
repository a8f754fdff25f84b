// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/usher-dev/usher/test/cluster/sandbox"
)

// The exit codes.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

// ErrUsage marks errors of the command line.
var ErrUsage = errors.New("usage")

// Main is the frame of a command: it runs until it is done or interrupted, reports the
// error on stderr, and exits. inside is whether the command runs in a sandbox, where the
// command outside reports its interruption.
func Main(name string, inside bool, run func(context.Context) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	if !inside {
		// The second Ctrl-C ends this process immediately; its children end with it.
		context.AfterFunc(ctx, stop)
	}
	err := run(ctx)
	if inside && ctx.Err() != nil {
		os.Exit(exitInterrupted)
	}
	os.Exit(exitCode(ctx, name, err, os.Stderr))
}

func exitCode(ctx context.Context, name string, err error, stderr io.Writer) int {
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
		return 0
	case ctx.Err() != nil:
		_, _ = fmt.Fprintln(stderr, "Interrupted: nothing is left running.")
		return exitInterrupted
	case errors.Is(err, sandbox.ErrFailed):
		return exitFailed // It has been reported.
	}
	_, _ = fmt.Fprintf(stderr, "%s: %v\n", name, err)
	if errors.Is(err, ErrUsage) {
		return exitUsage
	}
	return exitFailed
}

// Parse parses flags; arguments that are no flags are errors.
func Parse(flags *flag.FlagSet, args []string) error {
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return err
	} else if err != nil {
		return fmt.Errorf("%w: %w", ErrUsage, err)
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%w: unexpected argument %q: there are only flags, see -help", ErrUsage, flags.Arg(0))
	}
	return nil
}
