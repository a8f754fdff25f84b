// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/yaml"
)

// The quiet colours: red is for trouble alone.
const (
	plain = ""
	red   = "\x1b[31m"
	dim   = "\x1b[2m"
	bold  = "\x1b[1m"
	reset = "\x1b[0m"
)

// page collects the lines of one answer. Colours are per line, so that columns align.
type page struct {
	out    io.Writer
	colour bool
}

func (s *session) page() *page {
	return &page{out: s.Out, colour: isTerminal(s.Out) && os.Getenv("NO_COLOR") == ""}
}

func isTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

func (p *page) line(colour, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if p.colour && colour != plain {
		text = colour + text + reset
	}
	tell(p.out, "%s\n", text)
}

// tell writes to the user, who is gone if that fails.
func tell(out io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(out, format, args...) }

// row is one line of a table.
type row struct {
	colour string
	cells  []string
}

// table prints rows below a header.
func (p *page) table(header []string, rows []row) {
	var text strings.Builder
	w := printers.GetNewTabWriter(&text)
	tell(w, "%s\n", strings.Join(header, "\t"))
	for _, r := range rows {
		tell(w, "%s\n", strings.Join(r.cells, "\t"))
	}
	_ = w.Flush() // into memory
	for i, line := range strings.Split(strings.TrimRight(text.String(), "\n"), "\n") {
		colour := dim
		if i > 0 {
			colour = rows[i-1].colour
		}
		p.line(colour, "%s", strings.TrimRight(line, " "))
	}
}

// encode prints a value for programs; false if the format is for people.
func (p *page) encode(format string, value any) (bool, error) {
	switch format {
	case "", "wide":
		return false, nil
	case "json":
		e := json.NewEncoder(p.out)
		e.SetIndent("", "  ")
		return true, e.Encode(value)
	case "yaml":
		text, err := yaml.Marshal(value)
		if err == nil {
			_, err = p.out.Write(text)
		}
		return true, err
	}
	return true, fmt.Errorf("--output: %q is none of json, yaml, wide, name", format)
}

// ago is how long ago something was, as kubectl writes it.
func ago(now, at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return duration.HumanDuration(now.Sub(at))
}
