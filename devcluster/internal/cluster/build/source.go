// SPDX-License-Identifier: Apache-2.0

// Package build compiles the real etcd and Kubernetes control plane from their
// own Go modules, as pinned by devcluster/controlplane/go.mod, into a cache of
// the user. It needs nothing but the go command and a module proxy, and it
// compiles only once per version.
//
// A build that was interrupted, also by SIGKILL, leaves nothing half-done: a
// binary is built under a temporary name and renamed, and what the go command
// had compiled by then is kept by its own cache, so that the next build goes on
// from there. Two builders never work on the same cache at once.
package build

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// moduleName is the first line of the pinning module's go.mod.
const moduleName = "github.com/usher-dev/usher/devcluster/controlplane"

// SourceEnv names the environment variable that says where the folder
// devcluster/controlplane is, for programs that run outside the checkout.
const SourceEnv = "USHER_CONTROLPLANE"

// Source is the module that pins the control plane.
type Source struct {
	// Dir is the module's folder.
	Dir string
	// Kubernetes is the pinned version, for instance "v1.36.3".
	Kubernetes string
	// Etcd is the pinned version, for instance "v3.6.8".
	Etcd string

	goMod, goSum []byte
}

// FindSource finds and reads the pinning module. It looks in $USHER_CONTROLPLANE,
// then up from dir (usually the working directory), then where this program's
// own source was when it was compiled.
func FindSource(dir string, getenv func(string) string) (*Source, error) {
	if fixed := getenv(SourceEnv); fixed != "" {
		src, err := readSource(fixed)
		if err != nil {
			return nil, fmt.Errorf("%s must be the folder devcluster/controlplane of a checkout: %w", SourceEnv, err)
		}
		return src, nil
	}
	for _, candidate := range candidates(dir) {
		src, err := readSource(candidate)
		if err == nil {
			return src, nil
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errOtherModule) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("found no folder devcluster/controlplane above %s: run this inside a checkout of Usher, "+
		"or set %s to that folder", dir, SourceEnv)
}

// candidates lists the folders that may be the module, nearest first.
func candidates(dir string) []string {
	list := []string{}
	for at := filepath.Clean(dir); ; at = filepath.Dir(at) {
		list = append(list, at, filepath.Join(at, "controlplane"), filepath.Join(at, "devcluster", "controlplane"))
		if at == filepath.Dir(at) {
			break
		}
	}
	// A -trimpath build has no absolute path here, and then no such candidate.
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		list = append(list, filepath.Join(filepath.Dir(file), "..", "..", "..", "controlplane"))
	}
	return list
}

var errOtherModule = errors.New("the folder holds another Go module")

func readSource(dir string) (*Source, error) {
	goMod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return nil, err
	}
	if module(goMod) != moduleName {
		return nil, fmt.Errorf("%w than %s", errOtherModule, moduleName)
	}
	goSum, err := os.ReadFile(filepath.Join(dir, "go.sum"))
	if err != nil {
		return nil, err
	}
	src := &Source{Dir: dir, goMod: goMod, goSum: goSum}
	if src.Kubernetes, err = required(goMod, "k8s.io/kubernetes"); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, "go.mod"), err)
	}
	if src.Etcd, err = required(goMod, "go.etcd.io/etcd/server/v3"); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, "go.mod"), err)
	}
	return src, nil
}

func module(goMod []byte) string {
	for line := range lines(goMod) {
		if name, ok := strings.CutPrefix(line, "module "); ok {
			return strings.TrimSpace(name)
		}
	}
	return ""
}

// required reads the version of one required module from a go.mod.
func required(goMod []byte, path string) (string, error) {
	for line := range lines(goMod) {
		fields := strings.Fields(strings.TrimPrefix(line, "require "))
		if len(fields) >= 2 && fields[0] == path && strings.HasPrefix(fields[1], "v") {
			return fields[1], nil
		}
	}
	return "", fmt.Errorf("no line requires %s", path)
}

func lines(text []byte) func(func(string) bool) {
	return func(yield func(string) bool) {
		scan := bufio.NewScanner(bytes.NewReader(text))
		for scan.Scan() {
			if !yield(strings.TrimSpace(scan.Text())) {
				return
			}
		}
	}
}

// Key names the cache folder of this source built with one Go version: all that
// changes the binaries changes the key.
func (s *Source) Key(goVersion string) string {
	sum := sha256.New()
	for _, part := range []string{
		string(s.goMod), string(s.goSum), s.ldflags(Etcd), s.ldflags(APIServer), buildEnv, goVersion, runtime.GOOS, runtime.GOARCH,
	} {
		_, _ = fmt.Fprintf(sum, "%d:%s\n", len(part), part)
	}
	return s.Kubernetes + "-" + hex.EncodeToString(sum.Sum(nil))[:10]
}

// buildEnv is the one setting that the build adds to the environment: static
// binaries that need no C compiler.
const buildEnv = "CGO_ENABLED=0"

// ldflags strip the symbols and give Kubernetes its version, which a plain go
// build does not know.
func (s *Source) ldflags(binary string) string {
	const strip = "-s -w"
	if binary == Etcd {
		return strip
	}
	const variable = " -X k8s.io/component-base/version."
	major, minor := majorMinor(s.Kubernetes)
	return strip + variable + "gitVersion=" + s.Kubernetes + variable + "gitMajor=" + major + variable + "gitMinor=" + minor
}

func majorMinor(version string) (major, minor string) {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(parts) < 2 {
		return parts[0], ""
	}
	return parts[0], parts[1]
}
