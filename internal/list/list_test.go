// SPDX-License-Identifier: Apache-2.0

package list

import (
	"testing"

	"github.com/usher-dev/usher/internal/checktest"
)

// TestCount: one thing, several, and kinds that end with y.
func TestCount(t *testing.T) {
	got := []string{Count(0, "Pod"), Count(1, "Pod"), Count(2, "Pod"), Count(1, "Registry"), Count(2, "Registry"), Count(2, "more group")}
	checktest.Same(t, "counts", []string{"0 Pods", "1 Pod", "2 Pods", "1 Registry", "2 Registries", "2 more groups"}, got)
}
