// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/checktest"
)

// Of HAProxy's servers, those count that run and that nobody has taken out.
func TestServersIn(t *testing.T) {
	addresses, ok := serversIn(strings.NewReader(`1
# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_port
3 web 1 a 10.0.0.1 2 0 1 8080
3 web 2 b 10.0.0.2 2 8 1 8080
3 web 3 c 10.0.0.3 0 1 1 8080
3 web 4 d 10.0.0.4 0 0 1 8080

`))
	checktest.Same(t, "servers", []string{"10.0.0.1:8080"}, addresses)
	if _, none := serversIn(strings.NewReader("Can't find backend.\n")); !ok || none {
		t.Errorf("an answer with a table: %t, one without: %t", ok, none)
	}
}

// The registries are ahead only if none of them had a Pod when the first container got SIGTERM, or was killed.
func TestLate(t *testing.T) {
	began := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	after := func(seconds int) time.Time { return began.Add(time.Duration(seconds) * time.Second) }
	log := func(lines string) string {
		file := filepath.Join(t.TempDir(), "0.log")
		checktest.NoError(t, os.WriteFile(file, []byte(lines), 0o600))
		return file
	}
	serves := "2026-11-30T12:00:00.5Z stdout F web v1 of none serves on 0.0.0.0:8080\n"
	five, seven := log(serves+"2026-11-30T12:00:05Z stdout F terminated\n"), log(serves+"2026-11-30T12:00:07Z stdout F terminated\n")
	for name, test := range map[string]struct {
		listed map[string]listing
		killed time.Time
		logs   []string
		late   string
	}{
		"out before":          {map[string]listing{"a in etcd": {n: 0, since: after(1)}, "a in haproxy": {n: 0, since: after(4)}}, time.Time{}, []string{seven, five}, ""},
		"out after the first": {map[string]listing{"a in etcd": {n: 0, since: after(6)}}, time.Time{}, []string{seven, five}, "a in etcd had some"},
		"never out":           {map[string]listing{"a in etcd": {n: 2, since: after(1)}}, time.Time{}, []string{five}, "2 since"},
		"killed":              {map[string]listing{"a in etcd": {n: 0, since: after(1)}}, after(3), []string{log(serves)}, ""},
		"killed too early":    {map[string]listing{"a in etcd": {n: 0, since: after(4)}}, after(3), []string{seven}, "a in etcd had some"},
		"nobody follows": {
			map[string]listing{"a in etcd": {n: 0, since: after(1), failed: errors.New("refused")}},
			time.Time{}, []string{five}, "refused",
		},
		"nobody ended": {
			map[string]listing{"a in etcd": {n: 0, since: after(1)}},
			time.Time{}, []string{log(serves)}, "no container has ended",
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := &departure{began: began, listed: test.listed, killed: test.killed, logs: test.logs}
			if present := d.present(); strings.Contains(test.late, "refused") && !strings.Contains(present, "refused") {
				t.Errorf("present: %q", present)
			}
			if late := d.late(); (late == "") != (test.late == "") || !strings.Contains(late, test.late) {
				t.Errorf("late: %q, want %q", late, test.late)
			}
		})
	}
}

// A registry lists fewer and fewer of the Pods; if some are listed again, that is counted.
func TestListing(t *testing.T) {
	began, l := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC), unknown
	for i, n := range []int{3, 3, 1, 0, 0, 2, 0} {
		l = l.now(n, began.Add(time.Duration(i)*time.Second))
	}
	if l != (listing{n: 0, since: began.Add(6 * time.Second), back: 1}) {
		t.Errorf("the listing is %+v", l)
	}
}
