// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"path"
	"regexp"
	"strings"
	"testing"
)

// TestVerbsAreDocumented: metrics.md has each value that the label verb of planned actions can have.
func TestVerbsAreDocumented(t *testing.T) {
	verbs := regexp.MustCompile(`(?m)^\s(\w+) Verb = "`).FindAllStringSubmatch(read(t, "../internal/cloneset/plan/plan.go"), -1)
	if len(verbs) < 5 {
		t.Fatalf("there are the verbs %v", verbs)
	}
	_, row, found := strings.Cut(read(t, "metrics.md"), "| `usher_cloneset_planned_actions_total` |")
	row, _, _ = strings.Cut(row, "\n")
	for _, verb := range verbs {
		if name := strings.ToLower(verb[1]); !found || !strings.Contains(row, "`"+name+"`") {
			t.Errorf("metrics.md lacks the verb %s of usher_cloneset_planned_actions_total", name)
		}
	}
}

// TestRoomsAreOnTheMap: architecture.md names the packages of internal, and those of the two halves.
func TestRoomsAreOnTheMap(t *testing.T) {
	_, rooms, _ := strings.Cut(read(t, "architecture.md"), "## The rooms")
	rooms, _, _ = strings.Cut(rooms, "## ")
	for file := range goFiles(t) {
		folder := path.Dir(file)
		deep := strings.Count(folder, "/")
		half := strings.HasPrefix(folder, "internal/cloneset/") || strings.HasPrefix(folder, "internal/registration/")
		if strings.HasPrefix(folder, "internal/") && (deep == 1 || deep == 2 && half) && !strings.Contains(rooms, " "+path.Base(folder)+"/ ") {
			t.Errorf("architecture.md has no line for %s", folder)
		}
	}
}
