// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/traffic"
)

func TestOutcome(t *testing.T) {
	for name, c := range map[string]struct {
		story   Story
		lost    int
		failure error
		want    string
	}{
		"none lost":            {},
		"lost":                 {lost: 2, want: "2 requests were lost, want none"},
		"lost and measured":    {story: Story{MayLose: true}, lost: 2},
		"failed and lost more": {lost: 2, failure: errors.New("broken"), want: "broken"},
	} {
		report := traffic.Report{Sections: []traffic.Section{{Sent: 1200, Lost: c.lost, Fast: traffic.Latencies{time.Millisecond, 3 * time.Millisecond}}}}
		o := outcomeOf(c.story, report, time.Second, c.failure)
		if o.failure != c.want || o.total.Sent != 1200 || o.p99() != "3.0 ms" {
			t.Errorf("%s: the failure is %q, want %q; %d requests, p99 %s", name, o.failure, c.want, o.total.Sent, o.p99())
		}
	}
}

// Both documents have the marks that a run writes between.
func TestSplice(t *testing.T) {
	for file, marks := range map[string][2]string{storiesFile: {storiesBegin, storiesEnd}, footprintFile: {footprintBegin, footprintEnd}} {
		text, err := os.ReadFile(filepath.Join("../..", file))
		registrytest.NoError(t, err)
		path := filepath.Join(t.TempDir(), "document.md")
		registrytest.NoError(t, os.WriteFile(path, text, 0o600))
		registrytest.NoError(t, splice(path, marks[0], marks[1], "the new text\n"))
		written, err := os.ReadFile(path)
		registrytest.NoError(t, err)
		before, _, _ := strings.Cut(string(text), marks[0])
		_, after, _ := strings.Cut(string(text), marks[1])
		if string(written) != before+marks[0]+"\nthe new text\n"+marks[1]+after {
			t.Errorf("%s is now\n%s", file, written)
		}
		if splice(path, "no mark", marks[1], "") == nil {
			t.Error("a text without a mark is written")
		}
	}
}
