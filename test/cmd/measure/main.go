// SPDX-License-Identifier: Apache-2.0

// Command measure measures Usher on a real control plane with simulated containers, and
// reports whether it is as fast and as frugal as required: the CloneSet half or, with
// -registries, both halves with real registries.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/usher-dev/usher/test/bench"
	"github.com/usher-dev/usher/test/stage"
)

func main() { stage.Main("measure", false, command) }

func command(flags *flag.FlagSet) func(context.Context) error {
	o, registries, markdown, asked := bench.Options{Out: os.Stdout}, "", "", check("")
	flags.Func("sizes", "comma-separated `numbers` of Pods to measure with; default 100,2000, with -registries 200,5000, with -guard, -restart, -latency or -image 2000", list(&o.Sizes, strconv.Atoi))
	flags.StringVar(&registries, "registries", "", "measure the hook operator, with these `kinds` of registries: etcd, consul, or both with a comma")
	flags.BoolVar(&o.Guard, "guard", false, "measure what the guard costs deletions of Pods that it does not know, and how long a Deployment takes with it")
	flags.Func("restart", "measure only updates in place, of containers that take that long to restart: `durations`, such as 50ms,5s", list(&o.Restarts, time.ParseDuration))
	flags.Func("latency", "measure only updates in place, by an Usher that is that round trip away from the API server: `durations`, such as 0s,20ms, each with each -restart", list(&o.Latencies, time.ParseDuration))
	flags.DurationVar(&o.Pull, "image", 0, "measure only updates in place, to images that nodes pull for that long")
	flags.IntVar(&o.Sets, "sets", 0, "measure only updates in place: of a `number` of CloneSets of 5 Pods at once, of one of as many Pods, and of a small one beside it")
	flags.IntVar(&o.Many, "many", 0, "measure only a `number` of CloneSets of 2 Pods: created, with an Usher that starts among them, and with 1 % and 10 % of them updated")
	flags.StringVar(&markdown, "markdown", "", "`file` that gets the tables for a document")
	flags.Var(&asked, "check", "end with exit code 1 if a goal is missed or a number is out of its range; -check=ranges: only for the ranges (test/bench/ranges.yaml)")
	return func(ctx context.Context) error {
		if err := complete(&o, registries); err != nil {
			return err
		}
		return run(ctx, o, markdown, asked)
	}
}

// run measures, and writes the tables into the file markdown if that is set.
func run(ctx context.Context, o bench.Options, markdown string, asked check) error {
	if markdown != "" {
		// Whether the file can be written must be known before the measurement.
		if err := os.WriteFile(markdown, nil, 0o644); err != nil {
			return fmt.Errorf("%w: -markdown: %w", stage.ErrUsage, err)
		}
	}
	report, err := bench.Run(ctx, o)
	if report != nil && markdown != "" {
		err = errors.Join(err, os.WriteFile(markdown, []byte(report.Markdown()), 0o644))
	}
	if err == nil {
		err = asked.missed(report)
	}
	return err
}

// check is the flag of that name: empty, all or ranges.
type check string

const (
	checkAll    check = "all"
	checkRanges check = "ranges"
)

// String implements flag.Value.
func (c *check) String() string { return string(*c) }

// IsBoolFlag lets people leave out the value.
func (c *check) IsBoolFlag() bool { return true }

// Set implements flag.Value.
func (c *check) Set(text string) error {
	switch check(text) {
	case "true", checkAll:
		*c = checkAll
	case checkRanges:
		*c = checkRanges
	default:
		return fmt.Errorf("%q is none: give -check, or -check=%s", text, checkRanges)
	}
	return nil
}

// missed returns an error if the report misses what was asked for.
func (c *check) missed(report *bench.Report) error {
	missed, err := false, error(nil)
	switch *c {
	case checkAll:
		missed = report.Missed()
	case checkRanges:
		missed, err = report.OutOfRange()
	}
	if missed {
		err = errors.New("a goal is missed, or a number is out of its range: see the lines above")
	}
	return err
}

// complete sets the defaults of the numbers of Pods and of the registries.
func complete(o *bench.Options, registries string) error {
	timed := len(o.Restarts)+len(o.Latencies) > 0 || o.Pull != 0
	if err := errors.Join(verify(o, registries != "", timed), verifyMany(o, registries != "" || timed)); err != nil {
		return err
	}
	usual := []int{100, 2000}
	switch {
	case o.Sets > 0:
		usual = []int{o.Sets * bench.PodsPerSet}
	case o.Many > 0:
		usual = []int{o.Many * bench.PodsPerSmallSet}
	case timed, o.Guard:
		usual = []int{2000}
	case registries != "":
		usual, o.Registries = []int{200, 5000}, strings.Split(registries, ",")
	}
	if len(o.Sizes) == 0 {
		o.Sizes = usual
	}
	return nil
}

// verify reports flags that are wrong or exclude each other.
func verify(o *bench.Options, registries, timed bool) error {
	one := len(o.Sizes) == 0 && max(len(o.Restarts), len(o.Latencies)) < 2 && o.Pull == 0
	switch {
	case min(o.Pull, time.Duration(o.Sets)) < 0:
		return fmt.Errorf("%w: -image=%s -sets=%d: give a duration such as 5s, and a number such as 2000", stage.ErrUsage, o.Pull, o.Sets)
	case o.Guard && registries, (timed || o.Sets > 0) && (o.Guard || registries):
		return fmt.Errorf("%w: give -guard, or -registries, or some of -restart, -latency, -image and -sets", stage.ErrUsage)
	case o.Sets > 0 && !one:
		return fmt.Errorf("%w: -sets gives the number of Pods and goes with one -restart and one -latency: leave the others out", stage.ErrUsage)
	}
	return nil
}

// verifyMany reports a number of small CloneSets that is none, or another measurement at the same time.
func verifyMany(o *bench.Options, others bool) error {
	if o.Many < 0 || o.Many > 0 && (others || o.Guard || o.Sets > 0 || len(o.Sizes) > 0) {
		return fmt.Errorf("%w: -many=%d: give a number such as 10000, and no other measurement", stage.ErrUsage, o.Many)
	}
	return nil
}

// list reads several values with commas between them.
func list[T int | time.Duration](into *[]T, parse func(string) (T, error)) func(text string) error {
	return func(text string) error {
		for one := range strings.SplitSeq(text, ",") {
			value, err := parse(one)
			if err != nil || value < 0 {
				return fmt.Errorf("%q is none: give some with commas between them, such as 100,2000 or 50ms,5s", one)
			}
			*into = append(*into, value)
		}
		return nil
	}
}
