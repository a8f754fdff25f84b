// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"html"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// maxEscape bounds how long an escape of one character is, in bytes.
const maxEscape = 12

// reading is a text as somebody reads it who takes it for one of another format.
type reading struct {
	text string
	// at is where each byte of it begins in the text as it is, and where the last one ends.
	at []int
}

// escape reads the escape that a text begins with, and its length; 0 if there is none.
type escape func(text string) (means string, length int)

// readings are all ways to read a text: as it is, as one format, or as one within another.
func readings(text string) []reading {
	all := []reading{{text: text}}
	for i := range len(text) + 1 {
		all[0].at = append(all[0].at, i)
	}
	for begin, depth := 0, 0; depth < 2; depth++ {
		end := len(all)
		for _, one := range all[begin:end] {
			for _, format := range []escape{quoted, percent, plus, entity} {
				if next := one.as(format); next.text != one.text {
					all = append(all, next)
				}
			}
		}
		begin = end
	}
	return all
}

// as reads a reading as one of a format.
func (r reading) as(format escape) reading {
	next := reading{at: make([]int, 0, len(r.at))}
	var text strings.Builder
	for i := 0; i < len(r.text); {
		means, length := format(r.text[i:])
		if length == 0 {
			means, length = r.text[i:i+1], 1
		}
		for range len(means) {
			next.at = append(next.at, r.at[i])
		}
		text.WriteString(means)
		i += length
	}
	next.text, next.at = text.String(), append(next.at, r.at[len(r.text)])
	return next
}

// controls are what letters after a backslash stand for.
var controls = map[byte]string{'a': "\a", 'b': "\b", 'f': "\f", 'n': "\n", 'r': "\r", 't': "\t", 'v': "\v", '"': `"`, '\'': "'", '/': "/", '\\': `\`}

// quoted reads an escape of JSON, or of a program's source.
func quoted(text string) (string, int) {
	if len(text) < 2 || text[0] != '\\' {
		return "", 0
	}
	if means, known := controls[text[1]]; known {
		return means, 2
	}
	r, length := numbered(text)
	if utf16.IsSurrogate(r) {
		low, more := numbered(text[length:])
		r, length = utf16.DecodeRune(r, low), length+more
	}
	if length == 4 && r >= utf8.RuneSelf { // \xff is a byte
		return string([]byte{byte(r)}), length
	}
	return string(r), length
}

// numbered reads a character by its number.
func numbered(text string) (rune, int) {
	for prefix, digits := range map[string]int{`\x`: 2, `\u`: 4, `\U`: 8} {
		length := len(prefix) + digits
		if !strings.HasPrefix(text, prefix) || len(text) < length {
			continue
		}
		if code, err := strconv.ParseUint(text[len(prefix):length], 16, 31); err == nil {
			return rune(code), length
		}
	}
	return 0, 0
}

// percent reads an escape of a URL's path.
func percent(text string) (string, int) {
	if len(text) < 3 || text[0] != '%' {
		return "", 0
	}
	code, err := strconv.ParseUint(text[1:3], 16, 8)
	if err != nil {
		return "", 0
	}
	return string([]byte{byte(code)}), 3
}

// plus reads an escape of a URL's query.
func plus(text string) (string, int) {
	if text[0] == '+' {
		return " ", 1
	}
	return percent(text)
}

// entity reads an escape of HTML.
func entity(text string) (string, int) {
	if text[0] != '&' {
		return "", 0
	}
	end := strings.IndexByte(text[:min(len(text), maxEscape)], ';') + 1
	if means := html.UnescapeString(text[:end]); means != text[:end] {
		return means, end
	}
	return "", 0
}
