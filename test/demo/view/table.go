// SPDX-License-Identifier: Apache-2.0

package view

import (
	"strings"
	"unicode/utf8"
)

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
	// Text is its content.
	Text string
	// Paint is its style.
	Paint Paint
}

// gap separates two columns.
const gap = "  "

// Table lays rows out in columns as wide as their widest cell; the last column gets the
// rest of the line. Each row must have a cell per column; an empty row becomes an empty
// line.
func Table(columns []Column, rows [][]Cell, style Style) []string {
	widths := measure(columns, rows)
	shown := choose(columns, widths, style.Width)
	lines := []string{}
	heading := make([]Cell, len(columns))
	for i, column := range columns {
		heading[i] = Cell{Text: column.Title, Paint: Faint}
	}
	for _, row := range append([][]Cell{heading}, rows...) {
		lines = append(lines, layOut(columns, row, widths, shown, style))
	}
	return lines
}

func measure(columns []Column, rows [][]Cell) []int {
	widths := make([]int, len(columns))
	for i, column := range columns {
		widths[i] = width(column.Title)
		for _, row := range rows {
			if i < len(row) {
				widths[i] = max(widths[i], width(row[i].Text))
			}
		}
	}
	return widths
}

// choose drops expendable columns until the table fits.
func choose(columns []Column, widths []int, limit int) []int {
	dropped := map[int]bool{}
	for limit > 0 && total(columns, widths, dropped) > limit {
		worst := -1
		for i, column := range columns {
			if !dropped[i] && column.Expendable > 0 && (worst < 0 || column.Expendable > columns[worst].Expendable) {
				worst = i
			}
		}
		if worst < 0 {
			break
		}
		dropped[worst] = true
	}
	shown := []int{}
	for i := range columns {
		if !dropped[i] {
			shown = append(shown, i)
		}
	}
	return shown
}

// lastColumn is the minimum width of the last column: it is cut before another column
// is dropped.
const lastColumn = 14

func total(columns []Column, widths []int, dropped map[int]bool) int {
	sum := 0
	for i := range columns {
		if dropped[i] {
			continue
		}
		need := widths[i]
		if i == len(columns)-1 {
			need = min(need, lastColumn)
		}
		sum += need + len(gap)
	}
	return sum - len(gap)
}

func layOut(columns []Column, row []Cell, widths, shown []int, style Style) string {
	line, used := strings.Builder{}, 0
	for n, i := range shown {
		if i >= len(row) {
			break
		}
		if n > 0 {
			line.WriteString(gap)
			used += len(gap)
		}
		text := row[i].Text
		if style.Width > 0 {
			text = Cut(text, style.Width-used)
		}
		padding := strings.Repeat(" ", max(0, widths[i]-width(text)))
		switch {
		case columns[i].Right:
			line.WriteString(padding + style.paint(row[i].Paint, text))
			used += len(padding)
		case n == len(shown)-1:
			line.WriteString(style.paint(row[i].Paint, text))
		default:
			line.WriteString(style.paint(row[i].Paint, text) + padding)
			used += len(padding)
		}
		used += width(text)
	}
	return strings.TrimRight(line.String(), " ")
}

// width is how many cells a text takes; every rune shown here takes one.
func width(text string) int { return utf8.RuneCountInString(text) }

// Cut shortens a text to a number of cells and marks the cut with an ellipsis.
func Cut(text string, cells int) string {
	runes := []rune(text)
	switch {
	case cells <= 0:
		return ""
	case len(runes) <= cells:
		return text
	default:
		return string(runes[:cells-1]) + "…"
	}
}
