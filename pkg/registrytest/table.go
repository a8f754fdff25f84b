// SPDX-License-Identifier: Apache-2.0

package registrytest

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/usher-dev/usher/internal/printable"
)

// Table returns the rows for people: a line for each, below one that does not hold what the server must do and what
// was seen, and below one that was not tried why. The last line counts them.
func Table(rows []Row) string {
	wide, counts := 0, map[Result]int{}
	for _, r := range rows {
		wide = max(wide, utf8.RuneCountInString(r.Name))
		counts[r.Result]++
	}
	var out strings.Builder
	for _, r := range rows {
		fmt.Fprintf(&out, "%-*s  %s\n", wide, r.Name, r.Result)
		switch r.Result {
		case Fails:
			fmt.Fprintf(&out, "    The server must %s.\n    Seen: %s\n", r.Must, indented(r.Seen))
		case NotTried:
			fmt.Fprintf(&out, "    %s\n", indented(r.Seen))
		case Holds:
		}
	}
	fmt.Fprintf(&out, "\n%d hold, %d do not hold, %d were not tried\n", counts[Holds], counts[Fails], counts[NotTried])
	return out.String()
}

// seenLines is how many lines of what was seen a table shows.
const seenLines = 16

// indented is a text of the server below a row.
func indented(text string) string {
	lines := strings.Split(printable.Text(text), "\n")
	if len(lines) > seenLines {
		lines = append(lines[:seenLines], fmt.Sprintf("… and %d lines more", len(lines)-seenLines))
	}
	return strings.Join(lines, "\n          ")
}
