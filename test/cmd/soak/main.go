// SPDX-License-Identifier: Apache-2.0

// Command soak sends requests for an hour while workloads change and faults happen, and reports
// how many were lost.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/usher-dev/usher/test/soak"
	"github.com/usher-dev/usher/test/stage"
)

// page is a document that has a table, and the marks around it.
type page struct{ document, begin, end string }

var (
	usual = page{"docs/measurements/soak.md", "<!-- soak: written by make soak ARGS=-report -->", "<!-- soak: end -->"}
	ofHA  = page{
		"docs/measurements/soak-ha.md", "<!-- soak-ha: written by make soak ARGS='-ha -report' -->", "<!-- soak-ha: end -->",
	}
)

func main() { stage.Main("soak", false, command) }

func command(flags *flag.FlagSet) func(context.Context) error {
	o, report := soak.Options{Out: os.Stdout}, false
	flags.IntVar(&o.Requests, "requests", 1_000_000, "send that many requests")
	flags.DurationVar(&o.For, "for", time.Hour, "how long that is to take")
	flags.Uint64Var(&o.Seed, "seed", uint64(time.Now().Unix()), "what decides which changes and faults happen; default: the time")
	flags.BoolVar(&o.HA, "ha", false, "three members of etcd and two API servers behind a balancer, with faults of their own")
	flags.BoolVar(&o.Bare, "bare", false, "leave out all hooks and the guard, to see that requests are lost then")
	flags.BoolVar(&report, "report", false, "write the table into "+usual.document+", or with -ha into "+ofHA.document)
	return func(ctx context.Context) error { return run(ctx, o, report) }
}

func run(ctx context.Context, o soak.Options, report bool) error {
	if o.Requests < 1 || o.For < time.Second {
		return fmt.Errorf("%w: -requests=%d -for=%s: send at least one, and take at least a second", stage.ErrUsage, o.Requests, o.For)
	}
	before, err := stage.NewUsage()
	if err != nil {
		return err
	}
	result, err := soak.Run(ctx, o)
	if err != nil {
		return err
	}
	fmt.Println("\n" + strings.Join(result.Table().Lines(false), "\n"))
	load, err := before.Text()
	if err == nil && report {
		text := fmt.Sprintf("Played on %s. %s\n\n%s", time.Now().UTC().Format(time.DateOnly), load, result.Table().Markdown())
		into := usual
		if o.HA {
			into = ofHA
		}
		err = stage.Splice(into.document, into.begin, into.end, text)
	}
	if failed := result.Failed(); failed != "" {
		err = errors.Join(err, errors.New(failed))
	}
	return err
}
