// SPDX-License-Identifier: Apache-2.0

// Package cluster runs a real Kubernetes control plane on the loopback interface: etcd,
// kube-apiserver, kube-controller-manager and kube-scheduler, built from their own Go
// modules. There is no kubelet: package node can provide nodes; without it, Pods stay
// as the scheduler left them.
//
// A cluster is disposable. Each Start begins with an empty one. It writes only below
// Options.Dir and listens only on 127.0.0.1, and its processes end with the process
// that called Start, however that one ends.
//
// envtest's ControlPlane does not fit: its processes outlive a killed parent, it starts no controller
// manager, and it does not export its certificate authority, which signs tokens, certificates and users
// here.
package cluster

import (
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gofrs/flock"

	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/cluster/progress"
)

// Options configures Start. Only Dir is required.
type Options struct {
	// Dir holds all that the cluster writes: data, keys, kubeconfigs and, below logs/,
	// one log per component. It is created if missing; a directory with unrelated
	// content is refused.
	Dir string
	// Port is the port of the API server, or of the balancer, on 127.0.0.1; 0 means a free one.
	Port int
	// HA makes the control plane as production has it; nil means one API server and one member of etcd.
	HA *HA
	// Snapshot is a folder that Cluster.Snapshot has made of another cluster: this one begins with its objects and has its
	// keys, as one that is restored next to its original. Empty means an empty cluster.
	Snapshot string
	// AuditLog is the file for the API server's audit log, one JSON line per request at
	// level Metadata; empty means none. Benchmarks use it to count the API writes of
	// each user agent.
	AuditLog string
	// AuditPolicy is the audit policy, YAML of audit.k8s.io/v1; empty means that each request is logged.
	AuditPolicy string
	// ExtraArgs are appended to the components' arguments; of a repeated flag, the last
	// one wins.
	ExtraArgs ExtraArgs
	// Progress receives the progress of build and start; nil is allowed.
	Progress progress.Sink
}

// ExtraArgs are additional arguments by component, for instance
// "--node-monitor-grace-period=10s" for build.ControllerManager.
type ExtraArgs map[string][]string

// marker is the file that identifies a directory as ours, so that a start never deletes files of
// others. It is also the lock.
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

// claim creates the directory if it is missing and locks it for one cluster, unless it contains
// other files. The kernel releases the lock when this process ends, however it ends.
func claim(dir string) (*flock.Flock, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read the cluster's directory: %w", err)
	}
	if len(entries) > 0 && !slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == marker }) {
		return nil, fmt.Errorf("the directory %s holds other files (for instance %s): choose an empty or a new directory for the cluster",
			dir, entries[0].Name())
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	lock := flock.New(filepath.Join(dir, marker))
	locked, err := lock.TryLock()
	if err == nil && !locked {
		err = errors.New("a cluster already runs there: stop it first, or choose another directory")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), lock.Close())
	}
	return lock, nil
}

// reset removes what the previous run left, except for its logs, which grow.
func (l layout) reset() error {
	for _, name := range []string{"etcd", "pki", "config", "kubeconfigs", "kubeconfig"} {
		if err := os.RemoveAll(l.path(name)); err != nil {
			return fmt.Errorf("clear the cluster's directory: %w", err)
		}
	}
	return nil
}

func writeFile(path string, text []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, text, mode)
}

// ServiceRange is the range of cluster IPs. Only package realnode has a kube-proxy that
// routes them.
const ServiceRange = "10.96.0.0/16"

const loopback = "127.0.0.1"

// The components' flags and configuration, with values of a start as $NAME.
var (
	//go:embed config/etcd.flags
	etcdFlags string
	//go:embed config/kube-apiserver.flags
	apiServerFlags string
	//go:embed config/ha.flags
	haFlags string
	//go:embed config/audit.flags
	auditFlags string
	//go:embed config/audit-policy.yaml
	auditPolicy string
	//go:embed config/kube-controller-manager.flags
	controllerManagerFlags string
	//go:embed config/controllers.flags
	controllersFlags string
	//go:embed config/kube-scheduler.flags
	schedulerFlags string
	//go:embed config/kube-scheduler.yaml
	schedulerConfig string
)

// components are the flags of the components, and the URLs of their health.
var components = map[string]struct{ flags, health string }{
	build.Etcd:              {etcdFlags, "http://127.0.0.1:$CLIENT/health"},
	build.APIServer:         {apiServerFlags, "https://127.0.0.1:$API/readyz"},
	build.ControllerManager: {controllerManagerFlags, "https://127.0.0.1:$CONTROLLERS/healthz"},
	build.Scheduler:         {schedulerFlags, "https://127.0.0.1:$SCHEDULER/readyz"},
}

// Fill replaces each $NAME in a text by its value. A name without a value stays, so that the reader of
// the text reports it.
func Fill(text string, values map[string]string) string {
	return os.Expand(text, func(name string) string {
		if value, ok := values[name]; ok {
			return value
		}
		return "$" + name
	})
}

// flags returns the flags in a text, one on a line, and then further ones: of a repeated flag, the last
// one wins.
func flags(text string, values map[string]string, extra []string) []string {
	lines := strings.Split(Fill(text, values), "\n")
	return append(slices.DeleteFunc(lines, func(line string) bool { return !strings.HasPrefix(line, "--") }), extra...)
}

// part is a component that runs, or one of several that run the same binary.
type part struct {
	// name is the binary's, of several with a number.
	name, binary string
	values       map[string]string
}

// newPart returns the i-th of n parts with a binary.
func (c *Cluster) newPart(binary string, i, n int, values map[string]string) part {
	own := maps.Clone(c.values)
	maps.Copy(own, values)
	if n == 1 {
		return part{binary, binary, own}
	}
	return part{fmt.Sprintf("%s-%d", binary, i+1), binary, own}
}

// args returns the arguments of a component.
func (c *Cluster) args(p part) []string {
	text, extra := components[p.binary].flags, c.opts.ExtraArgs[p.binary]
	if p.binary == build.APIServer && c.ha != nil {
		text += haFlags
	}
	if p.binary == build.APIServer && c.opts.AuditLog != "" {
		text += auditFlags
	}
	found := flags(text, p.values, extra)
	if p.binary == build.ControllerManager {
		// Of --controllers the values add up, and the first one about a controller counts: extra's.
		found = append(found, flags(controllersFlags, nil, nil)...)
	}
	return found
}
