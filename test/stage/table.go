// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/usher-dev/usher/internal/list"
)

// Paint is a text style.
type Paint string

// The styles, as parameters of the terminal's SGR sequence.
const (
	Plain  Paint = ""
	Bold   Paint = "1"
	Faint  Paint = "2"
	Red    Paint = "1;31"
	Green  Paint = "32"
	Yellow Paint = "33"
)

// Style is whether escape sequences are understood.
type Style bool

// StyleOf returns what an open file can show.
func StyleOf(out *os.File) Style {
	return Style(term.IsTerminal(int(out.Fd())) && os.Getenv("TERM") != "dumb" && os.Getenv("NO_COLOR") == "")
}

// Paint applies a style to a text, if colours are supported.
func (s Style) Paint(p Paint, text string) string {
	if !s || p == Plain || text == "" {
		return text
	}
	return "\x1b[" + string(p) + "m" + text + "\x1b[0m"
}

// Thousands formats a number with commas between groups of three digits.
func Thousands(n int) string { return message.NewPrinter(language.English).Sprintf("%d", n) }

// Seconds formats a duration in seconds.
func Seconds(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

// Milliseconds formats a duration in milliseconds.
func Milliseconds(d time.Duration) string {
	if d < 10*time.Millisecond {
		return fmt.Sprintf("%.1f ms", 1000*d.Seconds())
	}
	return fmt.Sprintf("%.0f ms", 1000*d.Seconds())
}

// Counts formats counts, the largest first; "-" if there are none.
func Counts(counts map[string]int) string {
	parts := []string{}
	for _, name := range slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(counts[b]-counts[a], strings.Compare(a, b))
	}) {
		parts = append(parts, Thousands(counts[name])+" × "+name)
	}
	return cmp.Or(strings.Join(parts, ", "), "-")
}

// Column is one column of a table: its heading, and whether it is aligned to the right, for
// numbers.
type Column struct {
	Title string
	Right bool
}

// Cell is one field of a table.
type Cell struct {
	Text  string
	Paint Paint
}

// Cells returns cells of plain text.
func Cells(texts ...string) []Cell {
	row := make([]Cell, len(texts))
	for i, text := range texts {
		row[i].Text = text
	}
	return row
}

// Table is a table for people: on a terminal, in a file, or in a document. An empty row
// is an empty line. Nothing is cut: a cut table says less than a wrapped one.
type Table struct {
	Columns []Column
	Rows    [][]Cell
}

// Lines lays out the table for a terminal or a file. text/tabwriter would not do: it
// aligns all columns alike and counts escape sequences.
func (t Table) Lines(style Style) (lines []string) {
	widths, heading := make([]int, len(t.Columns)), make([]Cell, len(t.Columns))
	for i, column := range t.Columns {
		heading[i] = Cell{column.Title, Faint}
	}
	rows := append([][]Cell{heading}, t.Rows...)
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell.Text))
		}
	}
	for _, row := range rows {
		cells := []string{}
		for i, cell := range row {
			text, padding := style.Paint(cell.Paint, cell.Text), strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell.Text))
			if t.Columns[i].Right {
				text, padding = padding, text
			}
			cells = append(cells, text+padding)
		}
		lines = append(lines, strings.TrimRight(strings.Join(cells, "  "), " "))
	}
	return lines
}

// Markdown writes the table for a document.
func (t Table) Markdown() string {
	titles, rules := []string{}, []string{}
	for _, column := range t.Columns {
		rule := "---"
		if column.Right {
			rule = "---:"
		}
		titles, rules = append(titles, column.Title), append(rules, rule)
	}
	text := markdownRow(titles) + markdownRow(rules)
	for _, row := range t.Rows {
		if len(row) > 0 {
			text += markdownRow(list.Map(row, func(cell Cell) string { return cell.Text }))
		}
	}
	return text
}

func markdownRow(cells []string) string { return "| " + strings.Join(cells, " | ") + " |\n" }
