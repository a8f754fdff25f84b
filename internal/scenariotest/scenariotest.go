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
// "always" also belongs to the scenarios that follow.
package scenariotest

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Run runs the scenarios of the files that match a pattern. play gets the lines of a
// scenario, and returns what comes of it.
func Run(t *testing.T, pattern string, play func(t *testing.T, lines []string) []string) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios in %s: %v", pattern, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { runFile(t, string(text), play) })
	}
}

func runFile(t *testing.T, text string, play func(t *testing.T, lines []string) []string) {
	var always []string
	for scenario := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		lines := slices.DeleteFunc(strings.Split(scenario, "\n"), func(line string) bool { return strings.HasPrefix(line, "#") })
		switch {
		case len(lines) == 0:
		case lines[0] == "always":
			always = lines[1:]
		default:
			t.Run(lines[0], func(t *testing.T) { runOne(t, slices.Concat(always, lines[1:]), play) })
		}
	}
}

func runOne(t *testing.T, lines []string, play func(t *testing.T, lines []string) []string) {
	var given, want []string
	for _, line := range lines {
		if result, ok := strings.CutPrefix(line, "  = "); ok {
			want = append(want, result)
		} else {
			given = append(given, strings.TrimPrefix(line, "  "))
		}
	}
	if diff := cmp.Diff(want, play(t, given)); diff != "" {
		t.Errorf("what comes of it differs (-want +got):\n%s", diff)
	}
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
