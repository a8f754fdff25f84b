// SPDX-License-Identifier: Apache-2.0

// Command usher brings Pods into service and sees them out. One binary holds
// both halves, the CloneSet controller and the hook operator; each runs alone
// with --controllers.
package main

import (
	"fmt"
	"os"
	"runtime/debug"

	ctrl "sigs.k8s.io/controller-runtime"
)

// gcPercent is how much garbage may pile up on what is alive, in per cent of it.
// Nearly all that is alive are the caches, and a pass leaves little behind: half of
// Go's default saves a quarter of the memory for hardly any time. GOGC overrides it.
const gcPercent = 50

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if err := run(ctrl.SetupSignalHandler(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "usher:", err)
		os.Exit(1)
	}
}
