// SPDX-License-Identifier: Apache-2.0

package checkout

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/usher-dev/usher/internal/checktest"
)

func TestCompile(t *testing.T) {
	module := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		checktest.NoError(t, os.WriteFile(filepath.Join(module, name), []byte(text), 0o644))
	}
	write("go.mod", "module example.test/tiny\n\ngo 1.26\n")
	write("main.go", "package main\n\nfunc main() { missing() }\n")
	program := Program{Name: "build tiny", Module: module, Pkg: ".", Out: filepath.Join(module, "tiny")}
	checktest.Says(t, "a program that is wrong", program.Compile(t.Context(), nil), "undefined: missing")
	write("main.go", "package main\n\nfunc main() {}\n")
	checktest.NoError(t, program.Compile(t.Context(), nil))
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
