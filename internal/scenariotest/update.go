// SPDX-License-Identifier: Apache-2.0

package scenariotest

import (
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/goldentest"
)

// rewriting collects new results of scenarios, and writes them into their files when all have run.
type rewriting struct {
	mu sync.Mutex
	// files has, by file and line, the lines that stand in place of the line; after, those that follow it.
	files map[string]*changes
}

type changes struct {
	instead, after map[int][]string
}

// newRewriting returns nil unless the tests run with -update.
func newRewriting(t *testing.T) *rewriting {
	if !goldentest.Updating() {
		return nil
	}
	r := &rewriting{files: map[string]*changes{}}
	t.Cleanup(func() { r.write(t) })
	return r
}

// replace puts results in place of the wanted lines; if there are none, after a line.
func (r *rewriting) replace(t *testing.T, file string, wanted []line, after int, results []string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.files[file] == nil {
		r.files[file] = &changes{instead: map[int][]string{}, after: map[int][]string{}}
	}
	c := r.files[file]
	common := min(len(wanted), len(results))
	for i, result := range results[:common] {
		set(t, file, c.instead, wanted[i].number, []string{resultLine(result)})
	}
	for _, line := range wanted[common:] {
		set(t, file, c.instead, line.number, nil)
	}
	if len(results) > common {
		if common > 0 {
			after = wanted[common-1].number
		}
		var more []string
		for _, result := range results[common:] {
			more = append(more, resultLine(result))
		}
		set(t, file, c.after, after, more)
	}
}

// set changes a line, which scenarios below "always" share.
func set(t *testing.T, file string, lines map[int][]string, at int, to []string) {
	t.Helper()
	if before, ok := lines[at]; ok && !slices.Equal(before, to) {
		t.Errorf("%s:%d: cannot be rewritten, as scenarios differ here: %q and %q", file, at, before, to)
	}
	lines[at] = to
}

// resultLine returns a result as a line of a file.
func resultLine(result string) string { return strings.TrimRight("  = "+result, " ") }

func (r *rewriting) write(t *testing.T) {
	for file, c := range r.files {
		text := checktest.Must(os.ReadFile(file))(t)
		checktest.NoError(t, os.WriteFile(file, []byte(c.apply(string(text))), 0o600))
	}
}

// apply returns a text with the changes. All other lines stay as they are.
func (c *changes) apply(text string) string {
	var out []string
	for i, old := range strings.Split(text, "\n") {
		lines, changed := c.instead[i+1]
		if !changed {
			lines = []string{old}
		}
		out = append(append(out, lines...), c.after[i+1]...)
	}
	return strings.Join(out, "\n")
}
