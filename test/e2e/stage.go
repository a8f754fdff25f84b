// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/test/cluster/images"
	"github.com/usher-dev/usher/test/cluster/process"
	"github.com/usher-dev/usher/test/cluster/progress"
	"github.com/usher-dev/usher/test/cluster/realnode"
	"github.com/usher-dev/usher/test/cluster/sandbox"
)

// closeTime bounds the end of everything.
const closeTime = 30 * time.Second

// nodeGone is how long the node may be silent. It is silent while the API server is
// away, and the API server starts slowly on a busy machine.
const nodeGone = 20 * time.Second

// session is what all stories share.
type session struct {
	place   *sandbox.Place
	kit     kit
	stories []Story
	rate    int

	node    *realnode.Node
	kube    client.Client
	world   *world
	spawner *process.Spawner
	images  io.Closer
	// footprint is what is known of Usher's footprint so far.
	footprint Footprint

	etcds map[Registry]*etcd
	// leaving counts the stories whose namespaces are being deleted.
	leaving sync.WaitGroup
}

// openStage starts everything. On an error, nothing is left running.
func openStage(ctx context.Context, place *sandbox.Place, k kit, o Options, tell progress.Sink) (*session, error) {
	s := &session{place: place, kit: k, stories: o.chosen(), rate: o.Rate, spawner: process.NewSpawner(), etcds: map[Registry]*etcd{}}
	for _, step := range []func(context.Context, progress.Sink) error{
		s.startNode, s.serveImages, s.startRegistries, s.connect, s.installUsher, s.addRegistries,
	} {
		if err := step(ctx, tell); err != nil {
			return nil, errors.Join(err, s.close(ctx))
		}
	}
	return s, nil
}

func (s *session) path(parts ...string) string {
	return filepath.Join(append([]string{s.place.Dir}, parts...)...)
}

func (s *session) startNode(ctx context.Context, tell progress.Sink) error {
	node, err := realnode.Start(ctx, realnode.Options{
		Dir: s.path("node"), Cgroup: s.place.Cgroup, Assets: s.kit.Assets, Images: []string{s.kit.Programs, s.kit.Usher},
		Mirrors: map[string]string{images.PulledHost: "http://" + imageRegistry}, NodeGone: nodeGone, Tell: tell,
	})
	s.node = node
	return err
}

// imageRegistry is where the node pulls images from.
const imageRegistry = "127.0.0.1:5000"

func (s *session) serveImages(ctx context.Context, _ progress.Sink) (err error) {
	s.images, err = images.Serve(ctx, s.kit.Programs, imageRegistry)
	return err
}

// connect creates the administrator's client.
func (s *session) connect(context.Context, progress.Sink) error {
	all, err := newScheme()
	if err != nil {
		return err
	}
	if s.kube, err = client.New(s.node.RESTConfig(), client.Options{Scheme: all}); err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	return nil
}

// addRegistries creates the Registry objects and starts watching.
func (s *session) addRegistries(ctx context.Context, _ progress.Sink) error {
	for _, kind := range []Registry{Etcd, OwnEtcd, Consul, HAProxy} {
		if kind != Etcd && !uses(s.stories, kind) {
			continue
		}
		object, err := registryObject(kind, address(kind))
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

// close ends everything. It takes the time it needs, even if ctx has ended.
func (s *session) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
	defer cancel()
	var errs []error
	if s.images != nil {
		errs = append(errs, s.images.Close())
	}
	for _, kind := range []Registry{Etcd, OwnEtcd} {
		errs = append(errs, s.etcds[kind].close())
	}
	if s.node != nil {
		errs = append(errs, s.node.Stop(ctx))
	}
	s.spawner.Close()
	return errors.Join(errs...)
}

// tagOf is the tag of an image's name; empty if it has none.
func tagOf(image string) string {
	_, tag, _ := strings.Cut(image[strings.LastIndexByte(image, '/')+1:], ":")
	return tag
}
