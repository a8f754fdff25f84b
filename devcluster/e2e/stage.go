// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/devcluster/internal/cluster"
	"github.com/usher-dev/usher/devcluster/internal/cluster/progress"
	"github.com/usher-dev/usher/devcluster/internal/realnode"
	"github.com/usher-dev/usher/devcluster/internal/sandbox"
)

const (
	etcdPort   = 2379
	etcdPrefix = "services"
	dialTime   = 5 * time.Second
	keepAlive  = 2 * time.Second
	closeTime  = 30 * time.Second
	// nodeGone is longer than the API server needs for a restart on a busy machine:
	// the control plane would take that for the silence of the node.
	nodeGone = 20 * time.Second
)

// stage is what all stories share.
type stage struct {
	place *sandbox.Place
	kit   kit
	rate  int
	node  *realnode.Node
	kube  client.Client
	world *world

	// usherReady is how long Usher took from its manifests to Ready.
	usherReady time.Duration

	etcd       *cluster.Etcd
	etcdClient *clientv3.Client
	balanced   []string // Stories behind HAProxy.
	registries map[Registry]registry
	others     []*server // Those beside etcd.
}

// openStage brings everything up. On an error nothing of it is left running.
func openStage(ctx context.Context, place *sandbox.Place, k kit, o Options, tell progress.Sink) (*stage, error) {
	s := &stage{place: place, kit: k, rate: o.Rate, balanced: balanced(o.chosen())}
	for _, step := range []func(context.Context, progress.Sink) error{
		s.startNode, s.startEtcd, s.startRegistries, s.connect, s.installUsher, s.addRegistries,
	} {
		if err := step(ctx, tell); err != nil {
			return nil, errors.Join(err, s.close(ctx))
		}
	}
	return s, nil
}

func (s *stage) path(parts ...string) string {
	return filepath.Join(append([]string{s.place.Dir}, parts...)...)
}

func (s *stage) startNode(ctx context.Context, tell progress.Sink) error {
	node, err := realnode.Start(ctx, realnode.Options{
		Dir: s.path("node"), Cgroup: s.place.Cgroup, Assets: s.kit.Assets, Images: s.kit.Images, Tell: tell,
		NodeGone: nodeGone,
	})
	s.node = node
	return err
}

// startEtcd starts the registry etcd on the address of the node, where Pods and
// callers find it.
func (s *stage) startEtcd(ctx context.Context, tell progress.Sink) error {
	const task = "registry etcd"
	tell.Tell(progress.Event{Task: task, State: progress.Starting})
	var err error
	s.etcd, err = cluster.StartEtcd(ctx, s.path("etcd"), cluster.EtcdOptions{
		Port: etcdPort, ExtraArgs: []string{fmt.Sprintf("--listen-client-urls=http://0.0.0.0:%d", etcdPort)},
	})
	if err != nil {
		return fmt.Errorf("the registry etcd: %w", err)
	}
	s.etcdClient, err = clientv3.New(clientv3.Config{
		Endpoints: []string{s.etcd.Endpoint()}, DialTimeout: dialTime,
		DialKeepAliveTime: keepAlive, DialKeepAliveTimeout: keepAlive,
		Logger: zap.NewNop(), // Its outages are part of the stories.
	})
	if err != nil {
		return fmt.Errorf("the registry etcd: %w", err)
	}
	tell.Tell(progress.Event{Task: task, State: progress.Done, Detail: "ready at " + s.address(Etcd)})
	return nil
}

// connect makes the administrator's client.
func (s *stage) connect(context.Context, progress.Sink) error {
	all, err := newScheme()
	if err != nil {
		return err
	}
	if s.kube, err = client.New(s.node.RESTConfig(), client.Options{Scheme: all}); err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	return nil
}

// addRegistries makes the Registry objects and begins to watch.
func (s *stage) addRegistries(ctx context.Context, _ progress.Sink) error {
	for _, kind := range slices.Sorted(maps.Keys(s.registries)) {
		object, err := registryObject(kind, s.address(kind))
		if err != nil {
			return err
		}
		if err := s.kube.Create(ctx, object); err != nil {
			return fmt.Errorf("create Registry %s: %w", object.GetName(), err)
		}
	}
	var err error
	s.world, err = watchWorld(ctx, s.node.RESTConfig(), s.kube.Scheme())
	return err
}

// close ends everything. It takes the time that it needs, also when ctx has ended.
func (s *stage) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
	defer cancel()
	var errs []error
	if s.etcdClient != nil {
		errs = append(errs, s.etcdClient.Close())
	}
	if s.etcd != nil {
		errs = append(errs, s.etcd.Kill())
	}
	for _, r := range s.others {
		errs = append(errs, r.close())
	}
	if s.node != nil {
		errs = append(errs, s.node.Stop(ctx))
	}
	return errors.Join(errs...)
}

// tagOf is the tag of an image's name; empty if it has none.
func tagOf(image string) string {
	_, tag, _ := strings.Cut(image[strings.LastIndexByte(image, '/')+1:], ":")
	return tag
}
