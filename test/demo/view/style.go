// SPDX-License-Identifier: Apache-2.0

package view

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

// Style is what the output can show.
type Style struct {
	// Width is the number of cells of a line; 0 means any.
	Width int
	// Height is the number of lines; 0 means any.
	Height int
	// Color reports whether escape sequences are understood.
	Color bool
}

func (s Style) paint(p Paint, text string) string {
	if !s.Color || p == Plain || text == "" {
		return text
	}
	return "\x1b[" + string(p) + "m" + text + "\x1b[0m"
}

// Paint applies a style to a text, if colours are supported.
func (s Style) Paint(p Paint, text string) string { return s.paint(p, text) }
