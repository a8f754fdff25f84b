// SPDX-License-Identifier: Apache-2.0

// Command measure measures Usher on a real control plane with simulated containers, and
// reports whether it is as fast and as frugal as required: the CloneSet half or, with
// -registries, both halves with real registries.
package main

import (
	"cmp"
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

func main() {
	stage.Main("measure", false, func(ctx context.Context) error { return run(ctx, os.Args[1:], os.Stdout, os.Getenv) })
}

func run(ctx context.Context, args []string, out *os.File, getenv func(string) string) error {
	o, sizes, registries, markdown, check := bench.Options{Out: out, Getenv: getenv}, "", "", "", false
	flags := flag.NewFlagSet("measure", flag.ContinueOnError)
	flags.StringVar(&sizes, "sizes", "", "comma-separated `numbers` of Pods to measure with; default 100,2000, with -registries 200,5000, with -guard, -restart or -latency 2000")
	flags.StringVar(&registries, "registries", "", "measure the hook operator, with these `kinds` of registries: etcd, consul, or both with a comma")
	flags.BoolVar(&o.Guard, "guard", false, "measure what the guard costs deletions of Pods that it does not know")
	flags.DurationVar(&o.Restart, "restart", 0, "measure only updates in place, of containers that take that long to restart")
	flags.DurationVar(&o.Latency, "latency", 0, "measure only updates in place, by an Usher that is that round trip away from the API server")
	flags.IntVar(&o.Sets, "sets", 0, "measure only updates in place: of a `number` of CloneSets of 5 Pods at once, of one of as many Pods, and of a small one beside it")
	flags.StringVar(&markdown, "markdown", "", "`file` that gets the tables for a document")
	flags.BoolVar(&check, "check", false, "end with exit code 1 if a goal is missed")
	if err := stage.Parse(flags, args); err != nil {
		return err
	}
	if err := complete(&o, sizes, registries); err != nil {
		return err
	}
	if markdown != "" {
		// After the measurement it would be too late to find out that it cannot be written.
		if err := os.WriteFile(markdown, nil, 0o644); err != nil {
			return fmt.Errorf("%w: -markdown: %w", stage.ErrUsage, err)
		}
	}
	report, err := bench.Run(ctx, o)
	if report != nil && markdown != "" {
		err = errors.Join(err, os.WriteFile(markdown, []byte(report.Markdown()), 0o644))
	}
	if err == nil && check && report.Missed() {
		err = errors.New("a goal is missed: see the lines above")
	}
	return err
}

// complete fills in how many Pods are measured, and with which registries.
func complete(o *bench.Options, sizes, registries string) (err error) {
	if err := verify(o, sizes, registries); err != nil {
		return err
	}
	usual := "100,2000"
	switch {
	case o.Sets > 0:
		usual = strconv.Itoa(o.Sets * bench.PodsPerSet)
	case o.Restart > 0, o.Latency > 0, o.Guard:
		usual = "2000"
	case registries != "":
		usual, o.Registries = "200,5000", strings.Split(registries, ",")
	}
	o.Sizes, err = numbers(cmp.Or(sizes, usual))
	return err
}

// verify reports flags that are wrong or exclude each other.
func verify(o *bench.Options, sizes, registries string) error {
	inPlace := o.Restart != 0 || o.Latency != 0 || o.Sets != 0
	switch {
	case min(o.Restart, o.Latency, time.Duration(o.Sets)) < 0:
		return fmt.Errorf("%w: -restart=%s -latency=%s -sets=%d: give durations such as 5s, and a number such as 2000", stage.ErrUsage, o.Restart, o.Latency, o.Sets)
	case o.Guard && registries != "", inPlace && (o.Guard || registries != ""):
		return fmt.Errorf("%w: give -guard, or -registries, or some of -restart, -latency and -sets", stage.ErrUsage)
	case o.Sets > 0 && sizes != "":
		return fmt.Errorf("%w: -sizes=%s: leave it out: -sets gives the number of Pods", stage.ErrUsage, sizes)
	}
	return nil
}

func numbers(list string) (numbers []int, err error) {
	for text := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(text)
		if err != nil {
			return nil, fmt.Errorf("%w: -sizes=%s: %q is no number: give numbers of Pods, such as 100,2000", stage.ErrUsage, list, text)
		}
		numbers = append(numbers, n)
	}
	return numbers, nil
}
