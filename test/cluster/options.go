// SPDX-License-Identifier: Apache-2.0

// Package cluster runs a real Kubernetes control plane on the loopback interface: etcd,
// kube-apiserver, kube-controller-manager and kube-scheduler, built from their own Go
// modules. There is no kubelet: package node can provide nodes; without it, Pods stay
// as the scheduler left them.
//
// A cluster is disposable. Each Start begins with an empty one. It writes only below
// Options.Dir and listens only on 127.0.0.1, and its processes end with the process
// that called Start, however that one ends.
package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/cluster/progress"
)

// DefaultStartTimeout bounds Start after the binaries are built.
const DefaultStartTimeout = 2 * time.Minute

// Options configures Start. Only Dir is required.
type Options struct {
	// Dir holds all that the cluster writes: data, keys, kubeconfigs and, below logs/,
	// one log per component. It is created if missing; a directory with unrelated
	// content is refused.
	Dir string
	// Port is the API server's port on 127.0.0.1; 0 means a free one.
	Port int
	// AuditLog is the file for the API server's audit log, one JSON line per request at
	// level Metadata, or "-" for the API server's own log; empty means none. Benchmarks
	// use it to count the API writes of each user agent.
	AuditLog string
	// ExtraArgs are appended to the components' arguments; of a repeated flag, the last
	// one wins.
	ExtraArgs ExtraArgs
	// StartTimeout bounds the start, without the build. 0 means DefaultStartTimeout.
	StartTimeout time.Duration
	// Tell receives the progress of build and start; nil is allowed.
	Tell progress.Sink
}

// ExtraArgs are additional arguments for each component, for instance
// "--node-monitor-grace-period=10s" for the controller manager.
type ExtraArgs struct {
	// Etcd is for etcd.
	Etcd []string
	// APIServer is for kube-apiserver.
	APIServer []string
	// ControllerManager is for kube-controller-manager.
	ControllerManager []string
	// Scheduler is for kube-scheduler. A file configures it; the scheduler ignores
	// arguments that the file also sets.
	Scheduler []string
}

func (o Options) withDefaults() (Options, error) {
	if o.Dir == "" {
		return o, errors.New("cluster: Options.Dir is empty: name the folder for the cluster's files")
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return o, fmt.Errorf("cluster: Options.Dir: %w", err)
	}
	o.Dir = dir
	if o.Port < 0 || o.Port > 65535 {
		return o, fmt.Errorf("cluster: Options.Port is %d: give one from 1 to 65535, or 0 for a free one", o.Port)
	}
	if o.StartTimeout == 0 {
		o.StartTimeout = DefaultStartTimeout
	}
	if o.AuditLog != "" && o.AuditLog != "-" {
		if o.AuditLog, err = filepath.Abs(o.AuditLog); err != nil {
			return o, fmt.Errorf("cluster: Options.AuditLog: %w", err)
		}
	}
	return o, nil
}

// marker is the file that identifies a directory as ours, so that a start never deletes
// anybody else's files.
const marker = ".usher-devcluster"

// layout names the files below Options.Dir.
type layout struct{ dir string }

func (l layout) path(parts ...string) string {
	return filepath.Join(append([]string{l.dir}, parts...)...)
}
func (l layout) log(component string) string { return l.path("logs", component+".log") }
func (l layout) pki(name string) string      { return l.path("pki", name) }
func (l layout) config(name string) string   { return l.path("config", name) }
func (l layout) adminKubeconfig() string     { return l.path("kubeconfig") }

// reset removes what the previous run left, except for its logs: they may show why it
// ended, and are kept under another name.
func (l layout) reset() error {
	if err := l.remove("etcd", "pki", "config", "kubeconfigs", "kubeconfig"); err != nil {
		return err
	}
	return l.keepLogs()
}

// keepLogs renames the logs of the previous run.
func (l layout) keepLogs() error {
	for _, name := range build.All() {
		err := os.Rename(l.log(name), l.log(name+".previous"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("keep an old log: %w", err)
		}
	}
	return nil
}

func (l layout) remove(names ...string) error {
	for _, name := range names {
		if err := os.RemoveAll(l.path(name)); err != nil {
			return fmt.Errorf("clear the cluster's folder: %w", err)
		}
	}
	return nil
}

// ClaimDir creates the directory for a cluster, or fails if it contains other files.
// Start does this too; a program that writes there earlier calls it first.
func ClaimDir(dir string) error { return layout{dir: dir}.claim() }

// claim marks an empty directory as ours and refuses any other.
func (l layout) claim() error {
	if err := os.MkdirAll(l.dir, 0o755); err != nil {
		return fmt.Errorf("make the cluster's folder: %w", err)
	}
	if _, err := os.Stat(l.path(marker)); err == nil {
		return nil
	}
	entries, err := os.ReadDir(l.dir)
	if err != nil {
		return fmt.Errorf("read the cluster's folder: %w", err)
	}
	if len(entries) > 0 {
		return fmt.Errorf("the folder %s holds files of others (for instance %s): choose an empty or a new folder for the cluster",
			l.dir, entries[0].Name())
	}
	return writeFile(l.path(marker), []byte("This folder belongs to Usher's devcluster, which empties it at each start.\n"), 0o644)
}

func writeFile(path string, text []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, text, mode)
}
