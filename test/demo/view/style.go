// SPDX-License-Identifier: Apache-2.0

package view

// Paint is a look of a text.
type Paint string

// The looks, as parameters of the terminal's SGR sequence.
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
	// Color says that escape sequences are understood.
	Color bool
}

func (s Style) paint(p Paint, text string) string {
	if !s.Color || p == Plain || text == "" {
		return text
	}
	return "\x1b[" + string(p) + "m" + text + "\x1b[0m"
}

// Paint gives a text a look, if the style has colours.
func (s Style) Paint(p Paint, text string) string { return s.paint(p, text) }
