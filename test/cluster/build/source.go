// SPDX-License-Identifier: Apache-2.0

// Package build compiles the real etcd and Kubernetes control plane from their own Go
// modules, as pinned by test/cluster/controlplane, into a user's cache. It needs only
// the go command and a module proxy, and it compiles only once per version.
//
// An interrupted build, even after SIGKILL, leaves nothing half-done: a binary is built
// under a temporary name and renamed, and the go command caches what it has compiled,
// so that the next build continues from there. Two builders never work on the same
// cache at once.
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
	"slices"
	"strings"
)

// moduleName is the first line of the pinning module's go.mod.
const moduleName = "github.com/usher-dev/usher/test/cluster/controlplane"

// SourceEnv names the environment variable for the path of test/cluster/controlplane,
// for programs that run outside the checkout.
const SourceEnv = "USHER_CONTROLPLANE"

// VersionEnv names the environment variable that selects the minor version of
// Kubernetes, for instance "v1.33". Empty means the one that go.mod pins; each other
// version has its own file next to it, v1.33.mod, which the script pin writes.
const VersionEnv = "USHER_KUBERNETES"

// Source is the module that pins the control plane.
type Source struct {
	// Dir is the module's directory.
	Dir string
	// ModFile is the file in it that pins the version, for instance "go.mod".
	ModFile string
	// Kubernetes is the pinned version, for instance "v1.36.3".
	Kubernetes string
	// Etcd is the pinned version, for instance "v3.6.8".
	Etcd string

	goMod, goSum []byte
}

// Gear is the module of tests and development tools that contains the source, in the
// root of the checkout.
func (s *Source) Gear() string { return filepath.Join(s.Dir, "..", "..") }

// FindSource finds and reads the pinning module. It looks in $USHER_CONTROLPLANE, then
// upwards from dir (usually the working directory), then where this program's own
// source was when it was compiled. $USHER_KUBERNETES selects the version.
func FindSource(dir string, getenv func(string) string) (*Source, error) {
	minor := getenv(VersionEnv)
	if fixed := getenv(SourceEnv); fixed != "" {
		src, err := readSource(fixed, minor)
		if err != nil {
			return nil, fmt.Errorf("%s must be the folder test/cluster/controlplane of a checkout: %w", SourceEnv, err)
		}
		return src, nil
	}
	for _, candidate := range candidates(dir) {
		src, err := readSource(candidate, minor)
		if err == nil {
			return src, nil
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errOtherModule) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("found no folder test/cluster/controlplane above %s: run this inside a checkout of Usher, "+
		"or set %s to that folder", dir, SourceEnv)
}

// candidates lists the directories that may be the module, nearest first.
func candidates(dir string) []string {
	list := []string{}
	for at := filepath.Clean(dir); ; at = filepath.Dir(at) {
		list = append(list, at, filepath.Join(at, "controlplane"), filepath.Join(at, "test", "cluster", "controlplane"))
		if at == filepath.Dir(at) {
			break
		}
	}
	// A -trimpath build has no absolute path here, and therefore no such candidate.
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		list = append(list, filepath.Join(filepath.Dir(file), "..", "controlplane"))
	}
	return list
}

var errOtherModule = errors.New("the folder holds another Go module")

func readSource(dir, minor string) (*Source, error) {
	src, err := readPin(dir, "go.mod")
	if err != nil || minor == "" || minor == minorOf(src.Kubernetes) {
		return src, err
	}
	others, err := filepath.Glob(filepath.Join(dir, "v*.mod"))
	if err != nil {
		return nil, err
	}
	known := []string{minorOf(src.Kubernetes)}
	for _, file := range others {
		known = append(known, strings.TrimSuffix(filepath.Base(file), ".mod"))
	}
	if !slices.Contains(known, minor) {
		return nil, fmt.Errorf("%s=%s: %s pins %s; its script pin adds another version",
			VersionEnv, minor, dir, strings.Join(slices.Sorted(slices.Values(known)), ", "))
	}
	return readPin(dir, minor+".mod")
}

// readPin reads a version file and the sums next to it.
func readPin(dir, file string) (*Source, error) {
	path := filepath.Join(dir, file)
	goMod, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if module(goMod) != moduleName {
		return nil, fmt.Errorf("%w than %s", errOtherModule, moduleName)
	}
	goSum, err := os.ReadFile(strings.TrimSuffix(path, ".mod") + ".sum")
	if err != nil {
		return nil, err
	}
	src := &Source{Dir: dir, ModFile: file, goMod: goMod, goSum: goSum}
	if src.Kubernetes, err = required(goMod, "k8s.io/kubernetes"); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if src.Etcd, err = required(goMod, "go.etcd.io/etcd/server/v3"); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
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

// Key names the cache directory of this source built with one Go version: whatever
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

// buildEnv is the only setting that the build adds to the environment: static binaries
// that need no C compiler.
const buildEnv = "CGO_ENABLED=0"

// ldflags strips the symbols and sets Kubernetes' version, which a plain go build does
// not know.
func (s *Source) ldflags(binary string) string {
	const strip = "-s -w"
	if binary == Etcd {
		return strip
	}
	const variable = " -X k8s.io/component-base/version."
	major, minor := majorMinor(s.Kubernetes)
	return strip + variable + "gitVersion=" + s.Kubernetes + variable + "gitMajor=" + major + variable + "gitMinor=" + minor
}

// minorOf is "v1.36" for "v1.36.3".
func minorOf(version string) string {
	major, minor := majorMinor(version)
	return "v" + major + "." + minor
}

func majorMinor(version string) (major, minor string) {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(parts) < 2 {
		return parts[0], ""
	}
	return parts[0], parts[1]
}
