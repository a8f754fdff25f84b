// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/usher-dev/usher/internal/checktest"
)

// tooLong is how many words a sentence must stay below: readers lose longer ones.
const tooLong = 45

var (
	inlineCode  = regexp.MustCompile("`[^`]*`")
	linkOrImage = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
	htmlTag     = regexp.MustCompile(`<[^>]*>`)
	listItem    = regexp.MustCompile(`^\s*(?:[-*+]|\d+\.)\s+`)
	sentenceEnd = regexp.MustCompile(`([.!?][)"”*_]*)\s+`)
	wordSign    = regexp.MustCompile(`[\p{L}\p{N}]`)
	noSubject   = regexp.MustCompile(`^(?:What|Who) (?:is|are) .*[^?]$|^That which `)
)

// sentence is a sentence of a page, with the line of its paragraph, item or cell.
type sentence struct {
	line int
	text string
}

// sentences returns the sentences of a Markdown page, without code blocks and comments. A heading, an
// item of a list and a cell of a table are read separately.
func sentences(page string) (all []sentence) {
	var block []string
	begin, code := 0, false
	end := func() {
		all = append(all, split(begin, strings.Join(block, " "))...)
		block = nil
	}
	for i, line := range strings.Split(page, "\n") {
		trimmed := strings.TrimSpace(strings.TrimLeft(line, "> "))
		switch {
		case strings.HasPrefix(trimmed, "```"):
			end()
			code = !code
		case code:
		case trimmed == "" || strings.HasPrefix(trimmed, "<!--"):
			end()
		case strings.HasPrefix(trimmed, "#"):
			end()
			all = append(all, split(i+1, strings.TrimLeft(trimmed, "# "))...)
		case strings.HasPrefix(trimmed, "|"):
			end()
			for _, cell := range cells(trimmed) {
				all = append(all, split(i+1, cell)...)
			}
		default:
			if listItem.MatchString(line) {
				end()
				trimmed = listItem.ReplaceAllString(line, "")
			}
			if len(block) == 0 {
				begin = i + 1
			}
			block = append(block, trimmed)
		}
	}
	end()
	return all
}

// cells returns the cells of a table's row.
func cells(row string) []string {
	const escaped = "\x00"
	return strings.Split(strings.ReplaceAll(strings.Trim(row, "|"), `\|`, escaped), "|")
}

// split splits a text into sentences. A piece of code is one word, and of a link only its text counts.
func split(line int, text string) (all []sentence) {
	text = inlineCode.ReplaceAllString(text, "code")
	text = linkOrImage.ReplaceAllString(text, "$1")
	text = htmlTag.ReplaceAllString(text, "")
	for one := range strings.SplitSeq(sentenceEnd.ReplaceAllString(text, "$1\n"), "\n") {
		if one = strings.TrimSpace(one); one != "" {
			all = append(all, sentence{line, one})
		}
	}
	return all
}

// words counts the words that have a letter or a digit.
func words(text string) (count int) {
	for word := range strings.FieldsSeq(text) {
		if wordSign.MatchString(word) {
			count++
		}
	}
	return count
}

// faults returns the sentences of a page that a reader would have to read twice.
func faults(name, page string) (found []string) {
	for _, s := range sentences(page) {
		if n := words(s.text); n >= tooLong {
			found = append(found, fmt.Sprintf("%s:%d: a sentence of %d words, split it: %q", name, s.line, n, s.text))
		}
		if noSubject.MatchString(s.text) {
			found = append(found, fmt.Sprintf("%s:%d: begin with the thing that the sentence is about: %q", name, s.line, s.text))
		}
	}
	return found
}

func TestSentences(t *testing.T) {
	long := strings.TrimSpace(strings.Repeat("word ", tooLong))
	short := strings.TrimSpace(strings.Repeat("word ", tooLong-1))
	page := strings.Join([]string{
		"# " + short, "", short + ".", short + `. "` + short + `."`, "",
		"- " + short, "- " + short, "", "```", long, "```", "",
		"| " + short + " | " + short + " |", "|---|---|", "",
		short + " `" + long + "`.",
		"", "> " + long + ".", "", "- one", "  " + long, "", "| one | " + long + " |", "",
		"What is fast?", "", "What is fast stays. It does.", "", "It does. That which is fast stays.",
	}, "\n")
	lines := []string{}
	for _, fault := range faults("a.md", page) {
		at, _, _ := strings.Cut(fault, `: "`)
		lines = append(lines, at)
	}
	checktest.Same(t, "faults", []string{
		"a.md:16: a sentence of 45 words, split it", "a.md:18: a sentence of 45 words, split it",
		"a.md:20: a sentence of 46 words, split it", "a.md:23: a sentence of 45 words, split it",
		"a.md:27: begin with the thing that the sentence is about", "a.md:29: begin with the thing that the sentence is about",
	}, lines)
}

// TestDocumentsAreReadable: every sentence of the documents is short, and names its subject.
func TestDocumentsAreReadable(t *testing.T) {
	pages := []string{"../../README.md"}
	err := filepath.WalkDir("../../docs", func(name string, _ fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(name) == ".md" {
			pages = append(pages, name)
		}
		return err
	})
	checktest.NoError(t, err)
	slices.Sort(pages)
	read := 0
	for _, name := range pages {
		page := string(checktest.Must(os.ReadFile(name))(t))
		read += len(sentences(page))
		for _, fault := range faults(strings.TrimPrefix(filepath.ToSlash(name), "../../"), page) {
			t.Error(fault)
		}
	}
	if read < 2000 {
		t.Errorf("%d sentences were found", read)
	}
}
