// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/usher-dev/usher/test/fetch"
)

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

// packagePath is the Go package of a binary.
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
	// Kubernetes is the version, for instance "v1.36.3".
	Kubernetes string
}

// Path is the path of one binary.
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
