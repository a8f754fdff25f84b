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

	"github.com/usher-dev/usher/test/bench"
	"github.com/usher-dev/usher/test/stage"
)

func main() {
	stage.Main("measure", false, func(ctx context.Context) error { return run(ctx, os.Args[1:], os.Stdout, os.Getenv) })
}

func run(ctx context.Context, args []string, out *os.File, getenv func(string) string) error {
	sizes, registries, markdown, check := "", "", "", false
	flags := flag.NewFlagSet("measure", flag.ContinueOnError)
	flags.StringVar(&sizes, "sizes", "", "comma-separated `numbers` of Pods to measure with; default 100,2000, with -registries 200,5000")
	flags.StringVar(&registries, "registries", "", "measure the hook operator, with these `kinds` of registries: etcd, consul, or both with a comma")
	flags.StringVar(&markdown, "markdown", "", "`file` that gets the tables for a document")
	flags.BoolVar(&check, "check", false, "end with exit code 1 if a goal is missed")
	if err := stage.Parse(flags, args); err != nil {
		return err
	}
	o := bench.Options{Out: out, Getenv: getenv}
	usual := "100,2000"
	if registries != "" {
		usual, o.Registries = "200,5000", strings.Split(registries, ",")
	}
	var err error
	if o.Sizes, err = numbers(cmp.Or(sizes, usual)); err != nil {
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
