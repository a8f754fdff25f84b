// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/usher-dev/usher/internal/checktest"
)

const manifestBeta = `apiVersion: v1
kind: Service
metadata:
  name: web
---
apiVersion: apps.kruise.io/v1beta1
kind: CloneSet
metadata:
  name: web
spec:
  scaleStrategy:
    enablePVCReuse: true
  updateStrategy:
    rollingUpdate:
      partition: 50%
      podUpdatePolicy: InPlaceOnly
    type: OnDelete
`

const manifestAlpha = `apiVersion: v1
kind: Service
metadata:
  name: web
---
apiVersion: apps.kruise.io/v1alpha1
kind: CloneSet
metadata:
  name: web
spec:
  updateStrategy:
    partition: 50%
    type: OnDelete
`

const manifestLoss = "clone/web: spec.updateStrategy.rollingUpdate.podUpdatePolicy: InPlaceOnly has no effect with the type OnDelete, and is left out\n"

// TestConvert: CloneSets of a file are printed in the other version, other objects as they are, and what
// is lost on standard error. No cluster is asked.
func TestConvert(t *testing.T) {
	file := filepath.Join(t.TempDir(), "web.yaml")
	checktest.NoError(t, os.WriteFile(file, []byte(manifestBeta), 0o600))
	for _, one := range []struct {
		args                  []string
		out, complaint, fails string
	}{
		{args: []string{"-f", file}, out: manifestAlpha, complaint: manifestLoss},
		{args: []string{"-f", file, "--to", "v1beta1"}, out: manifestBeta},
		{args: []string{"-f", file, "--strict"}, complaint: manifestLoss, fails: "exit code 1"},
		{args: []string{"-f", file, "--to", "v2"}, fails: "convert clone/web: a CloneSet cannot be converted to apps.kruise.io/v2: choose apps.kruise.io/v1alpha1 or apps.kruise.io/v1beta1"},
		{fails: "say which file to convert: -f FILE, or -f - for standard input"},
	} {
		var out, complaint bytes.Buffer
		root := newCommand(genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: &out, ErrOut: &complaint})
		root.SetArgs(append([]string{"convert", "--server", "http://127.0.0.1:1"}, one.args...))
		text := ""
		if err := root.ExecuteContext(t.Context()); err != nil {
			text = err.Error()
		}
		checktest.Same(t, "error", one.fails, text)
		checktest.Same(t, "output", one.out, out.String())
		checktest.Same(t, "losses", one.complaint, complaint.String())
	}
}
