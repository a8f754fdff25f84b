// SPDX-License-Identifier: Apache-2.0

// Package docs checks what the documents say about the source tree.
package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestCompatibilityNamesTestsThatExist: every row of the table of behaviours is
// proved by a test, and every test that it names is there.
func TestCompatibilityNamesTestsThatExist(t *testing.T) {
	text, err := os.ReadFile("compatibility.md")
	if err != nil {
		t.Fatal(err)
	}
	proofs := regexp.MustCompile("`((?:[a-z]+\\.)?)((?:Test|Fuzz)[A-Za-z_0-9]+)`")
	known, rows := map[string]string{}, 0
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.ReplaceAll(line, `\|`, ""), "|")
		if len(cells) < 4 || strings.HasPrefix(cells[1], "---") || strings.HasPrefix(strings.TrimSpace(cells[2]), "Proof") {
			continue
		}
		rows++
		found := proofs.FindAllStringSubmatch(cells[2], -1)
		if len(found) == 0 {
			t.Errorf("no test proves %q: name one as `package.TestName`", strings.TrimSpace(cells[1]))
		}
		for _, proof := range found {
			folder := folderOf(strings.TrimSuffix(proof[1], "."))
			if known[folder] == "" {
				known[folder] = testsOf(t, folder)
			}
			if !strings.Contains(known[folder], "\nfunc "+proof[2]+"(") {
				t.Errorf("%q is said to be proved by %s, which is not in %s: name a test that is there", strings.TrimSpace(cells[1]), proof[2], folder)
			}
		}
	}
	if rows < 50 {
		t.Errorf("%d rows of the table were understood", rows)
	}
}

// folderOf is where the tests of a package in the table are.
func folderOf(name string) string {
	switch name {
	case "":
		return "internal/cloneset/plan"
	case "stories":
		return "test/integration/cloneset"
	case "usher":
		return "cmd/usher"
	case "sim":
		return "test/sim"
	case "cloneset", "registration":
		return "internal/" + name
	}
	return "internal/cloneset/" + name
}

// testsOf is the source of all test files in a folder of the repository.
func testsOf(t *testing.T, folder string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", filepath.FromSlash(folder), "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(data)
	}
	if all.Len() == 0 {
		t.Fatalf("the table names a test of %s, where there is none", folder)
	}
	return all.String()
}
