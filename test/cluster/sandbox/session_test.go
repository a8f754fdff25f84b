// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"os"
	"path/filepath"
	"testing"
)

// The next run removes the directory of a killed run; a live one keeps its own.
func TestRemoveStale(t *testing.T) {
	const prefix = "usher-test-"
	root := t.TempDir()
	own := prefix + "1-live"
	for _, name := range []string{prefix + "2147483647-dead", own, prefix + "logs-1", "other"} {
		if err := os.Mkdir(filepath.Join(root, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeStale(root, prefix); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(root, "*"))
	if err != nil || len(left) != 3 {
		t.Errorf("left are %v, want three: %v", left, err)
	}
}
