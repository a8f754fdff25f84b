// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/usher-dev/usher/internal/checktest"
)

// TestTableOfValues: there is a row for each value with a comment; a value without one is an error that
// names it.
func TestTableOfValues(t *testing.T) {
	table := checktest.Must(tableOf([]byte(`# About the file.

# The image,
# without a | tag.
image: "" # not this
guard:
  # Whether <it> runs: docs/a/b.md.
  enabled: true
# What it may take.
resources:
  limits: {memory: 1Gi} # not this
`)))(t)
	checktest.Same(t, "the table", `| Value | Default | Meaning |
|---|---|---|
| `+"`image` | `\"\"`"+` | The image, without a \| tag. |
| `+"`guard.enabled` | `true`"+` | Whether &lt;it> runs: [docs/a/b.md](https://usher.dev/a/b.html). |
| `+"`resources` | `{limits: {memory: 1Gi}}`"+` | What it may take. |
`, table)
	if _, err := tableOf([]byte("a:\n  # Said.\n  b: 1\n  c: 2\n")); err == nil || !strings.Contains(err.Error(), "line 4: no comment says what a.c means") {
		t.Errorf("a value without a comment: %v", err)
	}
}

// TestReadmeHasTheTable: the chart's README is up to date.
func TestReadmeHasTheTable(t *testing.T) {
	values := checktest.Must(os.ReadFile(filepath.Join(chartFolder, "values.yaml")))(t)
	text := string(checktest.Must(os.ReadFile(filepath.Join(chartFolder, "README.md")))(t))
	if !strings.Contains(text, tableBegins+checktest.Must(tableOf(values))(t)+tableEnds) {
		t.Error("README.md has another table of values: run make generate")
	}
}
