// SPDX-License-Identifier: Apache-2.0

package origin

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/checktest"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// TestKnows: one API server and one authority that were met are enough, and what one side does not know is no reason.
func TestKnows(t *testing.T) {
	record := Record{Servers: seenAt(epoch, "10.0.0.1:6443", "10.0.0.2:6443"), Authorities: seenAt(epoch, "aa", "bb")}
	for _, c := range []struct {
		about                string
		servers, authorities string
		want                 bool
	}{
		{"as it was", "10.0.0.1:6443", "aa", true},
		{"the other API server", "10.0.0.2:6443", "aa", true},
		{"a new authority is trusted as well", "10.0.0.1:6443", "aa cc", true},
		{"another API server", "10.9.0.1:6443", "aa", false},
		{"another port", "10.0.0.1:6444", "aa", false},
		{"the same address, signed by others", "10.0.0.1:6443", "cc", false},
		{"everything is different", "10.9.0.1:6443", "cc", false},
		{"the machine's authorities", "10.0.0.1:6443", "", true},
		{"an API server that does not say who it is", "", "aa", true},
	} {
		t.Run(c.about, func(t *testing.T) {
			seen := Sight{strings.Fields(c.servers), strings.Fields(c.authorities)}
			checktest.Same(t, "known", c.want, record.Knows(seen))
			checktest.Same(t, "known without a record", true, Record{}.Knows(seen))
		})
	}
}

func seenAt(at time.Time, all ...string) map[string]time.Time {
	seen := map[string]time.Time{}
	for _, one := range all {
		seen[one] = at
	}
	return seen
}

// TestRecord: what is met is noted, at most once an hour, and forgotten after a day.
func TestRecord(t *testing.T) {
	record, changed := Record{Cluster: "a"}.With(Sight{[]string{"one:1"}, []string{"aa"}}, epoch)
	checktest.Same(t, "the first sight is worth a write", true, changed)
	for _, c := range []struct {
		after   time.Duration
		servers string
		want    string
		changed bool
	}{
		{time.Minute, "one:1", "one:1", false},
		{time.Hour, "one:1", "one:1", true},
		{time.Minute, "two:1", "one:1 two:1", true},
		{24 * time.Hour, "two:1", "one:1 two:1", true},
		{25 * time.Hour, "two:1", "two:1", true},
		{25 * time.Hour, "one:1", "one:1", true},
	} {
		t.Run(fmt.Sprintf("%s after %s", c.servers, c.after), func(t *testing.T) {
			next, changed := record.With(Sight{strings.Fields(c.servers), []string{"aa"}}, epoch.Add(c.after))
			checktest.Same(t, "servers", c.want, strings.Join(slices.Sorted(maps.Keys(next.Servers)), " "))
			checktest.Same(t, "it is worth a write", c.changed, changed)
			again := checktest.Must(Read(next.Data()))(t)
			checktest.Same(t, "what is read back", fmt.Sprint(next), fmt.Sprint(again))
		})
	}
}

// TestDamagedRecord: a record that somebody has changed is an error, not another cluster's.
func TestDamagedRecord(t *testing.T) {
	for text, data := range map[string]map[string]string{
		"no key cluster":            {},
		"not an address and a time": {keyCluster: "a", keyServers: "one:1 yesterday\n"},
		`"one:1" is not`:            {keyCluster: "a", keyAuthorities: "one:1"},
	} {
		if _, err := Read(data); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v is read with %v, want %q", data, err, text)
		}
	}
}
