// SPDX-License-Identifier: Apache-2.0

// Package goldentest has the flag -update of all tests that compare with texts in files.
package goldentest

import (
	"flag"
	"testing"
)

var update = define()

// define defines the flag in tests: programs that share code with them do not have it.
func define() *bool {
	if !testing.Testing() {
		return new(false)
	}
	return flag.Bool("update", false, "write what the tests print into their files; read every line that changes")
}

// Updating reports whether tests write what they print instead of comparing it.
func Updating() bool { return *update }
