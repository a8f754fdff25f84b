// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
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
	// width and height bound a screen that is drawn anew; 0 for none.
	width, height int
	// lines is how many have been printed.
	lines int
}

func (s *session) page() *page {
	return &page{out: s.Out, colour: isTerminal(s.Out) && os.Getenv("NO_COLOR") == ""}
}

func isTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// room is how many lines of a screen are left; the cursor takes one.
func (p *page) room() int { return p.height - p.lines - 1 }

func (p *page) line(colour, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	p.lines += 1 + strings.Count(text, "\n")
	if runes := []rune(text); p.width > 0 && len(runes) > p.width {
		text = string(runes[:p.width-1]) + "…"
	}
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

// outputs gives a command the flag --output.
func outputs(command *cobra.Command, output *string, formats ...string) *cobra.Command {
	all := strings.Join(formats, ", ")
	command.Flags().FuncP("output", "o", "print in that `format`: "+all, func(format string) error {
		if !slices.Contains(formats, format) {
			return fmt.Errorf("it is none of %s", all)
		}
		*output = format
		return nil
	})
	completesFlag(command, "output", func(context.Context, []string, string) []string { return formats })
	return command
}

// answer prints a value in the format that was asked for.
func (s *session) answer(format string, value any, forPeople func(*page), names ...string) error {
	return s.page().answer(format, value, forPeople, names...)
}

// answer prints a value for people, or for programs, which may want names alone.
func (p *page) answer(format string, value any, forPeople func(*page), names ...string) error {
	switch format {
	case "name":
		for _, name := range names {
			p.line(plain, "%s", name)
		}
	case "json":
		e := json.NewEncoder(p.out)
		e.SetIndent("", "  ")
		return e.Encode(value)
	case "yaml":
		text, err := yaml.Marshal(value)
		if err == nil {
			_, err = p.out.Write(text)
		}
		return err
	default:
		forPeople(p)
	}
	return nil
}

// ago is how long ago something was, as kubectl writes it.
func ago(now, at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return duration.HumanDuration(now.Sub(at))
}
