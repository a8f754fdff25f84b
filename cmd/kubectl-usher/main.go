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

	"github.com/go-logr/logr"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime/pkg/log"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	// What goes wrong, errors say; libraries would say it again.
	klog.SetLogger(logr.Discard())
	ctrl.SetLogger(logr.Discard())
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	command := newCommand(streams)
	command.SetArgs(arguments(os.Args))
	err := command.ExecuteContext(ctx)
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
