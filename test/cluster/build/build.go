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

// Options configures Ensure. The zero value builds a control plane.
type Options struct {
	// Dir is where the search for test/cluster/controlplane starts; empty means the
	// working directory.
	Dir string
	// Only names the wanted binaries; empty means those of All.
	Only []string
}

// Binaries is a directory of built binaries.
type Binaries struct {
	// Dir is the directory.
	Dir string
	// Kubernetes and Etcd are the versions, for instance "v1.36.3" and "v3.6.8".
	Kubernetes, Etcd string
}

// Path is the path of one binary.
func (b *Binaries) Path(name string) string { return filepath.Join(b.Dir, name) }

// Ensure builds what is missing and returns the directory. It needs the go command only
// if something is missing. The error contains what the go command wrote.
func Ensure(ctx context.Context, o Options) (*Binaries, error) {
	source, err := FindSource(o.Dir, os.Getenv)
	if err != nil {
		return nil, err
	}
	root, err := fetch.Root()
	if err != nil {
		return nil, err
	}
	b := &Binaries{
		Dir:        filepath.Join(root, "controlplane", source.Key(runtime.Version())),
		Kubernetes: source.Kubernetes, Etcd: source.Etcd,
	}
	if len(o.Only) == 0 {
		o.Only = All()
	}
	for _, name := range o.Only {
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
