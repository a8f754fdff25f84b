// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/usher-dev/usher/devcluster/e2e"
	"github.com/usher-dev/usher/devcluster/internal/sandbox"
)

func main() {
	place := sandbox.Enter()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if place != nil {
		if err := e2e.Inside(ctx, place); err != nil {
			fmt.Fprintln(os.Stderr, "e2e:", err)
			os.Exit(1)
		}
		return
	}
	if err := e2e.Run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
}
