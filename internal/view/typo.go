// SPDX-License-Identifier: Apache-2.0

package view

import (
	"strings"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// mostTypos is how many characters a misspelt key differs by from the one that was meant.
const mostTypos = 2

// meant is the key that Registrations answer and that differs from an unanswered one by a typing error; empty if
// there is none. Of several, the nearest counts, and of those the first by name.
func meant(key string, registrations []*usherv1alpha1.Registration) (best string) {
	name, suffix, ofUsher := strings.Cut(key, usherv1alpha1.HookDomain)
	least := mostTypos + 1
	compare := func(text, other, answered string) {
		// A short text differs from another short one by little, too.
		d := distance(text, other)
		if answered != key && 3*d <= len(other) && (d < least || d == least && d <= mostTypos && answered < best) {
			best, least = answered, d
		}
	}
	for _, r := range registrations {
		if ofUsher {
			compare(name, r.Name, r.Name+usherv1alpha1.HookDomain+suffix)
		}
		for _, one := range []string{r.Spec.Hooks.PreNormal, r.Spec.Hooks.InPlaceUpdate, r.Spec.Hooks.PreDelete, r.Spec.Hooks.Created} {
			if one != "" {
				compare(key, one, one)
			}
		}
	}
	return best
}

// didYouMean ends a sentence about a key that nobody answers.
func didYouMean(key string, registrations []*usherv1alpha1.Registration) string {
	if one := meant(key, registrations); one != "" {
		return "did you mean " + one + "?"
	}
	return ""
}

// distance is how many characters have to be changed, added, removed, or swapped with their neighbour, to make one
// text of another; more than mostTypos counts as one more than that. It looks at no more than it takes to know.
func distance(a, b string) int {
	if d := len(a) - len(b); d > mostTypos || d < -mostTypos {
		return mostTypos + 1
	}
	before, last, next := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		before[j], last[j], next[j] = mostTypos+1, j, mostTypos+1
	}
	for i := 1; i <= len(a); i++ {
		for j := max(0, i-mostTypos-1); j <= min(len(b), i+mostTypos+1); j++ {
			next[j] = mostTypos + 1
		}
		if i <= mostTypos {
			next[0] = i
		}
		for j := max(1, i-mostTypos); j <= min(len(b), i+mostTypos); j++ {
			change := last[j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			next[j] = min(change, last[j]+1, next[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				next[j] = min(next[j], before[j-2]+1)
			}
		}
		before, last, next = last, next, before
	}
	return min(last[len(b)], mostTypos+1)
}
