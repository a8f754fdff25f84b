// SPDX-License-Identifier: Apache-2.0

// Command usher brings Pods into service and sees them out. One binary holds
// both halves, the CloneSet controller and the hook operator; each runs alone
// with --controllers.
package main

import (
	"fmt"
	"os"

	ctrl "sigs.k8s.io/controller-runtime"
)

func main() {
	if err := run(ctrl.SetupSignalHandler(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "usher:", err)
		os.Exit(1)
	}
}
