// SPDX-License-Identifier: Apache-2.0

// Package scenariotest runs tests that are written as text. A scenario is its name, below it
// what is there or what happens, and after "=" what comes of it:
//
//	grace over
//	  Set: r2; InPlaceIfPossible; grace 1m
//	  Pod a r1: out r2 61s
//	  = update a (InPlaceUpdate) to Updating revision web-r2
//
// Scenarios are separated by empty lines, and lines with # are comments. What is below
// "always" also belongs to the scenarios that follow. A story is a scenario of steps that check
// what they say themselves.
package scenariotest

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/usher-dev/usher/internal/checktest"
)

// Scenario is one scenario of a file.
type Scenario struct {
	Name string
	// Given are its lines, Want those that are to come of it.
	Given, Want []string
}

// Read reads the scenarios of a file.
func Read(t testing.TB, file string) []Scenario {
	t.Helper()
	text := checktest.Must(os.ReadFile(file))(t)
	var out []Scenario
	var always []string
	for scenario := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
		lines := slices.DeleteFunc(strings.Split(scenario, "\n"), func(line string) bool { return strings.HasPrefix(line, "#") })
		switch {
		case len(lines) == 0:
		case lines[0] == "always":
			always = lines[1:]
		default:
			s := Scenario{Name: lines[0]}
			for _, line := range slices.Concat(always, lines[1:]) {
				if result, ok := strings.CutPrefix(line, "  = "); ok {
					s.Want = append(s.Want, result)
				} else {
					s.Given = append(s.Given, strings.TrimPrefix(line, "  "))
				}
			}
			out = append(out, s)
		}
	}
	return out
}

// Run runs the scenarios of the files that match a pattern. play gets the lines of a
// scenario, and returns what comes of it.
func Run(t *testing.T, pattern string, play func(t *testing.T, lines []string) []string) {
	t.Helper()
	each(t, pattern, func(t *testing.T, s Scenario) {
		checktest.Same(t, "what comes of it", s.Want, play(t, s.Given))
	})
}

// Table runs a test for each scenario of a file, whose lines are the fields of a T as YAML. play
// returns the one line that comes of it.
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
			t.Run(strings.TrimSuffix(filepath.Base(file), ".txt")+"/"+s.Name, func(t *testing.T) { test(t, s) })
		}
	}
}

// Names are what a story calls something: {a} in a step stands for what is called a.
type Names struct{ pairs []string }

// Call names something, or something else than before.
func (n *Names) Call(name, what string) {
	n.pairs = append([]string{"{" + name + "}", what}, n.pairs...)
}

// Expand replaces names.
func (n *Names) Expand(text string) string { return strings.NewReplacer(n.pairs...).Replace(text) }

// Named is what has a name, and whether anything has.
func (n *Names) Named(name string) (what string, ok bool) {
	text := "{" + name + "}"
	what = n.Expand(text)
	return what, what != text
}

// Tell plays the scenarios of the files that match a pattern as stories: step by step, up to the
// first that fails. A step begins with the longest of the words that fits, which does what the rest
// of it says; deeper lines belong to it.
func Tell[T interface{ Expand(string) string }](t *testing.T, pattern string, words map[string]func(T, string), begin func(*testing.T) T) {
	t.Helper()
	each(t, pattern, func(t *testing.T, told Scenario) {
		story := begin(t)
		for lines := told.Given; len(lines) > 0 && !t.Failed(); {
			end := 1
			for end < len(lines) && strings.HasPrefix(lines[end], " ") {
				end++
			}
			step(t, story, words, strings.Join(lines[:end], "\n"))
			lines = lines[end:]
		}
	})
}

func step[T interface{ Expand(string) string }](t *testing.T, story T, words map[string]func(T, string), text string) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("that was in the step\n%s", text)
		}
	}()
	known := slices.SortedFunc(maps.Keys(words), func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	for _, word := range known {
		if rest, ok := strings.CutPrefix(text, word); ok && (rest == "" || rest[0] == ' ' || rest[0] == '\n') {
			words[word](story, story.Expand(strings.TrimLeft(rest, " ")))
			return
		}
	}
	t.Fatalf("the step begins with none of %q", known)
}

// Say makes words about something true, such as "unready; cost 5". Each begins with its name.
func Say[T any](words map[string]func(something T, value string), something T, about string) error {
	for word := range strings.SplitSeq(about, "; ") {
		if word == "" {
			continue
		}
		name, value, _ := strings.Cut(word, " ")
		do, known := words[name]
		if !known {
			return fmt.Errorf("%q is none of %v", name, slices.Sorted(maps.Keys(words)))
		}
		do(something, value)
	}
	return nil
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
