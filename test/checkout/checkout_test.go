// SPDX-License-Identifier: Apache-2.0

package checkout

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/cluster/progress"
)

func TestFindAndRead(t *testing.T) {
	root, err := Find(os.Getenv)
	registrytest.NoError(t, err)
	for folder, kind := range map[string]string{"crd": "CustomResourceDefinition", "rbac": "ClusterRole"} {
		objects, err := readFolder(filepath.Join(root, "config", folder), kind)
		if err != nil || len(objects) < 2 {
			t.Errorf("%s: %d objects of kind %s, %v", folder, len(objects), kind, err)
		}
	}
	if _, err := readFolder(filepath.Join(root, "config", "crd"), "Teapot"); err == nil || !strings.Contains(err.Error(), "Teapot") {
		t.Errorf("a kind that is not there: %v", err)
	}
	if _, err := readFolder(filepath.Join(root, "no-such-folder"), "ClusterRole"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder that is not there: %v", err)
	}
}

func TestReadObjects(t *testing.T) {
	objects, err := ReadObjects(strings.NewReader("# a comment\n---\napiVersion: v1\nkind: A\n---\n---\napiVersion: v1\nkind: B\n"))
	if err != nil || len(objects) != 2 || objects[0].GetKind() != "A" || objects[1].GetKind() != "B" {
		t.Errorf("got %v, %v", objects, err)
	}
	for _, text := range []string{"kind: [", "apiVersion: v1\n"} {
		if objects, err := ReadObjects(strings.NewReader(text)); err == nil {
			t.Errorf("%q is read as %v", text, objects)
		}
	}
}

func TestCompile(t *testing.T) {
	module := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		registrytest.NoError(t, os.WriteFile(filepath.Join(module, name), []byte(text), 0o644))
	}
	write("go.mod", "module example.test/tiny\n\ngo 1.26\n")
	write("main.go", "package main\n\nfunc main() { missing() }\n")
	program := Program{Name: "build tiny", Module: module, Pkg: ".", Out: filepath.Join(module, "tiny")}
	quiet := func(progress.Event) {}
	if err := program.Compile(t.Context(), quiet); err == nil || !strings.Contains(err.Error(), "undefined: missing") {
		t.Errorf("a program that is wrong: %v", err)
	}
	write("main.go", "package main\n\nfunc main() {}\n")
	if err := program.Compile(t.Context(), quiet); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(program.Out); err != nil {
		t.Error(err)
	}
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	if err := program.Compile(ctx, quiet); !errors.Is(err, stop) {
		t.Errorf("interrupted: %v, want the cause", err)
	}
}
