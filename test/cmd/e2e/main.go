// SPDX-License-Identifier: Apache-2.0

// Command e2e plays stories with real containers on a real node while requests flow,
// and reports how many were lost. It needs root on Debian, and changes nothing outside
// its own namespaces.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"syscall"

	"github.com/usher-dev/usher/test/cluster/sandbox"
	"github.com/usher-dev/usher/test/e2e"
	"github.com/usher-dev/usher/test/e2e/stories"
)

// The exit codes.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

func main() {
	place := sandbox.Enter()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	if place == nil {
		// The second Ctrl-C ends this process immediately, and the sandbox with it.
		context.AfterFunc(ctx, stop)
	}
	os.Exit(run(ctx, place, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, place *sandbox.Place, args []string, stdout *os.File, stderr io.Writer) int {
	options, list, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		_, _ = fmt.Fprintln(stderr, "e2e:", err)
		return exitUsage
	case list:
		for _, story := range options.Stories {
			_, _ = fmt.Fprintf(stdout, "%-24s %s\n", story.Name, story.About)
		}
		return 0
	}
	options.Out = stdout
	err = e2e.Run(ctx, place, options)
	switch {
	case err != nil && ctx.Err() != nil:
		if place == nil {
			_, _ = fmt.Fprintln(stderr, "Interrupted: nothing is left running.")
		}
		return exitInterrupted
	case errors.Is(err, sandbox.ErrFailed):
		return exitFailed
	case err != nil:
		_, _ = fmt.Fprintln(stderr, "e2e:", err)
		return exitFailed
	}
	return 0
}

func parse(args []string, stderr io.Writer) (e2e.Options, bool, error) {
	o := e2e.Options{Stories: stories.All(), Args: args}
	list := false
	flags := flag.NewFlagSet("e2e", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Func("run", "play only the stories whose names match this `expression`", func(text string) (err error) {
		o.Run, err = regexp.Compile(text)
		return err
	})
	flags.IntVar(&o.Parallel, "parallel", 0, "how many stories play at once, but for those that play alone (default 6)")
	flags.IntVar(&o.Rate, "rate", 0, "requests per second in each story (default 100)")
	flags.BoolVar(&o.Shell, "shell", false, "open a shell on the node instead of playing stories")
	flags.BoolVar(&o.Report, "report", false, "write the table of all stories into docs/reliability.md")
	flags.BoolVar(&list, "list", false, "list the stories")
	if err := flags.Parse(args); err != nil {
		return o, false, err
	}
	if flags.NArg() > 0 {
		return o, false, fmt.Errorf("unexpected argument %q: e2e takes flags only, see e2e -help", flags.Arg(0))
	}
	return o, list, nil
}
