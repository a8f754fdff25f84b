// SPDX-License-Identifier: Apache-2.0

package view

import "strings"

// verbs are the verbs in texts of waits, with their plurals.
var verbs = map[string]string{
	"is": "are", "has": "have", "was": "were", "waits": "wait", "stays": "stay", "leaves": "leave", "ends": "end", "serves": "serve",
}

// Several turns Wait.What of one Pod into a text about several: "is ready, and callers do not find it"
// becomes "are ready, and callers do not find them". The part after a colon stays as it is: it is about
// one Pod, or another program's text.
func Several(what string) string {
	own, rest, found := strings.Cut(what, ": ")
	words := strings.Split(own, " ")
	for i := range words {
		word := strings.TrimRight(words[i], ",;")
		words[i] = plural(word, words, i) + words[i][len(word):]
	}
	own = strings.Join(words, " ")
	if !found {
		return own
	}
	return own + ": " + rest
}

// plural returns the plural of word, which is the one at i without punctuation after it.
func plural(word string, words []string, i int) string {
	switch {
	case verbs[word] != "" && ofPods(words[:i]):
		return verbs[word]
	case word == "it" && i+1 < len(words) && verbs[words[i+1]] != "":
		return "they"
	case word == "it":
		return "them"
	case word == "its":
		return "their"
	}
	return word
}

// ofPods reports whether the subject of a verb after these words is the Pods: at the beginning, after
// ", and", and after "they".
func ofPods(before []string) bool {
	n := len(before)
	switch {
	case n == 0:
		return true
	case before[n-1] == "they":
		return true
	}
	return n > 1 && before[n-1] == "and" && strings.HasSuffix(before[n-2], ",")
}
