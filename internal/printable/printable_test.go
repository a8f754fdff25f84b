// SPDX-License-Identifier: Apache-2.0

package printable

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/usher-dev/usher/internal/checktest"
)

// TestObeyed gives both functions characters that a terminal or a browser would obey.
func TestObeyed(t *testing.T) {
	for given, want := range map[string][2]string{ // as a line, and as a text
		"plain, ümläut, 日本, 👩‍🚀":         {"plain, ümläut, 日本, 👩‍🚀", "plain, ümläut, 日本, 👩‍🚀"},
		"a\tb\nc":                        {"a b c", "a\tb\nc"},
		"a\r\nb\rc":                      {"a  b c", "a\nb c"},
		"\x1b[2J\x1b]0;title\x07":        {"�[2J�]0;title�", "�[2J�]0;title�"},
		"\u009b31mred":                   {"�31mred", "�31mred"},
		"\x9b31mred":                     {"�31mred", "�31mred"}, // no UTF-8
		"a\b\x00\x7f":                    {"a���", "a���"},
		"\u202eevil\u202c \u2066x\u2069": {"�evil� �x�", "�evil� �x�"},
		"\u200e\u200f\u061c\u2028":       {"����", "����"},
	} {
		checktest.Same(t, "the line of "+given, want[0], Line(given))
		checktest.Same(t, "the text of "+given, want[1], Text(given))
	}
}

// FuzzObeyed checks every text: no character that is obeyed stays, and a second call changes nothing.
func FuzzObeyed(f *testing.F) {
	f.Add("\x1b[31m\r\n\u202e\xff")
	f.Fuzz(func(t *testing.T, text string) {
		line, lines := Line(text), Text(text)
		if strings.ContainsFunc(line, isObeyed) || strings.ContainsFunc(strings.NewReplacer("\n", "", "\t", "").Replace(lines), isObeyed) ||
			!utf8.ValidString(line) || !utf8.ValidString(lines) || Line(line) != line || Text(lines) != lines {
			t.Errorf("%q became %q and %q", text, line, lines)
		}
	})
}
