// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdxlib"
)

// project makes a project with a program named usher, in its own directory.
func project(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	noError(t, os.CopyFS(root, fstest.MapFS{
		"go.mod": {Data: []byte("module example.com/usher\n\ngo 1.26.0\n")}, "LICENSE": {Data: []byte("Free.\n")},
		"cmd/usher/main.go": {Data: []byte("package main\n\nfunc main() { println(\"usher\") }\n")},
	}))
	return root
}

func build(t *testing.T, root string, platforms ...v1.Platform) *Result {
	t.Helper()
	return must(Source{Root: root, Name: "example.com/usher", Version: "1.2.3", Platforms: platforms}.Build(t.Context()))(t)
}

func digest(t *testing.T, result *Result) string {
	t.Helper()
	return must(result.Index.Digest())(t).String()
}

// TestUsherIsReproducible: building Usher itself twice gives the same image, which
// lists its components.
func TestUsherIsReproducible(t *testing.T) {
	linux := v1.Platform{OS: "linux", Architecture: "amd64"}
	first := build(t, "../..", linux)
	if a, b := digest(t, first), digest(t, build(t, "../..", linux)); a != b {
		t.Errorf("two builds make %s and %s", a, b)
	}
	list := must(spdxjson.Read(bytes.NewReader(first.Variants[0].SBOM)))(t)
	if err := spdxlib.ValidateDocument(list); err != nil {
		t.Error(err)
	}
	versions := map[string]string{}
	for _, pkg := range list.Packages {
		versions[pkg.PackageName] = pkg.PackageVersion
	}
	if len(list.Relationships) != len(list.Packages) {
		t.Errorf("%d relationships for %d packages", len(list.Relationships), len(list.Packages))
	}
	if versions["usher"] != "1.2.3" || versions["sigs.k8s.io/controller-runtime"] == "" || versions["stdlib"] == "" {
		t.Errorf("the SBOM lists %v", versions)
	}
}

// contents describes an image of Usher: its configuration, its annotations, its files.
func contents(t *testing.T, image v1.Image) string {
	t.Helper()
	config, errConfig := image.ConfigFile()
	manifest, errManifest := image.Manifest()
	layers, errLayers := image.Layers()
	noError(t, errors.Join(errConfig, errManifest, errLayers, validate.Image(image)))
	lines := []string{fmt.Sprintf("%s/%s user %s runs %v", config.OS, config.Architecture, config.Config.User, config.Config.Entrypoint)}
	for _, key := range slices.Sorted(maps.Keys(manifest.Annotations)) {
		lines = append(lines, key+"="+manifest.Annotations[key])
	}
	for _, layer := range layers {
		content := must(layer.Uncompressed())(t)
		reader := tar.NewReader(content)
		for header, err := reader.Next(); !errors.Is(err, io.EOF); header, err = reader.Next() {
			noError(t, err)
			lines = append(lines, fmt.Sprintf("%s %d:%d %d %s", header.FileInfo().Mode(), header.Uid, header.Gid, header.ModTime.Unix(), header.Name))
		}
	}
	return strings.Join(lines, "\n") + "\n"
}

// served returns a name in a registry.
func served(t *testing.T) (name.Tag, *httptest.Server) {
	t.Helper()
	server := httptest.NewServer(registry.New())
	t.Cleanup(server.Close)
	tag := must(name.NewTag(strings.TrimPrefix(server.URL, "http://") + "/usher:1.2.3"))(t)
	return tag, server
}

// TestCommand builds the same image twice, from sources in two places and into one folder: the layout,
// the archive and the registry have the same image.
func TestCommand(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	folder := t.TempDir()
	ref, _ := served(t)
	var said [2]strings.Builder
	for i := range said {
		noError(t, run(t.Context(), []string{"-root", project(t), "-version", "1.2.3", "-out", folder, "-push", ref.String()}, &said[i]))
	}
	tag := name.MustParseReference("ghcr.io/usher-dev/usher:1.2.3").(name.Tag)
	digest := layoutDigest(t, filepath.Join(folder, "oci"), tag)
	if said[0].String() != said[1].String() || !strings.HasPrefix(said[0].String(), tag.String()+"@"+digest.String()) {
		t.Errorf("it said:\n%s\nand then:\n%s\nwant %s", &said[0], &said[1], digest)
	}
	if pushed, err := remote.Head(ref); err != nil || pushed.Digest != digest {
		t.Errorf("the registry has %+v, %v, want %s", pushed, err, digest)
	}
	archived, errArchive := tarball.ImageFromPath(filepath.Join(folder, "usher-linux-arm64.tar"), &tag)
	pulled, errPulled := remote.Image(ref, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: "arm64"}))
	_, errList := os.Stat(filepath.Join(folder, "usher-linux-arm64.spdx.json"))
	noError(t, errors.Join(errArchive, errPulled, errList, validate.Image(archived)))
	want := must(os.ReadFile("testdata/arm64.txt"))(t)
	if diff := cmp.Diff(string(want), contents(t, pulled)); diff != "" {
		t.Errorf("the image (-want +got):\n%s", diff)
	}
	a, _ := archived.ConfigName()
	if b, _ := pulled.ConfigName(); a != b {
		t.Errorf("the archive holds %s, the registry %s", a, b)
	}
}

// layoutDigest returns the digest of the only image in a layout, which has the name.
func layoutDigest(t *testing.T, folder string, tag name.Tag) v1.Hash {
	t.Helper()
	index := must(layout.ImageIndexFromPath(folder))(t)
	manifest := must(index.IndexManifest())(t)
	noError(t, validate.Index(index))
	names := map[string]string{"org.opencontainers.image.ref.name": tag.TagStr(), "io.containerd.image.name": tag.String()}
	if len(manifest.Manifests) != 1 || !maps.Equal(manifest.Manifests[0].Annotations, names) {
		t.Fatalf("the layout lists %+v", manifest.Manifests)
	}
	return manifest.Manifests[0].Digest
}

func TestCommandFails(t *testing.T) {
	ref, server := served(t)
	server.Close()
	small := fmt.Sprintf("-root=%s -platforms=linux/amd64 -out=%s ", project(t), t.TempDir())
	for args, want := range map[string]string{
		"now":                           "unexpected argument",
		"-platforms a/b/c/d":            "-platforms",
		"-root /nowhere":                "is not the project's folder",
		small + "-push=" + ref.String(): "push " + ref.String(),
		small + "-name=web":             "such as example.com/web:v1",
	} {
		if err := run(t.Context(), strings.Fields(args), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("image %s: %v, want %q", args, err, want)
		}
	}
}

// noError ends the test if there is an error.
func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// must returns a value, unless there is an error.
func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		noError(t, err)
		return value
	}
}
