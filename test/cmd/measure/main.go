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
	sizes, registries, markdown, guard, check := "", "", "", false, false
	restart := time.Duration(0)
	flags := flag.NewFlagSet("measure", flag.ContinueOnError)
	flags.StringVar(&sizes, "sizes", "", "comma-separated `numbers` of Pods to measure with; default 100,2000, with -registries 200,5000, with -guard or -restart 2000")
	flags.StringVar(&registries, "registries", "", "measure the hook operator, with these `kinds` of registries: etcd, consul, or both with a comma")
	flags.BoolVar(&guard, "guard", false, "measure what the guard costs deletions of Pods that it does not know")
	flags.DurationVar(&restart, "restart", 0, "measure only updates in place, of containers that take that long to restart")
	flags.StringVar(&markdown, "markdown", "", "`file` that gets the tables for a document")
	flags.BoolVar(&check, "check", false, "end with exit code 1 if a goal is missed")
	if err := stage.Parse(flags, args); err != nil {
		return err
	}
	o, err := options(sizes, registries, guard, restart)
	if err != nil {
		return err
	}
	o.Out, o.Getenv = out, getenv
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

// options are what is measured, and with how many Pods.
func options(sizes, registries string, guard bool, restart time.Duration) (o bench.Options, err error) {
	usual := "100,2000"
	switch {
	case restart < 0 || (restart > 0 && (guard || registries != "")):
		return o, fmt.Errorf("%w: -restart=%s: give a duration such as 5s, and neither -guard nor -registries", stage.ErrUsage, restart)
	case guard && registries != "":
		return o, fmt.Errorf("%w: give -guard or -registries", stage.ErrUsage)
	case restart > 0:
		usual, o.Restart = "2000", restart
	case guard:
		usual, o.Guard = "2000", true
	case registries != "":
		usual, o.Registries = "200,5000", strings.Split(registries, ",")
	}
	o.Sizes, err = numbers(cmp.Or(sizes, usual))
	return o, err
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
