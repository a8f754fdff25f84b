// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdxlib"
)

// project is a project with a program named usher, in its own directory.
func project(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range map[string]string{
		"go.mod": "module example.com/usher\n\ngo 1.26.0\n", "LICENSE": "Free.\n",
		"cmd/usher/main.go": "package main\n\nfunc main() { println(\"usher\") }\n",
	} {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func build(t *testing.T, root string, platforms ...v1.Platform) *Result {
	t.Helper()
	result, err := Source{Root: root, Name: "example.com/usher", Version: "1.2.3", Platforms: platforms}.Build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func digest(t *testing.T, result *Result) string {
	t.Helper()
	hash, err := result.Index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return hash.String()
}

// TestSamePlaceOrNot: the same sources give the same images for both platforms,
// wherever they are.
func TestSamePlaceOrNot(t *testing.T) {
	platforms := []v1.Platform{{OS: "linux", Architecture: "amd64"}, {OS: "linux", Architecture: "arm64"}}
	if a, b := digest(t, build(t, project(t), platforms...)), digest(t, build(t, project(t), platforms...)); a != b {
		t.Errorf("two builds make %s and %s", a, b)
	}
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	config, err := build(t, project(t), platforms[0]).Variants[0].Image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Created.Unix() != 1700000000 || config.Config.Labels["org.opencontainers.image.created"] != "2023-11-14T22:13:20Z" {
		t.Errorf("made at %s, labels %v", config.Created, config.Config.Labels)
	}
}

// TestUsherIsReproducible: building Usher itself twice gives the same image, which
// lists its components.
func TestUsherIsReproducible(t *testing.T) {
	linux := v1.Platform{OS: "linux", Architecture: "amd64"}
	first := build(t, "../..", linux)
	if a, b := digest(t, first), digest(t, build(t, "../..", linux)); a != b {
		t.Errorf("two builds make %s and %s", a, b)
	}
	list, err := spdxjson.Read(bytes.NewReader(first.Variants[0].SBOM))
	if err != nil {
		t.Fatal(err)
	}
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

func TestCommand(t *testing.T) {
	folder := t.TempDir()
	var out strings.Builder
	server := httptest.NewServer(registry.New())
	defer server.Close()
	pushed := strings.TrimPrefix(server.URL, "http://") + "/usher:1.2.3"
	args := []string{"-root", project(t), "-version", "1.2.3", "-out", folder, "-platforms", "linux/arm64", "-push", pushed}
	if err := run(t.Context(), args, &out); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"oci/index.json", "usher-linux-arm64.tar", "usher-linux-arm64.spdx.json"} {
		if _, err := os.Stat(filepath.Join(folder, name)); err != nil {
			t.Errorf("%v; it said:\n%s", err, &out)
		}
	}
	if ref, err := name.ParseReference(pushed); err != nil {
		t.Error(err)
	} else if _, err := remote.Head(ref); err != nil {
		t.Errorf("the registry does not have it: %v", err)
	}
	if !strings.HasPrefix(out.String(), "ghcr.io/usher-dev/usher:1.2.3@sha256:") {
		t.Errorf("it said:\n%s", &out)
	}
}

func TestCommandRefuses(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"now", "unexpected argument"},
		{"-platforms a/b/c/d", "-platforms"},
		{"-root /nowhere", "is not the project's folder"},
	} {
		if err := run(t.Context(), strings.Fields(test.args), &strings.Builder{}); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("image %s: %v, want %q", test.args, err, test.want)
		}
	}
}
