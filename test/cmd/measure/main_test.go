// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/usher-dev/usher/test/bench"
)

func TestFlags(t *testing.T) {
	got, err := parse([]string{"-sizes=100, 500", "-phase-limit=90s", "-out=r.json", "-markdown=r.md", "-check"}, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got.sizes, []int{100, 500}) || got.limit != 90*time.Second || got.out != "r.json" || got.markdown != "r.md" || !got.check {
		t.Errorf("got %+v", got)
	}
	usual, err := parse(nil, os.Stderr)
	if err != nil || !slices.Equal(usual.sizes, []int{100, 2000}) || usual.limit != bench.DefaultPhaseLimit || usual.check {
		t.Errorf("without flags: %+v, %v", usual, err)
	}
}

func TestRegistriesFlag(t *testing.T) {
	got, err := parse([]string{"-registries=etcd,consul"}, os.Stderr)
	if err != nil || !slices.Equal(got.sizes, []int{200, 5000}) || !slices.Equal(got.registries, []string{"etcd", "consul"}) {
		t.Errorf("got %+v, %v", got, err)
	}
}

// Invalid options are refused before anything is built or started.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"-sizes=many"}, exitUsage, `"many" is no number: give numbers of Pods`},
		{[]string{"-sizes=,"}, exitUsage, "no number"},
		{[]string{"-registries=disk"}, exitFailed, `registry "disk": give some of etcd, consul`},
		{[]string{"now"}, exitUsage, `unexpected argument "now"`},
		{[]string{"-phase-limit=long"}, exitUsage, "phase-limit"},
		{[]string{"-out=no/such/folder/r.json"}, exitUsage, "there is no folder no/such/folder"},
		{[]string{"-sizes=0"}, exitFailed, "size 0: give numbers of Pods from 1 to"},
		{[]string{"-sizes=10,1000000"}, exitFailed, "size 1000000"},
		{[]string{"-phase-limit=-1s"}, exitFailed, "give a positive duration"},
		{[]string{"-help"}, 0, "-sizes"},
	} {
		said := &bytes.Buffer{}
		code := run(t.Context(), c.args, os.Stdout, said, os.Getenv)
		if code != c.code || !strings.Contains(said.String(), c.want) {
			t.Errorf("%v: exit code %d, said %q; want %d and %q", c.args, code, said, c.code, c.want)
		}
	}
}

func TestWrite(t *testing.T) {
	folder := t.TempDir()
	s := settings{out: filepath.Join(folder, "r.json"), markdown: filepath.Join(folder, "r.md")}
	if err := s.write(&bench.Report{Machine: bench.Machine{CPUs: 3}}); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(s.out)
	if err != nil {
		t.Fatal(err)
	}
	var again bench.Report
	if err := json.Unmarshal(data, &again); err != nil || again.Machine.CPUs != 3 {
		t.Errorf("the JSON is %s: %v", data, err)
	}
	if text, err := os.ReadFile(s.markdown); err != nil || !strings.Contains(string(text), "3 processors") {
		t.Errorf("the Markdown is %s: %v", text, err)
	}
	nowhere := settings{out: filepath.Join(folder, "none", "r.json"), markdown: filepath.Join(folder, "none", "r.md")}
	if err := nowhere.write(&bench.Report{}); err == nil || !strings.Contains(err.Error(), "--out") || !strings.Contains(err.Error(), "--markdown") {
		t.Errorf("files that cannot be written: %v", err)
	}
}
