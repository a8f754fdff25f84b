// SPDX-License-Identifier: Apache-2.0

// Command usher brings Pods into service and takes them out. One binary holds both
// halves, the CloneSet controller and the hook operator; --controllers runs either one
// alone.
package main

import (
	"fmt"
	"os"
	"runtime/debug"

	ctrl "sigs.k8s.io/controller-runtime"
)

// gcPercent is how much garbage may accumulate, in per cent of the live heap. The caches
// are nearly all of the live heap, and a pass leaves little garbage: less than half of Go's
// default saves a third of the memory for some processor time. GOGC overrides it.
const gcPercent = 40

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if err := run(ctrl.SetupSignalHandler(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "usher:", err)
		os.Exit(1)
	}
}
