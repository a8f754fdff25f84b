// SPDX-License-Identifier: Apache-2.0

// Package cloneset tests CloneSets on a real API server, with the controller in the
// test's own process and nodes that simulate containers.
package cloneset

import (
	"context"
	"flag"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/internal/cloneset"
	"github.com/usher-dev/usher/internal/podcache"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/cluster/node"
	"github.com/usher-dev/usher/test/integration/openkruise"
	"github.com/usher-dev/usher/test/integration/scene"
)

// manager is the field manager of a story's controller.
const manager = "usher"

var shared *scene.Plane

func TestMain(m *testing.M) {
	arguments := cluster.ExtraArgs{
		build.ControllerManager: slices.Concat(openkruise.Arguments[build.ControllerManager], autoscalerArguments),
	}
	scene.Main(m, arguments, func(ctx context.Context, p *scene.Plane) error {
		shared = p
		if err := meters.start(ctx, p); err != nil {
			return err
		}
		// Stories wait for the API server more than they compute.
		if err := flag.Set("test.parallel", "6"); err != nil {
			return err
		}
		return startNodes(ctx, p.Cluster)
	})
}

func startNodes(ctx context.Context, c *cluster.Cluster) error {
	return scene.StartNodes(ctx, c, 3, 1000, node.Traits{
		UpdateDelay: 20 * time.Millisecond, DeleteDelay: 20 * time.Millisecond, MissingImages: []string{"example.test/missing:v1"},
		MostCPU: resource.MustParse("4"),
	})
}

// story is one test's namespace, and a controller for it. Its set is named web unless
// the story says otherwise.
type story struct {
	*scene.Scene
	name    string
	options cloneset.Options
	// created is how many revisions the controller has asked for.
	created atomic.Int32
	// stop stops the controller.
	stop func()
	// noted is what there was before.
	noted noted
	// intercept sends the requests of the next controller; nil for the usual way.
	intercept func(request *http.Request, next http.RoundTripper) (*http.Response, error)
}

// roundTrip is a function as a RoundTripper.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

// withoutController creates a namespace. The story runs beside others.
func withoutController(t *testing.T) *story {
	t.Helper()
	t.Parallel()
	return &story{Scene: shared.Begin(t), name: "web"}
}

// begin creates a namespace and starts a controller that ends with the test.
func begin(t *testing.T) *story {
	t.Helper()
	s := withoutController(t)
	s.startController()
	return s
}

// running begins with a set of testdata/props.yaml whose Pods are all available.
func running(t *testing.T, set string) *story {
	t.Helper()
	s := begin(t)
	s.Make(s.Prop(set))
	s.settled(s.replicas())
	return s
}

// startController runs a controller for the story's namespace. stop stops it like a crash.
func (s *story) startController() {
	s.Helper()
	config := rest.CopyConfig(s.RESTConfig())
	config.UserAgent = manager // so that a story can tell who wrote a field
	intercept := s.intercept   // a story may set another for the next controller while this one runs
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(request *http.Request) (*http.Response, error) {
			if request.Method == http.MethodPost && strings.HasSuffix(request.URL.Path, "/controllerrevisions") {
				s.created.Add(1)
			}
			if intercept != nil {
				return intercept(request, next)
			}
			return next.RoundTrip(request)
		})
	})
	pods, options := podcache.New(), s.options
	options.Keep = pods.Keep
	s.stop = s.Manage(config, ctrl.Options{Cache: cache.Options{
		DefaultNamespaces: map[string]cache.Config{s.Namespace: {}},
		DefaultTransform:  cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}: pods.Options(), &corev1.PersistentVolumeClaim{}: cloneset.ClaimCache(),
		},
	}}, func(ctx context.Context, mgr ctrl.Manager) error { return cloneset.Setup(ctx, mgr, options) })
}

// crash stops the controller and starts another one, after a change of how it runs.
func crash(change func(*story)) func(*story, string) {
	return func(s *story, _ string) {
		s.stop()
		change(s)
		s.startController()
	}
}
