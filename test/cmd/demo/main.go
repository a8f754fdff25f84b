// SPDX-License-Identifier: Apache-2.0

// Command demo plays a rollout through real hooks on a real control plane while
// requests flow, and reports how many were lost: with the hooks, and without.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/usher-dev/usher/test/demo"
	"github.com/usher-dev/usher/test/stage"
)

func main() { stage.Main("demo", false, command) }

func command(flags *flag.FlagSet) func(context.Context) error {
	o := demo.Options{Out: os.Stdout}
	flags.BoolVar(&o.KillUsher, "kill-usher", false, "kill Usher (SIGKILL) in the middle of every phase and start it again")
	flags.BoolVar(&o.StopRegistry, "stop-registry", false, "stop the registry for 20 s in the middle of the in-place update")
	flags.StringVar(&o.Page, "page", "demo.html", "write the whole run to this `file` as one page")
	return func(ctx context.Context) error {
		result, err := demo.Run(ctx, o)
		if err == nil && result.Lost() > 0 {
			err = fmt.Errorf("%d requests were lost although the hooks were on", result.Lost())
		}
		return err
	}
}
