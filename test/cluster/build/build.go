// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/gofrs/flock"

	"github.com/usher-dev/usher/test/cluster/progress"
)

// The binaries that Ensure can build.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	// Kubelet is not part of a control plane, so All omits it.
	Kubelet = "kubelet"
)

// CacheEnv names the environment variable that replaces the default cache directory,
// which is "usher" in os.UserCacheDir().
const CacheEnv = "USHER_CACHE"

// lockPoll is how often to try the lock while another process builds.
const lockPoll = 200 * time.Millisecond

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
	// Tell receives the progress; nil is allowed.
	Tell progress.Sink
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

// missing lists the binaries that are not built yet.
func (b *Binaries) missing(wanted []string) (names []string) {
	for _, name := range wanted {
		if _, err := os.Stat(b.Path(name)); err != nil {
			names = append(names, name)
		}
	}
	return names
}

// Ensure builds what is missing and returns the directory. It needs the go command only
// if something is missing. The error contains what the go command wrote.
func Ensure(ctx context.Context, o Options) (*Binaries, error) {
	source, err := FindSource(o.Dir, os.Getenv)
	if err != nil {
		return nil, err
	}
	root := os.Getenv(CacheEnv)
	if root == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return nil, fmt.Errorf("find the cache directory (set %s to choose one): %w", CacheEnv, err)
		}
		root = filepath.Join(cache, "usher")
	}
	b := &Binaries{
		Dir:        filepath.Join(root, "controlplane", source.Key(runtime.Version())),
		Kubernetes: source.Kubernetes, Etcd: source.Etcd,
	}
	if len(o.Only) == 0 {
		o.Only = All()
	}
	if len(b.missing(o.Only)) == 0 {
		return b, nil
	}
	return b, b.build(ctx, source, o)
}

// build builds what is missing, after whoever else builds now.
func (b *Binaries) build(ctx context.Context, source *Source, o Options) (err error) {
	if err := os.MkdirAll(b.Dir, 0o755); err != nil {
		return fmt.Errorf("make the cache directory (set %s to choose another): %w", CacheEnv, err)
	}
	lock := flock.New(b.Path("build.lock"))
	if locked, _ := lock.TryLock(); !locked {
		o.Tell.Tell(progress.Event{Detail: "Another process is building the control plane: waiting for it."})
		if _, err := lock.TryLockContext(ctx, lockPoll); err != nil {
			return fmt.Errorf("wait for another build: %w", err)
		}
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	// Another process may have built some or all of it meanwhile.
	missing := b.missing(o.Only)
	if len(missing) > 0 {
		o.Tell.Tell(progress.Event{Detail: fmt.Sprintf("Building Kubernetes %s and etcd %s from source, into %s. The first time takes about five minutes on two cores.",
			b.Kubernetes, b.Etcd, b.Dir)})
	}
	for _, name := range missing {
		if err := b.buildOne(ctx, source, name, o.Tell); err != nil {
			return err
		}
	}
	return nil
}

// buildOne builds one binary under another name and renames it when it is complete.
func (b *Binaries) buildOne(ctx context.Context, source *Source, name string, tell progress.Sink) error {
	temp, count := b.Path(".building-"+name), 0
	tell.Tell(progress.Event{Task: name, State: progress.Compiling})
	err := Go(ctx, source.Dir, func() {
		count++
		tell.Tell(progress.Event{Task: name, State: progress.Compiling, Count: count})
	}, "build", "-v", "-modfile="+source.ModFile, "-ldflags", source.ldflags(name), "-o", temp, packagePath(name))
	if err == nil {
		err = os.Rename(temp, b.Path(name))
	}
	if err != nil {
		tell.Tell(progress.Event{Task: name, State: progress.Failed})
		return fmt.Errorf("build %s: %w", name, errors.Join(err, os.RemoveAll(temp)))
	}
	tell.Tell(progress.Event{Task: name, State: progress.Done})
	return nil
}
