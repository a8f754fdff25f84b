// SPDX-License-Identifier: Apache-2.0

package scenariotest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Word is a word that a step of a story can begin with. docs/stories.md lists the words of all stories;
// tools/words writes that list from the tables in the source.
type Word[S any] struct {
	// Name begins the step. Args shows its arguments, with those that a story chooses in capitals. Does
	// describes its effect.
	Name, Args, Does string
	// Until means that the step is taken again and again until it prints the expected output.
	Until bool
	// Optional means that the output of the step is compared only if there is an expected one.
	Optional bool
	// Run gets the rest of the step.
	Run func(story S, args string)
}

// Beginning returns the longest of some words with which a step begins, and the rest of the step.
func Beginning(names []string, step string) (name, rest string, ok bool) {
	for _, candidate := range names {
		after, begins := strings.CutPrefix(step, candidate)
		if begins && (after == "" || after[0] == ' ' || after[0] == '\n') && (!ok || len(candidate) > len(name)) {
			name, rest, ok = candidate, strings.TrimLeft(after, " "), true
		}
	}
	return name, rest, ok
}

// Twice returns the names that occur more than once.
func Twice(names []string) (out []string) {
	sorted := slices.Sorted(slices.Values(names))
	for i, name := range sorted {
		if i > 0 && name == sorted[i-1] && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// namesOf returns the names of words.
func namesOf[S any](words []Word[S]) (names []string) {
	for _, word := range words {
		names = append(names, word.Name)
	}
	return names
}

// similar returns the three names that are most like the beginning of a step.
func similar(names []string, step string) []string {
	distance := func(name string) int { return edits(name, step[:min(len(name), len(step))]) }
	sorted := slices.SortedFunc(slices.Values(names), func(a, b string) int {
		return cmp.Or(distance(a)-distance(b), len(a)-len(b), strings.Compare(a, b))
	})
	return sorted[:min(3, len(sorted))]
}

// edits returns how many bytes of a have to be added, removed or changed to turn it into b.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// Say applies words to something, such as "unready; cost 5". Each begins with its name.
func Say[T any](words map[string]func(something T, value string), something T, about string) error {
	for word := range strings.SplitSeq(about, "; ") {
		if word == "" {
			continue
		}
		name, value, _ := strings.Cut(word, " ")
		do, known := words[name]
		if !known {
			all := slices.Sorted(maps.Keys(words))
			return fmt.Errorf("%q is no word here; the nearest are %q of %d", name, similar(all, name), len(all))
		}
		do(something, value)
	}
	return nil
}
