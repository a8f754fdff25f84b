// SPDX-License-Identifier: Apache-2.0

// Command upgrade upgrades Usher from the release before, and takes it back, again and again in the middle of rollouts
// and under traffic, and reports how many requests were lost.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/soak"
	"github.com/usher-dev/usher/test/stage"
)

// pinned stands for the release before until there is one: a commit of 2026-11-29, from before Usher managed target
// groups and followed applications that register themselves.
const pinned = "eccf9cc8"

// rate is how many requests are sent in a second.
const rate = 300

func main() { stage.Main("upgrade", false, command) }

func command(flags *flag.FlagSet) func(context.Context) error {
	o := soak.Options{Out: os.Stdout, Requests: rate, For: time.Second}
	flags.StringVar(&o.Before, "before", "", "upgrade from that revision; default: the last tag of a version, or until there is one the commit "+pinned)
	flags.IntVar(&o.Rounds, "rounds", 3, "upgrade and go back that many times, each with the CRDs first and with the CRDs last")
	flags.Uint64Var(&o.Seed, "seed", uint64(time.Now().Unix()), "what decides which changes happen; default: the time")
	return func(ctx context.Context) error { return run(ctx, o) }
}

func run(ctx context.Context, o soak.Options) error {
	if o.Rounds < 1 {
		return fmt.Errorf("%w: -rounds=%d: play at least one", stage.ErrUsage, o.Rounds)
	}
	if o.Before == "" {
		root, err := checkout.Find()
		if err != nil {
			return err
		}
		if o.Before, err = checkout.LastTag(ctx, root); err != nil {
			return err
		}
	}
	if o.Before == "" {
		o.Before = pinned
	}
	result, err := soak.Run(ctx, o)
	if err != nil {
		return err
	}
	fmt.Println("\n" + strings.Join(result.Table().Lines(false), "\n"))
	if failed := result.Failed(); failed != "" {
		return errors.New(failed)
	}
	return nil
}
