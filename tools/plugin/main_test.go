// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestPack: an archive says nothing of the machine and the time that it was made on.
func TestPack(t *testing.T) {
	files := []file{{"kubectl-usher", 0o755, []byte("program")}, {"LICENSE", 0o644, []byte("text")}}
	text, err := pack(files)
	if err != nil {
		t.Fatal(err)
	}
	zip, err := gzip.NewReader(bytes.NewReader(text))
	if err != nil || !zip.ModTime.IsZero() || zip.Name != "" {
		t.Fatalf("the archive has the name %q and the time %v, %v", zip.Name, zip.ModTime, err)
	}
	bundle := tar.NewReader(zip)
	for _, want := range files {
		header, err := bundle.Next()
		if err != nil {
			t.Fatal(err)
		}
		have, err := io.ReadAll(bundle)
		if err != nil || header.Name != want.name || header.Mode != want.mode || !bytes.Equal(have, want.text) {
			t.Errorf("%s with mode %o has %q, %v; want %+v", header.Name, header.Mode, have, err, want)
		}
		if header.ModTime.Unix() != 0 || header.Uid != 0 || header.Uname != "" {
			t.Errorf("%s is of %q, %v", header.Name, header.Uname, header.ModTime)
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
	text, err := r.manifest("../../.krew.yaml")
	if err != nil {
		t.Fatal(err)
	}
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
		if p.Selector.MatchLabels["os"] != a.OS || p.Selector.MatchLabels["arch"] != a.Arch || p.Bin != a.Binary || p.URI != from+a.File || p.SHA256 != a.SHA256 {
			t.Errorf("%+v is not %+v", p, a)
		}
	}
}
