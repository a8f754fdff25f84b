// SPDX-License-Identifier: Apache-2.0

// Package restore_test restores whole clusters from snapshots, with Usher at work: in place, next to their originals, and
// on other machines. All have the same registry, an etcd of their own.
package restore_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/cloneset"
	"github.com/usher-dev/usher/internal/registration"
	"github.com/usher-dev/usher/internal/registration/origin"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/internal/rewind"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/clustertest"
	"github.com/usher-dev/usher/test/cluster/node"
	"github.com/usher-dev/usher/test/integration/scene"
)

const (
	// namespace is the tenant's, system Usher's own.
	namespace, system = "shop", "usher-system"
	// keys is where the registry has the service's entries.
	keys = "services/web/"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	m.Run()
}

// site is a cluster with Usher.
type site struct {
	*scene.Scene
	listed *cluster.Etcd
}

// found is a site with a namespace for the tenant, and one for Usher.
func found(t *testing.T, c *cluster.Cluster, listed *cluster.Etcd) *site {
	t.Helper()
	p := checktest.Must(scene.New(c))(t)
	return &site{Scene: &scene.Scene{T: t, Plane: p, Namespace: namespace}, listed: listed}
}

// settle makes what every site has, and waits until all Pods are listed.
func (s *site) settle() {
	s.Helper()
	for _, name := range []string{namespace, system} {
		s.Must(s.Create(s.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	s.Call("etcd", s.listed.Endpoint())
	registry := s.Prop("Registry")
	registry.SetNamespace("")
	s.Must(s.Create(s.Context(), registry))
	s.Make(s.Prop("CloneSet"), s.Prop("Registration"))
}

// nodes starts nodes that simulate containers, until stop.
func (s *site) nodes() (stop func()) {
	s.Helper()
	ctx, cancel := context.WithCancel(s.Context())
	s.Must(scene.StartNodes(ctx, s.Cluster, 2, 0, node.Traits{}))
	return cancel
}

// usher runs two replicas with both halves as a kubelet does: a process that ends starts again, and remembers nothing.
// They run until stop, which returns why processes have ended before.
func (s *site) usher(options registration.Options) (stop func() []string) {
	s.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	var mu sync.Mutex
	var ends []string
	for range 2 {
		running.Go(func() {
			for ctx.Err() == nil {
				if err := s.replica(ctx, options); err != nil && ctx.Err() == nil {
					mu.Lock()
					ends = append(ends, err.Error())
					mu.Unlock()
				}
			}
		})
	}
	stop = sync.OnceValue(func() []string {
		cancel()
		running.Wait()
		return ends
	})
	s.Cleanup(func() { stop() })
	return stop
}

// replica runs a replica until it ends.
func (s *site) replica(ctx context.Context, options registration.Options) error {
	lease, deadline, retry := 4*time.Second, 3*time.Second, time.Second/5
	elects := ctrl.Options{
		LeaderElection: true, LeaderElectionID: "usher", LeaderElectionNamespace: system, LeaderElectionReleaseOnCancel: true,
		LeaseDuration: &lease, RenewDeadline: &deadline, RetryPeriod: &retry,
	}
	ended, err := s.Plane.Manage(ctx, s.RESTConfig(), elects, func(ctx context.Context, mgr ctrl.Manager) error {
		options := options
		options.Registerer = prometheus.NewRegistry()
		return errors.Join(
			rewind.Setup(mgr, lease/4), cloneset.Setup(ctx, mgr, cloneset.Options{}), registration.Setup(ctx, mgr, options))
	})
	if err != nil {
		return err
	}
	return <-ended
}

// lists waits until the registry has so many entries of Usher's.
func (s *site) lists(count int) (all []string) {
	s.Helper()
	s.Until(fmt.Sprintf("%d entries", count), func() string {
		all = nil
		for _, kv := range checktest.Must(s.listed.Client.Get(registrytest.Bounded(s.T), keys, clientv3.WithPrefix()))(s).Kvs {
			all = append(all, string(kv.Key))
		}
		return registrytest.Unless(len(all) == count, fmt.Sprintf("there are %q", all))
	})
	slices.Sort(all)
	return all
}

// changes are what has happened to the entries since a revision of the registry.
func (s *site) changes(since int64) (put, deleted []string) {
	s.Helper()
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	now := checktest.Must(s.listed.Client.Get(ctx, keys, clientv3.WithPrefix()))(s).Header.Revision
	// A key of another place marks the end of what has happened.
	checktest.Must(s.listed.Client.Put(ctx, keys+"~mark", ""))(s)
	for answer := range s.listed.Client.Watch(ctx, keys, clientv3.WithPrefix(), clientv3.WithRev(since+1)) {
		s.Must(answer.Err())
		for _, event := range answer.Events {
			switch {
			case event.Kv.ModRevision > now:
				checktest.Must(s.listed.Client.Delete(s.Context(), keys+"~mark"))(s)
				return put, deleted
			case string(event.Kv.Key) == keys+"~mark":
			case event.Type == clientv3.EventTypeDelete:
				deleted = append(deleted, string(event.Kv.Key))
			default:
				put = append(put, string(event.Kv.Key))
			}
		}
	}
	s.Fatal("the registry tells nothing of its changes")
	return nil, nil
}

// now is the registry's revision.
func (s *site) now() int64 {
	return checktest.Must(s.listed.Client.Get(registrytest.Bounded(s.T), keys))(s).Header.Revision
}

func (s *site) discovery() *usherv1alpha1.Registry {
	return &usherv1alpha1.Registry{ObjectMeta: metav1.ObjectMeta{Name: "discovery"}}
}

func (s *site) record() *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: origin.Name}}
}

func (s *site) scale(replicas int) { s.Change(s.Ref("CloneSet/web"), "spec: {replicas: %d}", replicas) }

// snapshot is a folder with a snapshot of the site.
func (s *site) snapshot() string {
	s.Helper()
	dir := filepath.Join(s.TempDir(), "snapshot")
	s.Must(s.Snapshot(s.Context(), dir))
	return dir
}

// original is a site that has settled, with Usher and nodes.
func original(t *testing.T) *site {
	t.Helper()
	s := found(t, clustertest.Start(t), clustertest.StartEtcd(t))
	s.settle()
	return s
}
