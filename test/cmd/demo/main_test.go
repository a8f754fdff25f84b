// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/usher-dev/usher/test/demo"
)

func nothing(string) string { return "" }

func TestFlags(t *testing.T) {
	o, real, err := parse([]string{"--rate=20", "--hooks=off", "--phases=in-place,scale-in", "--kill-usher", "--stop-registry", "--seed=9"}, os.Stderr, nothing)
	if err != nil {
		t.Fatal(err)
	}
	if o.Rate != 20 || o.Hooks != demo.HooksOff || !slices.Equal(o.Phases, []string{"in-place", "scale-in"}) ||
		!o.KillUsher || !o.StopRegistry || o.Keep || o.Seed != 9 || real {
		t.Errorf("got %+v", o)
	}
}

func TestNodeFromTheEnvironment(t *testing.T) {
	getenv := func(name string) string { return map[string]string{"NODE": "real"}[name] }
	if _, real, err := parse(nil, os.Stderr, getenv); err != nil || !real {
		t.Errorf("NODE=real: %t, %v", real, err)
	}
	if _, real, err := parse([]string{"--node="}, os.Stderr, getenv); err != nil || real {
		t.Errorf("NODE=real --node=: %t, %v", real, err)
	}
}

func TestKeepFromTheEnvironment(t *testing.T) {
	for value, want := range map[string]bool{"1": true, "0": false, "": false, "true": true} {
		o, _, err := parse(nil, os.Stderr, func(name string) string {
			if name == "KEEP" {
				return value
			}
			return ""
		})
		if err != nil || o.Keep != want {
			t.Errorf("KEEP=%s: keep = %t, error %v, want %t", value, o.Keep, err, want)
		}
	}
}

// Invalid options are refused before anything is built or started.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		args []string
		keep string
		code int
		want string
	}{
		{[]string{"--rate=many"}, "", exitUsage, "rate"},
		{[]string{"now"}, "", exitUsage, `unexpected argument "now"`},
		{nil, "perhaps", exitUsage, "KEEP=perhaps: give 1 or 0"},
		{[]string{"--hooks=maybe"}, "", exitFailed, "--hooks=maybe: give on, off or both"},
		{[]string{"--phases=explode"}, "", exitFailed, `there is no phase "explode"`},
		{[]string{"--node=moon"}, "", exitUsage, "--node=moon: give real"},
		{[]string{"--help"}, "", 0, "-kill-usher"},
	} {
		out, err := os.Create(filepath.Join(t.TempDir(), "out"))
		if err != nil {
			t.Fatal(err)
		}
		said := &bytes.Buffer{}
		code := run(context.Background(), nil, c.args, out, said, func(name string) string {
			if name == "KEEP" {
				return c.keep
			}
			return ""
		})
		if code != c.code || !strings.Contains(said.String(), c.want) {
			t.Errorf("%v KEEP=%s: exit code %d, said %q; want %d and %q", c.args, c.keep, code, said, c.code, c.want)
		}
		if info, err := out.Stat(); err != nil || info.Size() > 0 {
			t.Errorf("%v: something was shown: %v", c.args, err)
		}
		_ = out.Close()
	}
}
