// SPDX-License-Identifier: Apache-2.0

// Package printable removes characters from texts that a terminal or a browser would obey rather than
// show: control characters, such as those that begin an escape sequence, and characters that change the
// direction of a text. Texts that others wrote pass through it before people see them.
package printable

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Line returns a text as a single line: each line break or tab becomes a space.
func Line(text string) string { return without(text, "") }

// Text returns a text that may have several lines: line breaks and tabs stay.
func Text(text string) string { return without(strings.ReplaceAll(text, "\r\n", "\n"), "\n\t") }

func without(text, keep string) string {
	obeyed := func(r rune) bool { return isObeyed(r) && !strings.ContainsRune(keep, r) }
	if utf8.ValidString(text) && !strings.ContainsFunc(text, obeyed) {
		return text
	}
	// strings.Map replaces bytes that are no UTF-8 with utf8.RuneError. Such a byte alone could be a
	// control character of another encoding.
	return strings.Map(func(r rune) rune {
		switch {
		case !obeyed(r):
			return r
		case r == '\n' || r == '\r' || r == '\t':
			return ' '
		}
		return utf8.RuneError
	}, text)
}

func isObeyed(r rune) bool {
	if ' ' <= r && r < utf8.RuneSelf {
		return r == '\x7f'
	}
	return unicode.Is(unicode.Cc, r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029'
}
