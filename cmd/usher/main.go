// SPDX-License-Identifier: Apache-2.0

// Command usher brings Pods into service and takes them out. One binary holds both
// halves, the CloneSet controller and the hook operator; --controllers runs either one
// alone.
package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"

	ctrl "sigs.k8s.io/controller-runtime"
)

// gcPercent is how much garbage may accumulate, in per cent of the live heap. The caches are nearly all
// of the live heap, and a pass leaves little garbage: less than a third of Go's default saves a third
// of the heap and costs some CPU time. GOGC overrides it.
const gcPercent = 30

// A heap of less than smallHeap, in bytes and with its garbage, is collected as Go does by default
// (smallPercent). Collecting it as often as a larger one took a third of the CPU time.
const smallHeap, smallPercent = 40 << 20, 100

// tuneGC sets how much garbage may accumulate, from now on and again after each collection.
func tuneGC() {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	fills := int(smallHeap*100/max(live[0].Value.Uint64(), 1)) - 100
	debug.SetGCPercent(max(gcPercent, min(fills, smallPercent)))
	runtime.AddCleanup(new([16]byte), func(struct{}) { tuneGC() }, struct{}{})
}

func main() {
	if os.Getenv("GOGC") == "" {
		tuneGC()
	}
	if err := run(ctrl.SetupSignalHandler(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "usher:", err)
		os.Exit(1)
	}
}
