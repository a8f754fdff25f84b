// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestNamesExist: the files (`name.go`), functions (`name()`) and tests (`TestName`)
// that the design notes, the architecture and AGENTS.md name are in the source tree.
func TestNamesExist(t *testing.T) {
	pages, err := filepath.Glob("design/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("design notes: %v, %v", pages, err)
	}
	paths, source := goFiles(t)
	declared := func(name string) bool {
		return regexp.MustCompile(`\nfunc (\([^)\n]*\) )?` + name + `[(\[]`).MatchString(source)
	}
	file := regexp.MustCompile("`([A-Za-z0-9_/]+\\.go)`")
	function := regexp.MustCompile("`(?:[A-Za-z]+\\.)*([A-Za-z]+)\\(\\)`")
	test := regexp.MustCompile("`(?:[a-z]+\\.)?((?:Test|Fuzz)[A-Za-z_0-9]+)`")
	for _, page := range append(pages, "architecture.md", "../AGENTS.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range file.FindAllStringSubmatch(string(text), -1) {
			if !slices.ContainsFunc(paths, func(path string) bool { return strings.HasSuffix(path, "/"+found[1]) }) {
				t.Errorf("%s names the file %s, which is nowhere", page, found[1])
			}
		}
		for _, found := range slices.Concat(function.FindAllStringSubmatch(string(text), -1), test.FindAllStringSubmatch(string(text), -1)) {
			if !declared(found[1]) {
				t.Errorf("%s names the function %s, which is nowhere", page, found[1])
			}
		}
	}
}

// goFiles are the paths of all Go files in the repository, and all that they hold.
func goFiles(t *testing.T) (paths []string, source string) {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		data, err := os.ReadFile(path)
		paths = append(paths, filepath.ToSlash(path))
		all.Write(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths, all.String()
}
