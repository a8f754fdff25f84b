// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// TestPadding: elements of lists count as entries, however short they are, and each text of a list or
// an object takes some room.
func TestPadding(t *testing.T) {
	const least = registry.EntryBytes
	long := fmt.Sprintf(`{"id":%q,"a":{"b":[]}}`, strings.Repeat("x", least))
	for text, want := range map[string]int{
		``:            0,
		`{}`:          0,
		`no JSON ],}`: 0,
		`[]`:          0,
		`[{}]`:        least - 2,
		`[{},null,1]`: 3*least - 7,
		`{"entries":[{"id":"a"},{"id":"],{\\\""}]}`:               2*least - len(`{"id":"a"}{"id":"],{\\\""}`),
		`[` + members(least) + `]`:                                least*memberBytes - len(members(least)) + 1 + least,
		`["a","b"]`:                                               2*memberBytes - 6,
		`{"a":"","b":{"c":"` + strings.Repeat("x", least) + `"}}`: memberBytes - 6,
		`[[],[[]]]`:                     2*least - len(`[][]`),
		`[` + long + `,` + long + `]`:   2 * (memberBytes - len(`"b":[]`)),
		`[{},"`:                         least - 2,
		`[{},"\\`:                       least - 2,
		strings.Repeat(`[`, maxDepth+2): 0,
	} {
		checktest.Same(t, fmt.Sprintf("the bytes that %.60s counts more", text), want, padding([]byte(text)))
	}
}

// members is an object of n members of six bytes each.
func members(n int) string {
	return "{" + strings.TrimSuffix(strings.Repeat(`"a":"",`, n), ",") + "}"
}
