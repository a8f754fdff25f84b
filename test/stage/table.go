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
	Cyan   Paint = "36"
)

// Style is what the output can show. The zero value is a file.
type Style struct {
	// Width and Height are the numbers of cells of a line and of lines; 0 means any.
	Width, Height int
	// Color reports whether escape sequences are understood.
	Color bool
}

// StyleOf returns what an open file can show; a file that is no terminal, or one that
// cannot move its cursor, has no width.
func StyleOf(out *os.File, getenv func(string) string) Style {
	if !term.IsTerminal(int(out.Fd())) || getenv("TERM") == "dumb" {
		return Style{}
	}
	width, height, err := term.GetSize(int(out.Fd()))
	if err != nil {
		return Style{}
	}
	return Style{Width: width, Height: height, Color: getenv("NO_COLOR") == ""}
}

// Paint applies a style to a text, if colours are supported.
func (s Style) Paint(p Paint, text string) string {
	if !s.Color || p == Plain || text == "" {
		return text
	}
	return "\x1b[" + string(p) + "m" + text + "\x1b[0m"
}

// Cut shortens a text to a number of cells and marks the cut with an ellipsis.
func Cut(text string, cells int) string {
	runes := []rune(text)
	switch {
	case cells <= 0:
		return ""
	case len(runes) <= cells:
		return text
	}
	return string(runes[:cells-1]) + "…"
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

// Column is one column of a table.
type Column struct {
	// Title is its heading.
	Title string
	// Right aligns it to the right, for numbers.
	Right bool
	// Expendable columns are dropped from a table that is too wide, the highest number
	// first; 0 never is.
	Expendable int
}

// Cell is one field of a table.
type Cell struct {
	Text  string
	Paint Paint
}

// Cells are cells of plain text.
func Cells(texts ...string) []Cell {
	row := make([]Cell, len(texts))
	for i, text := range texts {
		row[i].Text = text
	}
	return row
}

const (
	// Gap separates two columns.
	Gap = "  "
	// lastColumn is the minimum width of the last column: it is cut before another
	// column is dropped.
	lastColumn = 14
)

// Table is a table for people: on a terminal, in a file, or in a document. An empty row
// is an empty line.
type Table struct {
	Columns []Column
	Rows    [][]Cell
}

// Lines lays out the table for a terminal or a file. text/tabwriter would not do: it
// aligns all columns alike and counts escape sequences.
func (t Table) Lines(style Style) []string {
	widths := make([]int, len(t.Columns))
	heading := make([]Cell, len(t.Columns))
	for i, column := range t.Columns {
		heading[i] = Cell{column.Title, Faint}
	}
	rows := append([][]Cell{heading}, t.Rows...)
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell.Text))
		}
	}
	shown := t.shown(widths, style.Width)
	lines := []string{}
	for _, row := range rows {
		lines = append(lines, t.line(row, widths, shown, style))
	}
	return lines
}

// shown drops expendable columns until the table fits.
func (t Table) shown(widths []int, limit int) []int {
	shown, total := []int{}, -len(Gap)
	for i := range t.Columns {
		shown, total = append(shown, i), total+widths[i]+len(Gap)
	}
	last := widths[len(widths)-1]
	total -= last - min(last, lastColumn)
	for limit > 0 && total > limit {
		worst := 0
		for at, i := range shown {
			if t.Columns[i].Expendable > t.Columns[shown[worst]].Expendable {
				worst = at
			}
		}
		if t.Columns[shown[worst]].Expendable == 0 {
			break
		}
		total -= widths[shown[worst]] + len(Gap)
		shown = append(shown[:worst], shown[worst+1:]...)
	}
	return shown
}

func (t Table) line(row []Cell, widths, shown []int, style Style) string {
	line, used := strings.Builder{}, 0
	for n, i := range shown {
		if i >= len(row) {
			break
		}
		if n > 0 {
			line.WriteString(Gap)
			used += len(Gap)
		}
		text := row[i].Text
		if style.Width > 0 {
			text = Cut(text, style.Width-used)
		}
		padding := strings.Repeat(" ", max(0, widths[i]-utf8.RuneCountInString(text)))
		if t.Columns[i].Right {
			line.WriteString(padding + style.Paint(row[i].Paint, text))
		} else {
			line.WriteString(style.Paint(row[i].Paint, text) + padding)
		}
		used += widths[i]
	}
	return strings.TrimRight(line.String(), " ")
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
		texts := []string{}
		for _, cell := range row {
			texts = append(texts, cell.Text)
		}
		if len(texts) > 0 {
			text += markdownRow(texts)
		}
	}
	return text
}

func markdownRow(cells []string) string { return "| " + strings.Join(cells, " | ") + " |\n" }
