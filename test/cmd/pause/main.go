// SPDX-License-Identifier: Apache-2.0

// Command pause holds the namespaces of a Pod on a real node. It reaps orphans in a Pod
// whose containers share their process namespace, and ends on SIGTERM.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt, syscall.SIGCHLD)
	for s := range signals {
		if s != syscall.SIGCHLD {
			return
		}
		for pid := 1; pid > 0; {
			pid, _ = syscall.Wait4(-1, nil, syscall.WNOHANG, nil) // -1: no child is left.
		}
	}
}
