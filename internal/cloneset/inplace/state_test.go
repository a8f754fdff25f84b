// SPDX-License-Identifier: Apache-2.0

package inplace

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/usher-dev/usher/internal/checktest"
)

// TestLargeRecordsAreNotKept: anybody who may write Pods may write records, each of 256 KiB.
func TestLargeRecordsAreNotKept(t *testing.T) {
	for _, size := range []int{10, 200 << 10} {
		record := State{Revision: strings.Repeat("r", size)}
		text := string(checktest.Must(json.Marshal(record))(t))
		have := checktest.Must(ParseState(text))(t)
		checktest.Same(t, "the revision", record.Revision, have.Revision)
		_, kept := parsed.Get(text)
		checktest.Same(t, "it is kept", size < maxKept, kept)
	}
}
