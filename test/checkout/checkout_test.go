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
)

func TestCompile(t *testing.T) {
	module := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		registrytest.NoError(t, os.WriteFile(filepath.Join(module, name), []byte(text), 0o644))
	}
	write("go.mod", "module example.test/tiny\n\ngo 1.26\n")
	write("main.go", "package main\n\nfunc main() { missing() }\n")
	program := Program{Name: "build tiny", Module: module, Pkg: ".", Out: filepath.Join(module, "tiny")}
	if err := program.Compile(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "undefined: missing") {
		t.Errorf("a program that is wrong: %v", err)
	}
	write("main.go", "package main\n\nfunc main() {}\n")
	if err := program.Compile(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(program.Out); err != nil {
		t.Error(err)
	}
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	if err := program.Compile(ctx, nil); !errors.Is(err, stop) {
		t.Errorf("interrupted: %v, want the cause", err)
	}
}
