// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/usher-dev/usher/test/cluster/sandbox"
)

// The exit codes.
const exitFailed, exitUsage, exitInterrupted = 1, 2, 130

// ErrUsage marks errors of the command line.
var ErrUsage = errors.New("usage")

// Main runs a command: a function that declares its flags and returns what to run until it is done or
// interrupted. Main reports the error on stderr, and exits. inside means that the command runs in a
// sandbox; then the command outside reports an interruption.
func Main(name string, inside bool, command func(*flag.FlagSet) func(context.Context) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	if !inside {
		// The second Ctrl-C ends this process immediately; its children end with it.
		context.AfterFunc(ctx, stop)
	}
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	run := command(flags)
	err := parse(flags)
	if err == nil {
		err = run(ctx)
	}
	code := 0
	switch {
	case ctx.Err() != nil && err != nil:
		code = exitInterrupted
		if !inside {
			_, _ = fmt.Fprintln(os.Stderr, "Interrupted: nothing is left running.")
		}
	case errors.Is(err, sandbox.ErrFailed):
		code = exitFailed // It has been reported.
	case err != nil && !errors.Is(err, flag.ErrHelp):
		code = exitFailed
		if errors.Is(err, ErrUsage) {
			code = exitUsage
		}
		_, _ = fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
	}
	os.Exit(code)
}

// parse parses the flags; arguments that are no flags are errors.
func parse(flags *flag.FlagSet) error {
	if err := flags.Parse(os.Args[1:]); errors.Is(err, flag.ErrHelp) {
		return err
	} else if err != nil {
		return fmt.Errorf("%w: %w", ErrUsage, err)
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%w: unexpected argument %q: there are only flags, see -help", ErrUsage, flags.Arg(0))
	}
	return nil
}
