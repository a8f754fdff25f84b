// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/view"
)

// TestStates prints the output of status, why and doctor, and the Pods in trouble, for states that must
// not look healthy: those in testdata/states, at noon. The first object of a file is the workload.
func TestStates(t *testing.T) {
	files, err := filepath.Glob("testdata/states/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			all := read(t, file)
			w := view.Of(view.Gather(noon, all[0], all))
			var out bytes.Buffer
			p := &page{out: &out}
			p.status(&w, noon)
			troubled := list.Only(w.Members, func(pod view.Pod) bool { return pod.Trouble })
			p.line(plain, "\n# trouble: %s", cmp.Or(strings.Join(list.Map(troubled, func(pod view.Pod) string { return pod.Name }), " "), "none"))
			p.line(plain, "\n# why")
			p.why(&w, target{kindDeployment, w.Name}, noon)
			p.line(plain, "\n# doctor")
			p.findings(slices.DeleteFunc(view.Examine(view.Clock{Now: noon}, view.Read{All: all}), ofInstallation))
			compare(t, file, out.String())
		})
	}
}

// ofInstallation reports whether a finding is about Usher itself or about probes: these states do not
// concern it.
func ofInstallation(f view.Finding) bool {
	return f.Object == "cluster" || strings.Contains(f.Message, "readinessProbe")
}
