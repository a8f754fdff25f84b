// SPDX-License-Identifier: Apache-2.0

package view

import (
	"strings"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// mostTypos is by how many characters a misspelt key may differ from the one that was meant.
const mostTypos = 2

// meant returns the key that Registrations answer and that differs from an unanswered one by a typing
// error; empty if there is none. Of several keys it returns the nearest, and of equally near ones the
// first by name.
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

// didYouMean returns the end of a sentence about a key that nobody answers.
func didYouMean(key string, registrations []*usherv1alpha1.Registration) string {
	if one := meant(key, registrations); one != "" {
		return "did you mean " + one + "?"
	}
	return ""
}

// distance returns how many characters have to be changed, added, removed, or swapped with their
// neighbour, to turn one text into another; at most mostTypos + 1.
func distance(a, b string) int { return typos(a, b, mostTypos) }

// typos returns the distance, at most most + 1. For each typing error it compares four shorter pairs.
func typos(a, b string, most int) int {
	same := 0
	for same < min(len(a), len(b)) && a[same] == b[same] {
		same++
	}
	if a, b = a[same:], b[same:]; a == b {
		return 0
	}
	if most == 0 {
		return 1
	}
	rest := func(ofA, ofB int) int {
		if ofA > len(a) || ofB > len(b) {
			return most
		}
		return typos(a[ofA:], b[ofB:], most-1)
	}
	least := min(rest(1, 1), rest(1, 0), rest(0, 1))
	if len(a) > 1 && len(b) > 1 && a[0] == b[1] && a[1] == b[0] {
		least = min(least, rest(2, 2))
	}
	return 1 + least
}
