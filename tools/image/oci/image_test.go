// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"archive/tar"
	"crypto/x509"
	"errors"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

const web = "example.com/web:v1"

func webSpec(architecture string) Spec {
	return Spec{
		Platform: v1.Platform{OS: "linux", Architecture: architecture}, Entrypoint: []string{"/usr/local/bin/web"},
		Labels:  map[string]string{"org.opencontainers.image.title": "web", "team": "a"},
		Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Layers: []Layer{Base(), {Comment: "web", Files: map[string]File{
			"usr/local/bin/web": {Content: []byte("program for " + architecture), Mode: 0o755},
			"etc/web.conf":      {Content: []byte("a=1\n")},
		}}},
	}
}

func image(t *testing.T, spec Spec) v1.Image {
	t.Helper()
	made, err := New(spec)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func digest(t *testing.T, of interface{ Digest() (v1.Hash, error) }) string {
	t.Helper()
	hash, err := of.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return hash.String()
}

func TestConfiguration(t *testing.T) {
	config, err := image(t, webSpec("arm64")).ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.OS != "linux" || config.Architecture != "arm64" || config.Config.User != "65532:65532" ||
		config.Config.Entrypoint[0] != "/usr/local/bin/web" || config.Config.Labels["team"] != "a" ||
		!config.Created.Equal(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)) {
		t.Errorf("configuration %+v", config)
	}
	manifest, err := image(t, webSpec("arm64")).Manifest()
	if err != nil {
		t.Fatal(err)
	}
	if manifest.Annotations["org.opencontainers.image.title"] != "web" || manifest.Annotations["team"] != "" {
		t.Errorf("annotations %v: want OCI's own keys only", manifest.Annotations)
	}
}

func TestLayer(t *testing.T) {
	layers, err := image(t, webSpec("amd64")).Layers()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, layer := range layers {
		content, err := layer.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		reader := tar.NewReader(content)
		for header, err := reader.Next(); !errors.Is(err, io.EOF); header, err = reader.Next() {
			if err != nil {
				t.Fatal(err)
			}
			if header.Uid != 0 || header.Gid != 0 || !header.ModTime.Equal(time.Unix(0, 0)) {
				t.Errorf("%s belongs to %d:%d and is of %s", header.Name, header.Uid, header.Gid, header.ModTime)
			}
			got = append(got, header.FileInfo().Mode().String()+" "+header.Name)
		}
	}
	want := []string{
		"drwxr-xr-x etc/", "-rw-r--r-- etc/group", "-rw-r--r-- etc/passwd",
		"drwxr-xr-x etc/ssl/", "drwxr-xr-x etc/ssl/certs/", "-rw-r--r-- etc/ssl/certs/ca-certificates.crt", "dtrwxrwxrwx tmp/",
		"drwxr-xr-x etc/", "-rw-r--r-- etc/web.conf",
		"drwxr-xr-x usr/", "drwxr-xr-x usr/local/", "drwxr-xr-x usr/local/bin/", "-rwxr-xr-x usr/local/bin/web",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the layers hold\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestAuthorities(t *testing.T) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authorities()) {
		t.Fatal("Go reads no certificate")
	}
	if n := strings.Count(string(authorities()), "BEGIN CERTIFICATE"); n < 80 {
		t.Errorf("%d authorities, which is too few to be Mozilla's", n)
	}
}

func TestFromBinary(t *testing.T) {
	folder := t.TempDir()
	script := filepath.Join(folder, "web")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := FromBinary(script); err == nil || !strings.Contains(err.Error(), "no Linux program") {
		t.Errorf("a script: %v", err)
	}
	if _, err := FromBinary(script + "2"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if err := os.WriteFile(script, []byte("\x7fELF program"), 0o600); err != nil {
		t.Fatal(err)
	}
	made, err := FromBinary(script)
	if err != nil {
		t.Fatal(err)
	}
	config, err := made.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Config.Entrypoint[0] != "/usr/local/bin/web" || config.OS != "linux" || config.Architecture == "" {
		t.Errorf("configuration %+v", config)
	}
}

func TestWriteTar(t *testing.T) {
	file := filepath.Join(t.TempDir(), "new", "images.tar")
	if err := WriteTar(file, map[string]v1.Image{web: image(t, webSpec("amd64"))}); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(web)
	if err != nil {
		t.Fatal(err)
	}
	read, err := tarball.ImageFromPath(file, &tag)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(read); err != nil {
		t.Errorf("the archive does not agree with itself: %v", err)
	}
	a, _ := image(t, webSpec("amd64")).ConfigName()
	if b, err := read.ConfigName(); a != b || err != nil {
		t.Errorf("the archive holds %s, %v, want %s", b, err, a)
	}
	if err := WriteTar(file, map[string]v1.Image{"web": read}); err == nil || !strings.Contains(err.Error(), "such as example.com/web:v1") {
		t.Errorf("a name without a tag: %v", err)
	}
}

func webIndex(t *testing.T) v1.ImageIndex {
	t.Helper()
	spec := webSpec("amd64")
	index, err := Index([]v1.Image{image(t, spec), image(t, webSpec("arm64"))}, spec.Labels)
	if err != nil {
		t.Fatal(err)
	}
	return index
}

func TestWriteLayout(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "oci")
	for range 2 { // The second time, it already exists.
		if err := WriteLayout(folder, web, webIndex(t)); err != nil {
			t.Fatal(err)
		}
	}
	read, err := layout.ImageIndexFromPath(folder)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(read); err != nil {
		t.Errorf("the layout does not agree with itself: %v", err)
	}
	manifest, err := read.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != 1 || manifest.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "v1" ||
		manifest.Manifests[0].Annotations["io.containerd.image.name"] != web ||
		manifest.Manifests[0].Digest.String() != digest(t, webIndex(t)) {
		t.Errorf("the layout lists %+v", manifest.Manifests)
	}
}

// TestPush: for each platform, a registry serves the image of that platform.
func TestPush(t *testing.T) {
	server := httptest.NewServer(registry.New())
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	if err := Push(t.Context(), host+"/web:v1", webIndex(t)); err != nil {
		t.Fatal(err)
	}
	if err := Push(t.Context(), host+"/one:v1", image(t, webSpec("arm64"))); err != nil {
		t.Fatal(err)
	}
	for _, repository := range []string{"/web:v1", "/one:v1"} {
		ref, err := name.ParseReference(host + repository)
		if err != nil {
			t.Fatal(err)
		}
		pulled, err := remote.Image(ref, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: "arm64"}))
		if err != nil {
			t.Fatal(err)
		}
		if err := validate.Image(pulled); err != nil {
			t.Errorf("what %s serves does not agree with itself: %v", repository, err)
		}
		if got, want := digest(t, pulled), digest(t, image(t, webSpec("arm64"))); got != want {
			t.Errorf("%s serves %s, want %s", repository, got, want)
		}
	}
	server.Close()
	if err := Push(t.Context(), host+"/web:v2", webIndex(t)); err == nil || !strings.Contains(err.Error(), "web:v2") {
		t.Errorf("a registry that is away: %v", err)
	}
}
