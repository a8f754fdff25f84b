// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/fstest"

	"sigs.k8s.io/yaml"

	"github.com/usher-dev/usher/internal/checktest"
)

// TestPack: an archive contains nothing of the machine and the time at which it was made.
func TestPack(t *testing.T) {
	text := checktest.Must(pack(fstest.MapFS{
		"kubectl-usher": {Data: []byte("program"), Mode: 0o755}, "LICENSE": {Data: []byte("text"), Mode: 0o644},
	}))(t)
	zip, err := gzip.NewReader(bytes.NewReader(text))
	if err != nil || !zip.ModTime.IsZero() {
		t.Fatalf("the archive has the time %v, %v", zip.ModTime, err)
	}
	bundle := tar.NewReader(zip)
	for _, want := range []string{"LICENSE -rw-r--r-- text", "kubectl-usher -rwxr-xr-x program"} {
		header, content := checktest.Must(bundle.Next())(t), checktest.Must(io.ReadAll(bundle))(t)
		checktest.Same(t, "a file of the archive", want, fmt.Sprintf("%s %s %s", header.Name, header.FileInfo().Mode(), content))
		if at := header.ModTime.Unix(); at != 0 || header.Uname != "" {
			t.Errorf("%s is of %q, %d", header.Name, header.Uname, at)
		}
	}
	if _, err := bundle.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("the archive goes on: %v", err)
	}
}

// TestManifest fills in the manifest for krew: one platform each, with its archive.
func TestManifest(t *testing.T) {
	r := release{Version: "1.2.3"}
	for _, platform := range platforms {
		a := archiveFor(platform)
		a.SHA256 = "sum of " + a.File
		r.Archives = append(r.Archives, a)
	}
	text := checktest.Must(r.manifest("../../.krew.yaml"))(t)
	var manifest struct {
		Spec struct {
			Version   string
			Platforms []struct {
				Selector         struct{ MatchLabels map[string]string }
				Bin, URI, SHA256 string
			}
		}
	}
	if err := yaml.Unmarshal(text, &manifest); err != nil || manifest.Spec.Version != "v1.2.3" || len(manifest.Spec.Platforms) != len(platforms) {
		t.Fatalf("%v in %s", err, text)
	}
	for i, p := range manifest.Spec.Platforms {
		a := r.Archives[i]
		const from = "https://github.com/usher-dev/usher/releases/download/v1.2.3/"
		labels := p.Selector.MatchLabels
		have := archive{labels["os"], labels["arch"], p.Bin, strings.TrimPrefix(p.URI, from), p.SHA256}
		if have != a {
			t.Errorf("%+v is not %+v", have, a)
		}
	}
}
