// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// page has the list below mark; the part above it is written by hand.
const page, mark = "docs/stories.md", "<!-- Below this line: make generate -->\n"

// writePage writes the list into the page.
func writePage(root string, scopes []*scope) error {
	file := filepath.Join(root, page)
	before, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	after, err := replaced(string(before), scopes)
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(after), 0o644) //nolint:gosec // a page like the others
}

// replaced returns the page with another list.
func replaced(before string, scopes []*scope) (string, error) {
	head, _, ok := strings.Cut(before, mark)
	if !ok {
		return "", fmt.Errorf("%s lacks the line %q", page, mark)
	}
	return head + mark + markdown(scopes), nil
}

// markdown returns the list as a section with a table for each scope.
func markdown(scopes []*scope) string {
	var b strings.Builder
	for _, s := range scopes {
		fmt.Fprintf(&b, "\n### %s\n\n%s\n\n| Word | Does |\n|---|---|\n", s.folder, s.about())
		for _, w := range s.sorted() {
			fmt.Fprintf(&b, "| `%s` | %s |\n", escape(w.step()), escape(w.Does))
		}
		if len(s.facts) > 0 {
			b.WriteString("\n| Fact | True if |\n|---|---|\n")
		}
		for _, fact := range s.facts {
			fmt.Fprintf(&b, "| `%s` | %s |\n", escape(fact.Name), escape(fact.Does))
		}
	}
	return b.String()
}

// text returns the list for a terminal.
func text(scopes []*scope) string {
	var b strings.Builder
	for _, s := range scopes {
		fmt.Fprintf(&b, "%s: %s\n\n", s.folder, s.about())
		for _, w := range s.sorted() {
			fmt.Fprintf(&b, "  %s\n%s", w.step(), wrapped("      ", w.Does+"; "+w.file, 80))
		}
		for _, fact := range s.facts {
			fmt.Fprintf(&b, "  FACT: %s\n%s", fact.Name, wrapped("      ", "true if "+fact.Does, 80))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// about says how many stories there are, and which other words they can use.
func (s *scope) about() string {
	switch {
	case s.folder == sharedFolder:
		return "Words about any object. The folders that name this one can use them."
	case len(s.shared) > 0:
		return fmt.Sprintf("%d stories, which can use the words of %s as well.", s.stories, sharedFolder)
	}
	return fmt.Sprintf("%d stories.", s.stories)
}

// sorted returns the words of a scope by name.
func (s *scope) sorted() []*word {
	return slices.SortedFunc(slices.Values(s.words), func(a, b *word) int { return cmp.Compare(a.Name, b.Name) })
}

// step shows how a step with the word looks.
func (w *word) step() string { return strings.TrimSpace(w.Name + " " + w.Args) }

func escape(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

// wrapped returns a text in lines of at most some columns.
func wrapped(indent, text string, columns int) string {
	var b strings.Builder
	line := indent
	for word := range strings.FieldsSeq(text) {
		if len(line)+len(word) > columns && line != indent {
			b.WriteString(strings.TrimRight(line, " ") + "\n")
			line = indent
		}
		line += word + " "
	}
	b.WriteString(strings.TrimRight(line, " ") + "\n")
	return b.String()
}
