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
	stage.Main("e2e", place != nil, func(flags *flag.FlagSet) func(context.Context) error { return command(flags, place) })
}

func command(flags *flag.FlagSet, place *sandbox.Place) func(context.Context) error {
	o, list := e2e.Options{Args: os.Args[1:], Out: os.Stdout}, false
	const run = "play only the stories whose names match this `expression`; default all but those that -list marks"
	flags.Func("run", run, func(text string) (err error) {
		o.Run, err = regexp.Compile(text)
		return err
	})
	flags.IntVar(&o.Rate, "rate", 0, "send that many `requests` a second in each story; default 100")
	flags.IntVar(&o.Times, "times", 0, "play each story that `number` of times, one round after another; default 1")
	flags.BoolVar(&o.Shell, "shell", false, "open a shell on the node instead of playing stories")
	flags.BoolVar(&o.Report, "report", false, "write the tables of all stories and the footprint into docs/measurements")
	flags.BoolVar(&list, "list", false, "list the stories")
	return func(ctx context.Context) (err error) {
		if o.Stories, err = e2e.Stories(); err != nil {
			return err
		}
		if !list {
			return e2e.Run(ctx, place, o)
		}
		for _, story := range o.Stories {
			about := story.About
			if story.ByName {
				about += " (only with -run or -report)"
			}
			_, _ = fmt.Fprintf(o.Out, "%-24s %s\n", story.Name, about)
		}
		return nil
	}
}
