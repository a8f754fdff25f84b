// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOptionsAreChecked(t *testing.T) {
	cases := map[string]struct {
		opts  Options
		wrong string // what the error names
	}{
		"no folder":         {Options{}, "Options.Dir"},
		"a negative port":   {Options{Dir: "x", Port: -1}, "Options.Port"},
		"a port too high":   {Options{Dir: "x", Port: 65536}, "Options.Port"},
		"the highest port":  {Options{Dir: "x", Port: 65535}, ""},
		"a relative folder": {Options{Dir: "x"}, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := c.opts.withDefaults()
			if c.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), c.wrong) {
					t.Errorf("error is %v, want one about %s", err, c.wrong)
				}
				return
			}
			if err != nil || !filepath.IsAbs(got.Dir) || got.StartTimeout != DefaultStartTimeout {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}

func touch(t *testing.T, path string) {
	t.Helper()
	if err := writeFile(path, []byte(path), 0o644); err != nil {
		t.Fatal(err)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func TestClaimDir(t *testing.T) {
	foreign := t.TempDir()
	touch(t, filepath.Join(foreign, "thesis.txt"))
	if err := ClaimDir(foreign); err == nil || !strings.Contains(err.Error(), "thesis.txt") {
		t.Errorf("a folder of others: %v", err)
	}
	fresh := filepath.Join(t.TempDir(), "a", "b")
	for range 2 { // new, then our own
		if err := ClaimDir(fresh); err != nil {
			t.Fatal(err)
		}
		touch(t, filepath.Join(fresh, "etcd", "data"))
	}
}

func TestResetKeepsTheLogsOfTheRunBefore(t *testing.T) {
	l := layout{dir: t.TempDir()}
	if err := l.claim(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		l.path("etcd", "member", "wal"), l.pki("ca.key"), l.adminKubeconfig(), l.path("kubeconfigs", "x"),
		l.log("etcd"), l.log("etcd.previous"), l.log("supervisor"), l.path("notes.txt"),
	} {
		touch(t, path)
	}
	if err := l.reset(); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{
		l.path("etcd"): false, l.path("pki"): false, l.adminKubeconfig(): false, l.path("kubeconfigs"): false,
		l.log("etcd"): false, l.log("etcd.previous"): true, l.log("supervisor"): true, l.path("notes.txt"): true,
	} {
		if exists(path) != want {
			t.Errorf("%s exists: %t, want %t", path, !want, want)
		}
	}
	if text, err := os.ReadFile(l.log("etcd.previous")); err != nil || string(text) != l.log("etcd") {
		t.Errorf("the kept log is %q, %v: not that of the last run", text, err)
	}
}
