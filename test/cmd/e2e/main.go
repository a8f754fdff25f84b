// SPDX-License-Identifier: Apache-2.0

// Command e2e plays stories with real containers on a real node while requests flow,
// and reports how many were lost. It needs root on Debian, and changes nothing outside
// its own namespaces.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"regexp"

	"github.com/usher-dev/usher/test/cluster/sandbox"
	"github.com/usher-dev/usher/test/e2e"
	"github.com/usher-dev/usher/test/stage"
)

func main() {
	place := sandbox.Enter()
	stage.Main("e2e", place != nil, func(ctx context.Context) error { return run(ctx, place, os.Args[1:]) })
}

func run(ctx context.Context, place *sandbox.Place, args []string) error {
	stories, err := e2e.Stories()
	if err != nil {
		return err
	}
	o, list := e2e.Options{Stories: stories, Args: args, Out: os.Stdout}, false
	flags := flag.NewFlagSet("e2e", flag.ContinueOnError)
	flags.Func("run", "play only the stories whose names match this `expression`", func(text string) (err error) {
		o.Run, err = regexp.Compile(text)
		return err
	})
	flags.BoolVar(&o.Shell, "shell", false, "open a shell on the node instead of playing stories")
	flags.BoolVar(&o.Report, "report", false, "write the tables of all stories into docs/reliability.md and docs/performance.md")
	flags.BoolVar(&list, "list", false, "list the stories")
	if err := stage.Parse(flags, args); err != nil {
		return err
	}
	if list {
		for _, story := range o.Stories {
			_, _ = fmt.Fprintf(o.Out, "%-24s %s\n", story.Name, story.About)
		}
		return nil
	}
	return e2e.Run(ctx, place, o)
}
