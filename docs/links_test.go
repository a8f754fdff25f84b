// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/usher-dev/usher/internal/checktest"
)

var (
	link      = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading   = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	codeBlock = regexp.MustCompile("(?ms)^ *```.*?^ *```$|`[^`\n]*`")
	dropped   = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	step      = regexp.MustCompile("(?s)<!-- story: ([^>]*) -->\n```sh\n(.*?)\n```")
)

// TestLinks: every link between files leads to a file, and to a heading in it, by GitHub's
// rules. The site has the same headings.
func TestLinks(t *testing.T) {
	pages, err := filepath.Glob("*.md")
	more, _ := filepath.Glob("*/*.md")
	pages = slices.Concat(pages, more, []string{"../README.md", "../AGENTS.md", "../CONTRIBUTING.md"})
	if err != nil || len(more) == 0 {
		t.Fatalf("pages: %v, %v", pages, err)
	}
	for _, page := range pages {
		for _, found := range link.FindAllStringSubmatch(codeBlock.ReplaceAllString(read(t, page), ""), -1) {
			if strings.Contains(found[1], "://") {
				continue
			}
			file, anchor, _ := strings.Cut(found[1], "#")
			target := page
			if file != "" {
				target = filepath.Join(filepath.Dir(page), file)
			}
			if matches, _ := filepath.Glob(target); len(matches) == 0 {
				t.Errorf("%s: there is no %s", page, found[1])
			} else if anchor != "" && !slices.Contains(headings(t, target), anchor) {
				t.Errorf("%s: %s has no such heading", page, found[1])
			}
		}
	}
}

// TestLinksToTheSite: what is installed or packed without these pages leads to the site, and each such link to a page
// of it, and to a heading there.
func TestLinksToTheSite(t *testing.T) {
	checked := 0
	for _, file := range []string{"../charts/usher/README.md", "../charts/usher/templates/NOTES.txt", "../charts/usher/files/alerts.yaml"} {
		for _, found := range regexp.MustCompile(`https://usher\.dev/([a-z/-]+)\.html(?:#([a-z0-9-]+))?`).FindAllStringSubmatch(read(t, file), -1) {
			checked++
			page := found[1] + ".md"
			if matches, _ := filepath.Glob(page); len(matches) == 0 {
				t.Errorf("%s: there is no %s", file, page)
			} else if found[2] != "" && !slices.Contains(headings(t, page), found[2]) {
				t.Errorf("%s: %s has no such heading", file, found[0])
			}
		}
	}
	if checked < 20 {
		t.Errorf("%d links were found", checked)
	}
}

// headings are the anchors of a page.
func headings(t *testing.T, page string) (anchors []string) {
	t.Helper()
	text := regexp.MustCompile("(?ms)^ *```.*?^ *```$").ReplaceAllString(read(t, page), "")
	for _, found := range heading.FindAllStringSubmatch(text, -1) {
		plain := dropped.ReplaceAllString(strings.ToLower(link.ReplaceAllString(found[1], "")), "")
		anchors = append(anchors, strings.ReplaceAll(plain, " ", "-"))
	}
	return anchors
}

// TestEveryPageIsListed: README.md of this folder, from which the site takes its list of
// pages, has all of them.
func TestEveryPageIsListed(t *testing.T) {
	list := read(t, "README.md")
	err := filepath.WalkDir(".", func(name string, _ fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(name) == ".md" && name != "README.md" && !strings.Contains(list, "]("+name+")") {
			t.Errorf("README.md does not list %s", name)
		}
		return err
	})
	checktest.NoError(t, err)
}

// TestReadmeIsTested: the commands of the project's README are those of pages that a story
// follows, word for word.
func TestReadmeIsTested(t *testing.T) {
	pages := read(t, "first-deployment.md") + read(t, "first-cloneset.md")
	steps := step.FindAllStringSubmatch(read(t, "../README.md"), -1)
	for _, found := range steps {
		if !strings.Contains(pages, found[0]) {
			t.Errorf("the step %q of README.md is not that of first-deployment.md or first-cloneset.md", found[1])
		}
	}
	if len(steps) < 6 {
		t.Errorf("%d steps of README.md were understood", len(steps))
	}
}
