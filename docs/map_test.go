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

// TestReportsHaveAPlace: the documents that programs write tables into have the marks around them.
func TestReportsHaveAPlace(t *testing.T) {
	documents, marks := regexp.MustCompile(`"(docs/[a-z/-]+\.md)"`), regexp.MustCompile(`"(<!-- [^"]+ -->)"`)
	found := 0
	for file, text := range goFiles(t) {
		if !strings.HasPrefix(file, "test/") || strings.HasSuffix(file, "_test.go") {
			continue
		}
		var pages strings.Builder
		for _, document := range documents.FindAllStringSubmatch(text, -1) {
			pages.WriteString(read(t, "../"+document[1]))
		}
		for _, mark := range marks.FindAllStringSubmatch(text, -1) {
			found++
			if strings.Count(pages.String(), mark[1]) != 1 {
				t.Errorf("%s writes at %s, which its documents do not have once", file, mark[1])
			}
		}
	}
	if found != 8 {
		t.Errorf("%d marks were found, want 8", found)
	}
}
