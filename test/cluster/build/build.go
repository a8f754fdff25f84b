// SPDX-License-Identifier: Apache-2.0

// Package build compiles the real etcd and Kubernetes control plane from their own Go
// modules, as pinned by test/cluster/controlplane, into a user's cache. It needs only
// the go command and a module proxy, and it compiles only once per version.
//
// An interrupted build, even after SIGKILL, leaves nothing half-done (fetch.Once), and the
// go command caches what it has compiled, so that the next build continues from there.
package build

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/fetch"
)

// buildEnv makes binaries static: they need no C compiler, and an image may hold nothing
// else. fetch.Run sets it.
const buildEnv = "CGO_ENABLED=0"

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
	// Kubernetes is the pinned version, for instance "v1.37.2".
	Kubernetes string
	// Etcd is the pinned version, for instance "v3.6.8".
	Etcd string

	goMod, goSum []byte
}

// Root returns the root of the checkout.
func (s *Source) Root() string { return filepath.Join(s.Dir, "..", "..", "..") }

// FindSource finds and reads the file that pins a minor version ("" means go.mod) in the checkout that
// contains the working directory.
func FindSource(minor string) (*Source, error) {
	from, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	for at := from; ; at = filepath.Dir(at) {
		source, err := readSource(filepath.Join(at, "test", "cluster", "controlplane"), minor)
		if !errors.Is(err, fs.ErrNotExist) {
			return source, err
		}
		if at == filepath.Dir(at) {
			return nil, fmt.Errorf("found no test/cluster/controlplane above %s: run this inside a checkout of Usher", from)
		}
	}
}

// readSource reads the file that pins a minor version: go.mod, or the one that is named
// after it.
func readSource(dir, minor string) (*Source, error) {
	source, err := readPin(dir, "go.mod")
	if err != nil || minor == "" || minor == semver.MajorMinor(source.Kubernetes) {
		return source, err
	}
	files, err := filepath.Glob(filepath.Join(dir, "v*.mod"))
	if err != nil {
		return nil, err
	}
	if file := minor + ".mod"; slices.Contains(files, filepath.Join(dir, file)) {
		return readPin(dir, file)
	}
	known := list.Map(files, func(file string) string { return strings.TrimSuffix(filepath.Base(file), ".mod") })
	known = append(known, semver.MajorMinor(source.Kubernetes))
	slices.Sort(known)
	return nil, fmt.Errorf("%s=%s: %s pins %s; its script pin adds another version", VersionEnv, minor, dir, strings.Join(known, ", "))
}

// readPin reads a version file and the sums next to it.
func readPin(dir, file string) (*Source, error) {
	path := filepath.Join(dir, file)
	goMod, modErr := os.ReadFile(path)
	goSum, sumErr := os.ReadFile(strings.TrimSuffix(path, ".mod") + ".sum")
	if err := errors.Join(modErr, sumErr); err != nil {
		return nil, err
	}
	parsed, err := modfile.ParseLax(path, goMod, nil)
	if err != nil {
		return nil, err
	}
	source := &Source{Dir: dir, ModFile: file, goMod: goMod, goSum: goSum}
	for _, required := range parsed.Require {
		switch required.Mod.Path {
		case "k8s.io/kubernetes":
			source.Kubernetes = required.Mod.Version
		case "go.etcd.io/etcd/server/v3":
			source.Etcd = required.Mod.Version
		}
	}
	if source.Kubernetes == "" || source.Etcd == "" {
		return nil, fmt.Errorf("%s requires no Kubernetes or no etcd", path)
	}
	return source, nil
}

// Key names the cache directory of this source built with one Go version: whatever
// changes the binaries changes the key.
func (s *Source) Key(goVersion string) string {
	return s.Kubernetes + "-" + fetch.Digest(
		string(s.goMod), string(s.goSum), s.ldflags(Etcd), s.ldflags(APIServer), buildEnv, goVersion, runtime.GOOS, runtime.GOARCH)
}

// ldflags strips the symbols and sets Kubernetes' version, which a plain go build does
// not know.
func (s *Source) ldflags(binary string) string {
	const strip = "-s -w"
	if binary == Etcd {
		return strip
	}
	const variable = " -X k8s.io/component-base/version."
	major, minor, _ := strings.Cut(strings.TrimPrefix(semver.MajorMinor(s.Kubernetes), "v"), ".")
	return strip + variable + "gitVersion=" + s.Kubernetes + variable + "gitMajor=" + major + variable + "gitMinor=" + minor
}

// The binaries that Ensure can build.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	// Kubelet and KubeProxy are not part of a control plane, so All omits them.
	Kubelet   = "kubelet"
	KubeProxy = "kube-proxy"
)

// All lists the binaries of a control plane in build order: the small one first, so
// that the wait soon shows a result.
func All() []string { return []string{Etcd, APIServer, ControllerManager, Scheduler} }

// packagePath returns the Go package of a binary.
func packagePath(binary string) string {
	if binary == Etcd {
		return "go.etcd.io/etcd/server/v3"
	}
	return "k8s.io/kubernetes/cmd/" + binary
}

// Binaries is a directory of built binaries.
type Binaries struct {
	// Dir is the directory.
	Dir string
	// Kubernetes is the version, for instance "v1.37.2".
	Kubernetes string
}

// Path returns the path of one binary.
func (b *Binaries) Path(name string) string { return filepath.Join(b.Dir, name) }

// Ensure builds what is missing of these binaries, or of a control plane's if none is named,
// and returns the directory. It needs the go command only if something is missing. The error
// contains what the go command wrote.
func Ensure(ctx context.Context, names ...string) (*Binaries, error) {
	source, err := FindSource(os.Getenv(VersionEnv))
	if err != nil {
		return nil, err
	}
	root, err := fetch.Root()
	if err != nil {
		return nil, err
	}
	b := &Binaries{Dir: filepath.Join(root, "controlplane", source.Key(runtime.Version())), Kubernetes: source.Kubernetes}
	if len(names) == 0 {
		names = All()
	}
	for _, name := range names {
		what := fmt.Sprintf("Building %s of Kubernetes %s from source (all of them take about five minutes on two cores)", name, b.Kubernetes)
		err := fetch.Once(ctx, b.Path(name), what, func(ctx context.Context, temp string) error {
			_, err := fetch.Run(ctx, source.Dir, "go", "build", "-modfile="+source.ModFile, "-ldflags", source.ldflags(name), "-o", temp, packagePath(name))
			return err
		})
		if err != nil {
			return b, err
		}
	}
	return b, nil
}
