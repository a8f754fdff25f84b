// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"io"
	"testing"

	"github.com/usher-dev/usher/internal/checktest"
)

// TestCheck: the flag is one with a value, and one without.
func TestCheck(t *testing.T) {
	for arg, want := range map[string]check{"-check": checkAll, "-check=all": checkAll, "-check=ranges": checkRanges, "-markdown=a": ""} {
		flags, asked := flag.NewFlagSet("measure", flag.ContinueOnError), check("")
		flags.SetOutput(io.Discard)
		flags.Var(&asked, "check", "")
		flags.String("markdown", "", "")
		checktest.NoError(t, flags.Parse([]string{arg, "-markdown=b"}))
		checktest.Same(t, arg, want, asked)
	}
	asked := check("")
	checktest.Says(t, "the error", asked.Set("goals"), "-check=ranges")
}
