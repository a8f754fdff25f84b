// SPDX-License-Identifier: Apache-2.0

package view

import "strings"

// verbs are those with which what a Pod waits for begins, and their plurals.
var verbs = map[string]string{
	"is": "are", "has": "have", "was": "were", "waits": "wait", "stays": "stay", "leaves": "leave", "ends": "end", "serves": "serve",
}

// Several says of several Pods what Wait.What says of one: "is ready, and callers do not find it" becomes "are
// ready, and callers do not find them". What follows a colon stays, as it is about one Pod or somebody else's text.
func Several(what string) string {
	own, rest, found := strings.Cut(what, ": ")
	words := strings.Split(own, " ")
	for i := range words {
		// The verb is the Pods' at the beginning, after ", and", and after "it".
		first := i == 0 || words[i-1] == "they" || i > 1 && words[i-1] == "and" && strings.HasSuffix(words[i-2], ",")
		word := strings.TrimRight(words[i], ",;")
		end := words[i][len(word):]
		subject := i+1 < len(words) && verbs[words[i+1]] != ""
		switch {
		case first && verbs[word] != "":
			word = verbs[word]
		case word == "it" && end == "" && subject:
			word = "they"
		case word == "it":
			word = "them"
		case word == "its":
			word = "their"
		}
		words[i] = word + end
	}
	own = strings.Join(words, " ")
	if !found {
		return own
	}
	return own + ": " + rest
}
