// SPDX-License-Identifier: Apache-2.0

// Package scenariotest runs tests that are written as text. A scenario is its name, below it objects or
// events, and after "=" the results:
//
//	grace over
//	  Set: r2; InPlaceIfPossible; grace 1m
//	  Pod a r1: out r2 61s
//	  = update a (InPlaceUpdate) to Updating revision web-r2
//
// Scenarios are separated by empty lines, and lines with # are comments. The lines below "always" also
// belong to the scenarios that follow. A story is a scenario of steps, with the output of a step below
// it; stories.go plays it. A failure names file and line of the text, and with the flag -update, the
// lines with "=" become what the code prints.
package scenariotest

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/usher-dev/usher/internal/checktest"
)

// Scenario is one scenario of a file.
type Scenario struct {
	Name string
	// Given are its lines, Want the results that it expects.
	Given, Want []string
	// file and line are where its name stands; lines are all its lines, in their order.
	file  string
	line  int
	lines []line
}

// line is a line of a file, without the indentation of a scenario.
type line struct {
	text   string
	number int
}

// wanted returns the result that a line expects.
func (l line) wanted() (result string, ok bool) {
	if l.text == "=" {
		return "", true
	}
	return strings.CutPrefix(l.text, "= ")
}

// Read reads the scenarios of a file.
func Read(t testing.TB, file string) []Scenario {
	t.Helper()
	return Parse(file, string(checktest.Must(os.ReadFile(file))(t)))
}

// Parse reads the scenarios in the text of a file.
func Parse(file, text string) (out []Scenario) {
	var always []line
	for _, block := range blocks(text) {
		if block[0].text == "always" {
			always = indented(block[1:])
			continue
		}
		out = append(out, newScenario(file, block[0], slices.Concat(always, indented(block[1:]))))
	}
	return out
}

// blocks returns the lines of a text between empty ones, without comments.
func blocks(text string) (out [][]line) {
	open := false
	for i, content := range strings.Split(text, "\n") {
		switch {
		case content == "":
			open = false
		case strings.HasPrefix(content, "#"):
		case open:
			last := &out[len(out)-1]
			*last = append(*last, line{content, i + 1})
		default:
			out = append(out, []line{{content, i + 1}})
			open = true
		}
	}
	return out
}

func indented(lines []line) (out []line) {
	for _, l := range lines {
		out = append(out, line{strings.TrimPrefix(l.text, "  "), l.number})
	}
	return out
}

func newScenario(file string, name line, lines []line) Scenario {
	s := Scenario{Name: name.text, file: file, line: name.number, lines: lines}
	for _, l := range lines {
		if result, ok := l.wanted(); ok {
			s.Want = append(s.Want, result)
		} else {
			s.Given = append(s.Given, l.text)
		}
	}
	return s
}

// at returns a place in the scenario's file, in the form that editors and terminals can open.
func (s Scenario) at(line int) string { return s.file + ":" + strconv.Itoa(line) }

// wantedLines returns the lines that expect results.
func (s Scenario) wantedLines() []line {
	return slices.DeleteFunc(slices.Clone(s.lines), func(l line) bool { _, ok := l.wanted(); return !ok })
}

// lastLine returns the number of the scenario's last line.
func (s Scenario) lastLine() int {
	if len(s.lines) == 0 {
		return s.line
	}
	return s.lines[len(s.lines)-1].number
}

// Run runs the scenarios of the files that match a pattern. play gets the lines of a scenario, and
// returns its results.
func Run(t *testing.T, pattern string, play func(t *testing.T, lines []string) []string) {
	t.Helper()
	rewriting := newRewriting(t)
	each(t, pattern, func(t *testing.T, s Scenario) {
		t.Helper()
		defer s.place(t)
		s.compare(t, rewriting, play(t, s.Given))
	})
}

// place logs the place of a scenario that has failed.
func (s Scenario) place(t *testing.T) {
	t.Helper()
	if t.Failed() {
		t.Logf("%s: %q begins here", s.at(s.line), s.Name)
	}
}

// compare reports the first result that is not the expected one, at its line, or has it rewritten.
func (s Scenario) compare(t *testing.T, rewriting *rewriting, have []string) {
	t.Helper()
	lines := s.wantedLines()
	at := firstDifference(s.Want, have)
	switch {
	case at < 0:
	case rewriting != nil:
		rewriting.replace(t, s.file, lines, s.lastLine(), have)
	default:
		number := s.lastLine()
		if at < len(lines) {
			number = lines[at].number
		}
		t.Errorf("%s: in %q: want %s, got %s; all of it (-want +got):\n%s",
			s.at(number), s.Name, quoted(s.Want, at), quoted(have, at), cmp.Diff(s.Want, have))
	}
}

// firstDifference returns the index of the first element that differs; -1 if none does.
func firstDifference(want, have []string) int {
	for i := range max(len(want), len(have)) {
		if i >= len(want) || i >= len(have) || want[i] != have[i] {
			return i
		}
	}
	return -1
}

// quoted returns an element in quotes, or "nothing more" if there are not so many.
func quoted(lines []string, at int) string {
	if at >= len(lines) {
		return "nothing more"
	}
	return strconv.Quote(lines[at])
}

// Table runs a test for each scenario of a file, whose lines are the fields of a T as YAML. play
// returns the one line of its result.
func Table[T any](t *testing.T, file string, play func(t *testing.T, given T) string) {
	t.Helper()
	Run(t, file, func(t *testing.T, lines []string) []string {
		var given T
		checktest.NoError(t, yaml.UnmarshalStrict([]byte(strings.Join(lines, "\n")), &given))
		return []string{play(t, given)}
	})
}

// each runs a test for each scenario of the files that match a pattern.
func each(t *testing.T, pattern string, test func(*testing.T, Scenario)) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios in %s: %v", pattern, err)
	}
	for _, file := range files {
		for _, s := range Read(t, file) {
			t.Run(strings.TrimSuffix(filepath.Base(file), ".txt")+"/"+s.Name, func(t *testing.T) {
				t.Helper()
				test(t, s)
			})
		}
	}
}

// Number reads a number in a scenario.
func Number(text string) int { return must(strconv.Atoi(text)) }

// Duration reads a duration in a scenario.
func Duration(text string) time.Duration { return must(time.ParseDuration(text)) }

func must[T any](value T, err error) T {
	if err != nil {
		panic(err) // A scenario is misspelt.
	}
	return value
}
