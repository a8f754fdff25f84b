// SPDX-License-Identifier: Apache-2.0

// Command demo plays a rollout through real hooks on a real control plane while
// requests flow, and reports how many were lost: with the hooks, and without.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/usher-dev/usher/test/cluster/sandbox"
	"github.com/usher-dev/usher/test/demo"
)

// The exit codes.
const (
	exitLost        = 1
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

// nodeReal is the value of --node.
const nodeReal = "real"

var errUsage = errors.New("usage")

func main() {
	place := sandbox.Enter()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The second Ctrl-C ends this process immediately; its children end with it.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, place, os.Args[1:], os.Stdout, os.Stderr, os.Getenv))
}

func run(ctx context.Context, place *sandbox.Place, args []string, stdout *os.File, stderr io.Writer, getenv func(string) string) int {
	options, real, err := parse(args, stderr, getenv)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		_, _ = fmt.Fprintln(stderr, "demo:", err)
		return exitUsage
	}
	options.Out, options.Place = stdout, place
	var result demo.Result
	if real && place == nil {
		err = demo.RunReal(ctx, options, args)
	} else {
		result, err = demo.Run(ctx, options)
	}
	switch {
	case errors.Is(err, sandbox.ErrFailed):
		return exitFailed
	case err != nil && ctx.Err() != nil:
		_, _ = fmt.Fprintln(stderr, "Interrupted: nothing is left running.")
		return exitInterrupted
	case err != nil:
		_, _ = fmt.Fprintln(stderr, "demo:", err)
		return exitFailed
	case result.Failed():
		_, _ = fmt.Fprintf(stderr, "demo: %d requests were lost although the hooks were on\n", result.On.Lost())
		return exitLost
	}
	return 0
}

// parse parses the flags. The environment's KEEP=1, from "make demo KEEP=1", means
// --keep, and NODE=real means --node=real.
func parse(args []string, stderr io.Writer, getenv func(string) string) (o demo.Options, real bool, err error) {
	hooks, phases, node := "", "", getenv("NODE")
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&o.Rate, "rate", 500, "requests per second to each CloneSet")
	flags.StringVar(&hooks, "hooks", string(demo.HooksBoth), "run with hooks `on`, off or both, one after the other")
	flags.StringVar(&phases, "phases", "", "comma-separated `names` of the phases to run between create and delete:\nin-place, recreate, scale-out, scale-in (default all)")
	flags.BoolVar(&o.KillUsher, "kill-usher", false, "kill Usher (SIGKILL) in the middle of every phase and start it again")
	flags.BoolVar(&o.StopRegistry, "stop-registry", false, "stop the registry for 20 s in the middle of the in-place update")
	flags.BoolVar(&o.Keep, "keep", false, "leave the cluster up at the end, until Ctrl-C")
	flags.StringVar(&node, "node", node, "run the containers on `real`, a node with a kubelet and containerd (needs root on Debian);\ndefault: processes of the development cluster")
	flags.Uint64Var(&o.Seed, "seed", 0, "seed of what is left to chance: which requests are slow, when Usher is killed")
	if keep := getenv("KEEP"); keep != "" {
		if err := flags.Set("keep", keep); err != nil {
			return o, false, fmt.Errorf("%w: KEEP=%s: give 1 or 0", errUsage, keep)
		}
	}
	if err := flags.Parse(args); err != nil {
		return o, false, err
	}
	if flags.NArg() > 0 {
		return o, false, fmt.Errorf("%w: unexpected argument %q: demo takes flags only, see demo --help", errUsage, flags.Arg(0))
	}
	o.Hooks = demo.Hooks(hooks)
	if phases != "" {
		o.Phases = strings.Split(phases, ",")
	}
	if node != "" && node != nodeReal {
		return o, false, fmt.Errorf("%w: --node=%s: give real, or nothing for the development cluster", errUsage, node)
	}
	return o, node == nodeReal, nil
}
