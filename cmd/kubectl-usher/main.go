// SPDX-License-Identifier: Apache-2.0

// Command kubectl-usher is a kubectl plugin: kubectl usher shows what Usher is doing and
// why, and takes hold of a rollout.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"k8s.io/cli-runtime/pkg/genericiooptions"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	err := newCommand(streams).ExecuteContext(ctx)
	if err == nil || errors.Is(err, context.Canceled) {
		return
	}
	if code := exitCode(0); errors.As(err, &code) {
		os.Exit(int(code))
	}
	fmt.Fprintln(os.Stderr, "error:", err)
	os.Exit(1)
}

// exitCode ends the program without a word more.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }
