// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// FuzzSecrets gives whatever a server may answer: an excerpt is one bounded line, does not repeat the
// secret, and stays as it is when it passes through again.
func FuzzSecrets(f *testing.F) {
	for _, said := range []string{"s3cret pass", "s3cret+pa", `\\u0073\u0033cret\tpass`, "%2573%", "&#x73;&amp;", `\ud83d\ud`, "czNjcmV0IHBhc3M=", "\xff\x1b\u202e…"} {
		f.Add(said)
	}
	secrets := SecretsOf(map[string][]byte{"password": []byte("s3cret pass\n")})
	f.Fuzz(func(t *testing.T, said string) {
		have := secrets.Excerpt(said)
		if len(have) > maxExcerpt+len(cut) || !utf8.ValidString(have) || strings.ContainsFunc(have, unicode.IsControl) ||
			strings.Contains(have, "s3cret pass") || secrets.Excerpt(have) != have {
			t.Errorf("%q became %q", said, have)
		}
	})
}

// TestCertificatesAreNoSecret: every server shows them, and they are long.
func TestCertificatesAreNoSecret(t *testing.T) {
	const certificate, key = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"
	for value, hides := range map[string]bool{certificate: false, certificate + certificate: false, key: true, certificate + key: true, "plain": true, "ab": false} {
		if have := len(SecretsOf(map[string][]byte{"a": []byte(value)}).needles) > 0; have != hides {
			t.Errorf("%q is hidden: %t", value, have)
		}
	}
}
