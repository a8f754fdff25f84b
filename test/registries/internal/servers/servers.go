// SPDX-License-Identifier: Apache-2.0

// Package servers runs the real servers that connectors are tested with, for the
// duration of a test.
package servers

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/fetch"
	"github.com/usher-dev/usher/test/servers/run"
)

const (
	// fetchTimeout bounds a first download or build.
	fetchTimeout = 30 * time.Minute
	// shownLines is how much of its output a failed test shows.
	shownLines = 40
)

// Start starts a server, waits until it is ready, and kills it at the end of the test.
func Start(t *testing.T, spec run.Spec) *run.Process {
	t.Helper()
	spec.Log = filepath.Join(t.TempDir(), spec.Name+".log")
	p := checktest.Must(run.Start(t.Context(), spec))(t)
	Close(t, p)
	return p
}

// Close kills a server at the end of the test. A failed test shows the end of the
// server's output.
func Close(t *testing.T, p *run.Process) {
	t.Helper()
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the end of %s:\n%s", p.Log(), strings.Join(p.Tail(shownLines), "\n"))
		}
	})
}

// Must sends a request that must succeed, bypassing the connector.
func Must(t *testing.T, h run.HTTP, method, path string, question, into any) {
	t.Helper()
	checktest.Must(h.Do(registrytest.Bounded(t), method, path, question, into))(t)
}

// FreePorts returns n free ports of 127.0.0.1.
func FreePorts(t *testing.T, n int) []int {
	t.Helper()
	return checktest.Must(run.FreePorts(t.Context(), n))(t)
}

// Fetch returns the path of something that get downloads or builds the first time.
func Fetch(t *testing.T, get func(ctx context.Context) (string, error)) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fetchTimeout)
	defer cancel()
	return checktest.Must(get(ctx))(t)
}

// Java returns the arguments with which Java runs the only source file in the directory,
// with the libraries of its pom.xml. Of classes that several libraries have, those of the first jars count.
func Java(t *testing.T, name, project string, first ...string) []string {
	t.Helper()
	jars := Fetch(t, func(ctx context.Context) (string, error) { return fetch.Maven(ctx, name, project) })
	sources, err := filepath.Glob(filepath.Join(project, "*.java"))
	if err != nil || len(sources) != 1 {
		t.Fatalf("%s has the sources %v, %v; want one", project, sources, err)
	}
	return runs(t, jars, sources[0], first...)
}

// JavaOf is Java for a source file that several projects share.
func JavaOf(t *testing.T, name, project, source string) []string {
	t.Helper()
	return runs(t, Fetch(t, func(ctx context.Context) (string, error) { return fetch.Maven(ctx, name, project) }), source)
}

// runs are the arguments with which Java runs a source file.
func runs(t *testing.T, jars, source string, first ...string) []string {
	t.Helper()
	var path []string
	for _, jar := range append(first, "*") {
		path = append(path, filepath.Join(jars, jar))
	}
	return []string{"-cp", strings.Join(path, ":"), checktest.Must(filepath.Abs(source))(t)}
}

// debianPrograms are the directories of DebianProgram by package: apt takes seconds to
// resolve a package's dependencies.
var debianPrograms sync.Map

// DebianProgram returns the directory with the programs of a Debian package.
func DebianProgram(t *testing.T, name string) string {
	t.Helper()
	folder, ok := debianPrograms.Load(name)
	if !ok {
		folder = Fetch(t, func(ctx context.Context) (string, error) { return fetch.DebianProgram(ctx, name) })
		debianPrograms.Store(name, folder)
	}
	return folder.(string)
}
