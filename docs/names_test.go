// SPDX-License-Identifier: Apache-2.0

// Package docs checks what the documents say about the source tree.
package docs

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/usher-dev/usher/internal/checktest"
)

// goFiles are the Go files of the repository by path.
func goFiles(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir("..", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(name) != ".go" {
			return err
		}
		text, err := os.ReadFile(name)
		files[strings.TrimPrefix(filepath.ToSlash(name), "../")] = string(text)
		return err
	})
	checktest.NoError(t, err)
	return files
}

func read(t *testing.T, page string) string {
	t.Helper()
	return string(checktest.Must(os.ReadFile(page))(t))
}

// TestNamesExist: the files (`name.go`), functions (`name()`) and tests (`TestName`)
// that the design notes, the architecture and AGENTS.md name are in the source tree.
func TestNamesExist(t *testing.T) {
	pages, err := filepath.Glob("design/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("design notes: %v, %v", pages, err)
	}
	declared := map[string]bool{} // functions, and the ends of files' paths
	function := regexp.MustCompile(`(?m)^func (?:\([^)\n]*\) )?(\w+)[(\[]`)
	for file, text := range goFiles(t) {
		for file != "" {
			declared[file] = true
			_, file, _ = strings.Cut(file, "/")
		}
		for _, found := range function.FindAllStringSubmatch(text, -1) {
			declared[found[1]] = true
		}
	}
	names := regexp.MustCompile("`(?:[A-Za-z]+\\.)*([A-Za-z]+)\\(\\)`|`(?:[a-z]+\\.)?((?:Test|Fuzz)[A-Za-z_0-9]+)`|`([A-Za-z0-9_/]+\\.go)`")
	for _, page := range append(pages, "architecture.md", "security.md", "../AGENTS.md") {
		for _, found := range names.FindAllStringSubmatch(read(t, page), -1) {
			if name := found[1] + found[2] + found[3]; !declared[name] {
				t.Errorf("%s names %s, which is nowhere", page, name)
			}
		}
	}
}

// TestNotPromised: whoever installs Usher reads what the threat model does not promise.
func TestNotPromised(t *testing.T) {
	_, rows, _ := strings.Cut(read(t, "install.md"), "| Not promised |")
	rows, _, _ = strings.Cut(rows, "\n\n")
	model := strings.Count(read(t, "security.md"), "*not promised*") - 1 // the words are explained once
	if told := strings.Count(rows, "\n") - 1; told != model || told < 1 {
		t.Errorf("security.md does not promise %d things, and install.md tells of %d", model, told)
	}
	if !strings.Contains(read(t, "../README.md"), "docs/install.md#more-than-one-tenant") {
		t.Error("README does not lead there")
	}
}

// TestCompatibilityNamesTestsThatExist: every row of the table of behaviours is
// proved by a test, and every test that it names is there.
func TestCompatibilityNamesTestsThatExist(t *testing.T) {
	proofs := regexp.MustCompile("`(?:([a-z/-]+)\\.)?((?:Test|Fuzz)[A-Za-z_0-9]+)`")
	declaration := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	tests, rows := map[string]bool{}, 0
	for file, text := range goFiles(t) {
		for _, found := range declaration.FindAllStringSubmatch(text, -1) {
			tests[path.Dir(file)+"."+found[1]] = true
		}
	}
	for line := range strings.Lines(read(t, "compatibility.md")) {
		cells := strings.Split(strings.ReplaceAll(line, `\|`, ""), "|")
		if len(cells) < 4 || strings.HasPrefix(cells[1], "---") || strings.HasPrefix(strings.TrimSpace(cells[2]), "Proof") {
			continue
		}
		rows++
		found := proofs.FindAllStringSubmatch(cells[2], -1)
		if len(found) == 0 {
			t.Errorf("no test proves %q: name one as `folder.TestName`", strings.TrimSpace(cells[1]))
		}
		for _, proof := range found {
			if !tests[proof[1]+"."+proof[2]] {
				t.Errorf("%q is said to be proved by %s, which is not in %q: name a test that is there", strings.TrimSpace(cells[1]), proof[2], proof[1])
			}
		}
	}
	if rows < 50 {
		t.Errorf("%d rows of the table were understood", rows)
	}
}

// TestCompatibilityNamesScenariosThatExist: the files of scenarios that it names are there.
func TestCompatibilityNamesScenariosThatExist(t *testing.T) {
	scenarios := 0
	folders := map[string]string{
		"internal/cloneset/plan.TestPlans": "plans", "internal/cloneset/inplace.TestUpdates": "updates",
		"test/integration/cloneset.TestStories": "stories", "test/integration/install.TestStories": "stories",
		"test/integration/guard.TestStories": "stories",
	}
	for _, found := range regexp.MustCompile("`([A-Za-z/.]+)` \\(([a-z, -]+)\\)").FindAllStringSubmatch(read(t, "compatibility.md"), -1) {
		for name := range strings.SplitSeq(found[2], ", ") {
			if folder := folders[found[1]]; folder != "" {
				test, _, _ := strings.Cut(found[1], ".Test")
				read(t, path.Join("..", test, "testdata", folder, name+".txt"))
				scenarios++
			}
		}
	}
	if scenarios < 50 {
		t.Errorf("%d scenarios were found", scenarios)
	}
}

var (
	product = regexp.MustCompile(`^(api|internal|pkg|cmd)/`)
	// reason is the value of a constant, or one of the events that a CloneSet has for actions.
	reason = regexp.MustCompile(`(?m)^\s*(?:const )?(?:[Rr]eason|event|Problem|Progress)[A-Z]\w*(?: \w+)? += "([A-Z]\w+)"|"((?:Successful|Failed|PodLeaves|ScaleUp)\w+)"`)
	// conditions are in the same column of reasons.md.
	conditions = "Blocked Progressing FailedScale FailedUpdate Ready Waiting HooksMatched InstancesValid ScaleInOrdered Reachable"
)

// TestReasonsAreDocumented: every reason of a condition or an event in the code is in
// reasons.md, and every reason there is in the code.
func TestReasonsAreDocumented(t *testing.T) {
	page, known := read(t, "reasons.md"), map[string]bool{}
	for condition := range strings.FieldsSeq(conditions) {
		known[condition] = true
	}
	for file, text := range goFiles(t) {
		if !product.MatchString(file) || strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, found := range reason.FindAllStringSubmatch(text, -1) {
			name := found[1] + found[2]
			known[name] = true
			if !strings.HasSuffix(name, "BackOff") && !strings.Contains(page, "`"+name+"`") {
				t.Errorf("reasons.md does not say what %s means (%s)", name, file)
			}
		}
	}
	for _, name := range explained(page) {
		if !known[name] {
			t.Errorf("reasons.md explains %s, which is nowhere", name)
		}
	}
}

// TestTroubleshootingNamesReasons: the words of conditions and events that it names are explained, or Kubernetes' own.
func TestTroubleshootingNamesReasons(t *testing.T) {
	const others = "ImagePullBackOff ErrImagePull CrashLoopBackOff PreparingUpdate PreparingDelete"
	known := append(explained(read(t, "reasons.md")), strings.Fields(others)...)
	named := 0
	for _, found := range regexp.MustCompile("`([A-Z][a-z]+[A-Z]\\w+)`").FindAllStringSubmatch(read(t, "troubleshooting.md"), -1) {
		named++
		if !slices.Contains(known, found[1]) {
			t.Errorf("troubleshooting.md names %s, which reasons.md does not explain", found[1])
		}
	}
	if named < 10 {
		t.Errorf("%d reasons were found", named)
	}
}

// explained are the reasons in all columns of the page's tables but the last.
func explained(page string) (names []string) {
	for line := range strings.Lines(page) {
		last := strings.LastIndex(strings.TrimSuffix(line, "|\n"), "|")
		for _, found := range regexp.MustCompile("`([A-Z]\\w+)`").FindAllStringSubmatch(line[:max(last, 0)], -1) {
			names = append(names, found[1])
		}
	}
	return names
}
