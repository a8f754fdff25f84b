// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/realnode"
	"github.com/usher-dev/usher/test/cluster/sandbox"
	"github.com/usher-dev/usher/test/stage"
)

// nodeGone is how long the node may go without a heartbeat. There is none while the API server is down,
// and that starts slowly on a busy machine.
const nodeGone = 20 * time.Second

// session has the parts that all stories share.
type session struct {
	*stage.Stage
	place   *sandbox.Place
	kit     kit
	stories []Story
	rate    int // requests per second in each story

	node    *realnode.Node
	clients kubernetes.Interface
	objects cache.Cache
	changes stage.Watched // of objects
	etcds   map[Registry]*cluster.Etcd
	// ownEtcd is held by the story that has OwnEtcd, which it may kill.
	ownEtcd sync.Mutex
	// footprint has the rows about Usher's footprint so far.
	footprint [][]stage.Cell
	foundMu   sync.Mutex
	// leaving counts the stories whose namespaces are being deleted.
	leaving sync.WaitGroup
}

func (s *session) startNode(ctx context.Context, on *stage.Stage) (err error) {
	s.Stage = on
	if err := stage.Load(&s.kit, s.place.Dir, kitFile); err != nil {
		return err
	}
	s.node, err = s.StartRealNode(ctx, s.place, realnode.Options{
		Assets: s.kit.Assets, Images: []string{s.kit.Programs, s.kit.Usher}, NodeGone: nodeGone,
		Second: slices.ContainsFunc(s.stories, func(story Story) bool { return story.SecondNode }),
	})
	if err != nil {
		return err
	}
	if s.clients, err = kubernetes.NewForConfig(s.Cluster.RESTConfig()); err != nil {
		return err
	}
	s.Kube, err = checkout.NewClient(s.Cluster.RESTConfig())
	return err
}

// addRegistries creates the Registry objects and starts watching.
func (s *session) addRegistries(ctx context.Context, _ *stage.Stage) error {
	kinds := s.registries()
	if uses(s.stories, LabelledService) {
		kinds = append(kinds, LabelledService)
	}
	for _, kind := range kinds {
		object, err := registryObject(kind)
		if err != nil {
			return err
		}
		if err := s.Kube.Create(ctx, object); err != nil {
			return fmt.Errorf("create Registry %s: %w", kind, err)
		}
	}
	wake := func(client.Object) { s.changes.Change(func() {}) }
	var err error
	s.objects, err = stage.Watch(ctx, s.Cluster.RESTConfig(), s.Kube, "", stage.On[client.Object](&corev1.Pod{}, wake, wake),
		stage.On[client.Object](&corev1.Node{}, wake, wake), stage.On[client.Object](&appsv1alpha1.CloneSet{}, wake, wake),
		stage.On[client.Object](&usherv1alpha1.Registration{}, wake, wake))
	return err
}
