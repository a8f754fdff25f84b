// SPDX-License-Identifier: Apache-2.0

package scenariotest

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/usher-dev/usher/internal/checktest"
)

// toy is a story that adds numbers.
type toy struct {
	*testing.T
	Names
	Printer
	sum int
}

var toyWords = []Word[*toy]{
	{Name: "add", Args: "N", Does: "adds numbers", Run: func(s *toy, args string) {
		for number := range strings.FieldsSeq(args) {
			s.sum += Number(number)
		}
	}},
	{Name: "call three", Does: "names the sum", Run: func(s *toy, _ string) { s.Call("three", fmt.Sprint("sum ", s.sum)) }},
	{Name: "show", Does: "prints the sum", Run: func(s *toy, _ string) { s.Printf("sum %d", s.sum) }},
	{Name: "run", Args: "TEXT", Does: "prints it, which may be left out", Optional: true,
		Run: func(s *toy, text string) { s.Print(text) }},
	{Name: "grow", Does: "adds 1, until the sum is as it has to be", Until: true,
		Run: func(s *toy, _ string) { s.sum++; s.Printf("sum %d", s.sum) }},
	{Name: "list", Does: "prints four lines", Run: func(s *toy, _ string) { s.Print("first\nsecond\nthird\nfourth\n") }},
	{Name: "say", Args: "TEXT", Does: "prints it twice", Run: func(s *toy, text string) { s.Printf("%s and  %s", text, text) }},
	{Name: "fail", Does: "fails", Run: func(s *toy, _ string) { s.Fatal("it fails") }},
}

func playToys(t *testing.T, files string) {
	t.Helper()
	Stories[*toy]{Files: files, Words: toyWords, Several: true, Begin: func(t *testing.T) *toy {
		t.Helper()
		s := &toy{T: t}
		s.Call("one", "the one")
		return s
	}}.Play(t)
}

// filesOfChild is an environment variable with other files for TestToys, which then runs in a process
// of its own, since it fails.
const filesOfChild = "SCENARIOTEST_FILES"

// TestToys plays its own stories, or those of filesOfChild.
func TestToys(t *testing.T) {
	files := cmp.Or(os.Getenv(filesOfChild), "testdata/toy.txt")
	switch {
	case strings.HasSuffix(files, "table.txt"):
		Run(t, files, func(_ *testing.T, lines []string) (sums []string) {
			for _, line := range lines {
				sum := 0
				for number := range strings.FieldsSeq(line) {
					sum += Number(number)
				}
				sums = append(sums, fmt.Sprint(sum))
			}
			return sums
		})
	default:
		playToys(t, files)
	}
}

// child runs TestToys on a file, and returns what it prints.
func child(t *testing.T, file string, args ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), os.Args[0], append(args, "-test.run=^TestToys$")...)
	command.Env = append(os.Environ(), filesOfChild+"="+file)
	out, _ := command.CombinedOutput() // most of them fail
	return string(out)
}

// Failures name the file and the line of the text, the story, and the steps before.
func TestFailures(t *testing.T) {
	checktest.Says(t, "the failure", child(t, "testdata/broken.txt"),
		`testdata/broken.txt:5: after "show": want "sum 4", got "sum 3"`,
		`in "counts", after these steps (the last 2 of 2)`, "testdata/broken.txt:3: add 2\n", "testdata/broken.txt:4: add 1\n",
		`testdata/broken.txt:11: after "list": want "...th", got "third"`,
		`testdata/broken.txt:16: "fail" failed, as said above`,
		`testdata/broken.txt:20: no word begins "addd 1"; the nearest are ["add"`,
		`testdata/broken.txt:23: "show" prints, so it has to be the last step of its line`,
	)
	checktest.Says(t, "the failure of a table", child(t, "testdata/table.txt"),
		`testdata/table.txt:9: in "differs": want "8", got "7"`,
		`testdata/table.txt:5: "differs" begins here`,
		`testdata/table.txt:14: in "has too many": want "7", got nothing more`,
	)
}

// With -update the printed lines stand in the file, and all other lines are as before.
func TestUpdate(t *testing.T) {
	updated := func(file string) string {
		before := checktest.Must(os.ReadFile("testdata/" + file))(t)
		copied := filepath.Join(t.TempDir(), file)
		checktest.NoError(t, os.WriteFile(copied, before, 0o600))
		out := child(t, copied, "-update")
		t.Log(out)
		return string(checktest.Must(os.ReadFile(copied))(t))
	}
	checktest.Same(t, "a file without a difference", string(checktest.Must(os.ReadFile("testdata/toy.txt"))(t)), updated("toy.txt"))
	checktest.Same(t, "stories", string(checktest.Must(os.ReadFile("testdata/updated.txt"))(t)), updated("broken.txt"))
	checktest.Same(t, "a table", `sums
  1 2
  = 3

differs
  1 2
  3 4
  = 3
  = 7

has too many
  1 2
  = 3
`, updated("table.txt"))
}

func TestFits(t *testing.T) {
	for _, test := range []struct {
		want, printed string
		fits          bool
	}{
		{"a b", "a   b", true}, {"a...", "abc", true}, {"...", "abc", true}, {"a...c", "abc", true}, {"a...b...d", "abcd", true},
		{"a", "ab", false}, {"...b", "abc", false}, {"a...x...d", "abcd", false}, {"ab...bc", "abc", false},
	} {
		checktest.Same(t, test.want+" of "+test.printed, test.fits, fits(test.want, test.printed))
	}
}

func TestTwice(t *testing.T) {
	checktest.Same(t, "names that occur twice", []string{"b"}, Twice([]string{"b", "a", "b", "c", "b"}))
}

// The longest word counts, and it ends at the end of a word.
func TestBeginning(t *testing.T) {
	names := []string{"evict", "evict all", "make"}
	for step, want := range map[string]string{"evict all x": "evict all,x", "evict allx": "evict,allx", "make\n  a": "make,\n  a", "maker": ","} {
		name, rest, _ := Beginning(names, step)
		checktest.Same(t, step, want, name+","+rest)
	}
}
