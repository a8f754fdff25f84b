// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/usher-dev/usher/internal/printable"
)

const (
	// hidden replaces a secret.
	hidden = "<secret>"
	// minSecret is the length in bytes from which a text is hidden: shorter ones occur in any text.
	minSecret = 3
	// minLine is that of a line of a secret that has several.
	minLine = 8
	// maxExcerpt bounds how much of an answer an error repeats, and maxError the whole error, in bytes.
	maxExcerpt = 256
	maxError   = 1 << 10
	// room is how much of a text is looked at for each byte that is kept of it: several characters
	// may become one.
	room = 16
	cut  = "…"
)

// Secrets are what errors about a connection do not repeat. The zero value hides nothing.
//
// A text hides a secret however it repeats it: with the escapes of JSON, URLs or HTML, also one
// within the other, with other white space, in base64 or hexadecimal, alone or within something
// longer, and the beginning of it where a text was cut.
type Secrets struct {
	// needles are sorted: one may be the beginning of another.
	needles []needle
}

// needle is a text to hide.
type needle struct {
	text string
	// coded means that the text is in base64 or hexadecimal: what stands around it belongs to it.
	coded bool
}

// SecretsOf returns what to hide of a credentials Secret: all values but certificates, which every
// server shows.
func SecretsOf(data map[string][]byte) Secrets {
	var values []string
	for _, value := range data {
		if !isCertificate(value) {
			values = append(values, string(value))
		}
	}
	return Secrets{}.With(values...)
}

func isCertificate(value []byte) bool {
	blocks := 0
	for block, rest := pem.Decode(value); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return false
		}
		blocks++
	}
	return blocks > 0
}

// With returns Secrets that hide those values, too.
func (s Secrets) With(values ...string) Secrets {
	needles := slices.Clone(s.needles)
	for _, value := range values {
		needles = append(needles, needlesOf(strings.TrimSpace(value))...)
	}
	slices.SortFunc(needles, func(a, b needle) int { return strings.Compare(a.text, b.text) })
	return Secrets{slices.CompactFunc(needles, func(a, b needle) bool { return a.text == b.text })}
}

func needlesOf(value string) (all []needle) {
	plain := []string{value}
	if lines := strings.Split(value, "\n"); len(lines) > 1 {
		for _, line := range lines {
			if line = strings.TrimSpace(line); len(line) >= minLine && !strings.HasPrefix(line, "-----") {
				plain = append(plain, line)
			}
		}
	}
	for _, text := range append(plain, printable.Line(value)) { // as an excerpt has it
		if len(text) >= minSecret {
			all = append(all, needle{text: text})
		}
	}
	if len(value) < minSecret {
		return nil
	}
	for _, text := range codes(value) {
		if len(text) >= minSecret {
			all = append(all, needle{text: text, coded: true})
		}
	}
	return all
}

// codes are a value in hexadecimal and base64. Within something longer, base64 of a value depends on
// how many bytes are before it, modulo 3; its first and last characters may depend on its neighbours.
func codes(value string) []string {
	all := []string{hex.EncodeToString([]byte(value)), strings.ToUpper(hex.EncodeToString([]byte(value)))}
	for before := range 3 {
		bits := 8 * (before + len(value))
		from, to := (8*before+5)/6, bits/6
		whole := append(make([]byte, before), value...)
		for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			all = append(all, encoding.EncodeToString(whole)[from:to])
		}
	}
	return all
}

// Excerpt turns a registry's answer into one line for an error.
func (s Secrets) Excerpt(text string) string { return s.line(text, maxExcerpt) }

// Excerpt is that of an answer to which no secret was sent. What connectors return passes through
// Secrets.Error once more.
func Excerpt(text string) string { return Secrets{}.Excerpt(text) }

// Error returns an error that is fit for logs, events and statuses: one line of bounded length without
// secrets, in which errors.Is finds the same errors.
func (s Secrets) Error(err error) error {
	if err == nil {
		return nil
	}
	return clean{errors.New(s.line(err.Error(), maxError)), err}
}

// clean is an error with another text. The original is never printed.
type clean struct {
	error
	marks error
}

// Is reports whether the original is the target.
func (c clean) Is(target error) bool { return errors.Is(c.marks, target) }

// line hides before it folds white space and cuts, which would leave a part of a secret.
func (s Secrets) line(text string, most int) string {
	whole := len(text) <= room*most
	text = s.hide(text[:min(len(text), room*most)], !whole)
	text = strings.Join(strings.Fields(printable.Line(text)), " ")
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + cut
	}
	if !whole {
		text += cut
	}
	return text
}

// span is a part of a text, in bytes.
type span struct{ from, to int }

// hide replaces the secrets in a text, of which more may follow.
func (s Secrets) hide(text string, more bool) string {
	if len(s.needles) == 0 {
		return text
	}
	if more {
		text += cut
	}
	found := s.find(text)
	slices.SortFunc(found, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	var out strings.Builder
	done := 0
	for _, secret := range found {
		if secret.from >= done {
			out.WriteString(text[done:secret.from] + hidden)
		}
		done = max(done, secret.to)
	}
	out.WriteString(text[done:])
	if more {
		return strings.TrimSuffix(out.String(), cut)
	}
	return out.String()
}

// find returns where secrets are in a text.
func (s Secrets) find(text string) (found []span) {
	first := map[byte][]needle{}
	for _, one := range s.needles {
		first[one.text[0]] = append(first[one.text[0]], one)
	}
	for _, read := range readings(text) {
		for at := 0; at < len(read.text); at++ {
			for _, one := range first[read.text[at]] {
				if length := one.match(read.text[at:]); length > 0 {
					there := one.around(read.text, span{at, at + length})
					found = append(found, span{read.at[there.from], read.at[there.to]})
				}
			}
		}
	}
	return found
}

// around is the part of a text to hide for a needle that is there.
func (n needle) around(text string, there span) span {
	for n.coded && there.from > 0 && isCode(text[there.from-1]) {
		there.from--
	}
	for n.coded && there.to < len(text) && isCode(text[there.to]) {
		there.to++
	}
	return there
}

// isCode reports whether a character may be one of base64 or hexadecimal.
func isCode(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("+/-_=", c) >= 0
}

// match returns how much of the beginning of a text the needle is; 0 if it is not there. White space may
// be any other, and where the text was cut, a part of the needle is enough.
func (n needle) match(text string) int {
	at := 0
	for i := 0; i < len(n.text); {
		needs, has := spaces(n.text[i:]), spaces(text[at:])
		_, size := utf8.DecodeRuneInString(n.text[i:])
		switch {
		case needs > 0 && has > 0:
			i, at = i+needs, at+has
		case needs == 0 && strings.HasPrefix(text[at:], n.text[i:i+size]):
			i, at = i+size, at+size
		case i >= minSecret && isCut(text[at:]):
			return at
		default:
			return 0
		}
	}
	return at
}

// spaces returns how many bytes of white space a text begins with.
func spaces(text string) int { return len(text) - len(strings.TrimLeftFunc(text, unicode.IsSpace)) }

// isCut reports whether somebody cut a text here, perhaps within a character's escape.
func isCut(text string) bool {
	if text != "" && strings.IndexByte(`\%&`, text[0]) >= 0 {
		before, _, _ := strings.Cut(text, cut)
		text = text[min(len(before), maxEscape):]
	}
	return strings.HasPrefix(text, cut) || strings.HasPrefix(text, "...")
}
