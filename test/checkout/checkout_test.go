// SPDX-License-Identifier: Apache-2.0

package checkout

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/test/fetch"
)

// module is a module with one program, which is built in a cache of the test's own.
type module struct {
	*testing.T
	dir string
}

func newModule(t *testing.T) module {
	t.Helper()
	t.Setenv(fetch.CacheEnv, t.TempDir())
	m := module{t, t.TempDir()}
	m.write("go.mod", "module example.test/tiny\n\ngo 1.26\n")
	return m
}

func (m module) write(name, text string) {
	m.Helper()
	checktest.NoError(m, os.WriteFile(filepath.Join(m.dir, name), []byte(text), 0o644))
}

// body writes the program's statements.
func (m module) body(text string) {
	m.Helper()
	m.write("main.go", "package main\n\nfunc main() { "+text+" }\n")
}

// program returns the program, with another output file each time.
func (m module) program() Program {
	return Program{Name: "build tiny", Module: m.dir, Pkg: ".", Out: filepath.Join(m.TempDir(), "bin", "tiny")}
}

func TestCompileFails(t *testing.T) {
	m := newModule(t)
	m.body("missing()")
	checktest.Says(t, "a program that is wrong", m.program().Compile(t.Context(), nil), "build tiny: ", "undefined: missing")
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	if err := m.program().Compile(ctx, nil); !errors.Is(err, stop) {
		t.Errorf("interrupted: %v, want the cause", err)
	}
}

// TestOneBuild: all builds of a program share one file, which is linked again when its source has
// changed. Earlier copies stay as they were.
func TestOneBuild(t *testing.T) {
	m := newModule(t)
	want, linked := map[string]string{}, []os.FileInfo{}
	for _, says := range []string{"one", "one", "two"} {
		m.body(`println("` + says + `")`)
		var all errgroup.Group
		for range 3 {
			program := m.program()
			want[program.Out] = says + "\n"
			all.Go(func() error { return program.Compile(t.Context(), nil) })
		}
		checktest.NoError(t, all.Wait())
		shared := checktest.Must(m.program().shared())(t)
		linked = append(linked, checktest.Must(os.Stat(shared))(t))
	}
	for path, text := range want {
		says := checktest.Must(exec.CommandContext(t.Context(), path).CombinedOutput())(t)
		checktest.Same(t, "what it says", text, string(says))
	}
	if !os.SameFile(linked[0], linked[1]) || os.SameFile(linked[1], linked[2]) {
		t.Error("it is linked although nothing has changed, or not although something has")
	}
}
