// SPDX-License-Identifier: Apache-2.0

// Package hook runs the example of the hook library as a user would: as a separate
// process beside a CloneSet, on a real API server.
package hook

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/clustertest"
	"github.com/usher-dev/usher/test/cluster/node"
)

const (
	namespace = "default"
	guard     = "example.com/traffic"
)

// set is the CloneSet whose hooks the example answers.
const set = `
apiVersion: apps.kruise.io/v1alpha1
kind: CloneSet
metadata: {namespace: default, name: nginx}
spec:
  replicas: 3
  lifecycle:
    inPlaceUpdate: {labelsHandler: {example.com/unready-blocker-inplace: "true"}}
    preDelete: {labelsHandler: {example.com/unready-blocker-delete: "true"}}
  selector: {matchLabels: {app: nginx}}
  template:
    metadata:
      labels:
        app: nginx
        example.com/newly-create: "true"
        example.com/unready-blocker-inplace: "true"
        example.com/unready-blocker-delete: "true"
    spec: {containers: [{name: main, image: "example.test/nginx:v1"}]}
  updateStrategy: {type: InPlaceIfPossible, maxUnavailable: 1}
`

// directory is the registry that the example writes to.
type directory struct {
	mu      sync.Mutex
	entries map[string]bool
	// least is the lowest number of entries since all were there.
	least  int
	broken bool
}

func (d *directory) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.broken:
		http.Error(w, "out of order", http.StatusServiceUnavailable)
	case r.Method == http.MethodPut:
		d.entries[r.URL.Path] = true
	case r.Method == http.MethodDelete:
		delete(d.entries, r.URL.Path)
		d.least = min(d.least, len(d.entries))
	}
}

func (d *directory) list() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.entries))
}

func (d *directory) breaks(broken bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.broken, d.least = broken, len(d.entries)
}

type story struct {
	*testing.T
	client.Client
	directory *directory
}

// TestExample takes the set through its life; only the example answers its hooks.
func TestExample(t *testing.T) {
	s := begin(t)
	s.listed("after scale out", 3)

	s.directory.breaks(false)
	s.patch(`{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"example.test/nginx:v2"}]}}}}`)
	s.until("the update", func() string {
		status := s.set().Status
		return registrytest.Unless(status.UpdatedAvailableReplicas == 3 && status.ObservedGeneration == s.set().Generation, fmt.Sprintf("%+v", status))
	})
	s.listed("after the update", 3)
	if s.directory.least != 2 {
		t.Errorf("at the least %d Pods were registered during the update, want 2", s.directory.least)
	}

	// While the registry is down, a leaving Pod waits and reports it.
	s.directory.breaks(true)
	s.patch(`{"spec":{"replicas":2}}`)
	s.until("the event", func() string { return s.event("HookFailed", "503 Service Unavailable") })
	s.directory.breaks(false)
	s.listed("after scale in", 2)

	// Somebody other than the controller deletes a Pod: it is deregistered all the
	// same.
	victim := s.pods()[0]
	s.must(s.Delete(t.Context(), &victim))
	s.until("the Pod's end", func() string {
		gone := !slices.ContainsFunc(s.pods(), func(pod corev1.Pod) bool { return pod.UID == victim.UID })
		return registrytest.Unless(gone, "it still exists")
	})
	s.listed("after a Pod was deleted", 2)
	for _, pod := range s.pods() {
		if !slices.Contains(pod.Finalizers, guard) {
			t.Errorf("%s is registered and not guarded: %v", pod.Name, pod.Finalizers)
		}
	}
}

func begin(t *testing.T) *story {
	t.Helper()
	ctrl.SetLogger(logr.Discard())
	c := clustertest.Start(t)
	s := &story{T: t, directory: &directory{entries: map[string]bool{}}}
	scheme := runtime.NewScheme()
	s.must(errors.Join(clientgoscheme.AddToScheme(scheme), apps.AddToScheme(scheme)))
	_, err := envtest.InstallCRDs(c.RESTConfig(), envtest.CRDInstallOptions{Paths: []string{"../../../config/crd"}, ErrorIfPathMissing: true})
	s.must(err)
	s.Client, err = client.New(c.RESTConfig(), client.Options{Scheme: scheme})
	s.must(err)
	s.startNodes(c)
	s.startController(c, scheme)
	s.startExample(c)
	var object apps.CloneSet
	s.must(yaml.Unmarshal([]byte(set), &object))
	s.must(s.Create(t.Context(), &object))
	return s
}

func (s *story) startNodes(c *cluster.Cluster) {
	s.Helper()
	simulated, err := node.NewSimulatedRuntime(node.SimulatedOptions{UpdateDelay: 20 * time.Millisecond, DeleteDelay: 20 * time.Millisecond})
	s.must(err)
	_, err = node.Start(s.Context(), node.Options{RESTConfig: c.RESTConfig(), Nodes: 2, Runtime: simulated})
	s.must(err)
}

func (s *story) startController(c *cluster.Cluster, scheme *runtime.Scheme) {
	s.Helper()
	mgr, err := ctrl.NewManager(c.RESTConfig(), ctrl.Options{Scheme: scheme, Metrics: server.Options{BindAddress: "0"}})
	s.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	s.must(cloneset.Setup(ctx, mgr, cloneset.Options{}))
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	s.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			s.Errorf("the controller ended with: %v", err)
		}
	})
}

// startExample builds the example and runs it until the end of the test.
func (s *story) startExample(c *cluster.Cluster) {
	s.Helper()
	registry := httptest.NewServer(s.directory)
	s.Cleanup(registry.Close)
	binary := filepath.Join(s.TempDir(), "operator")
	build := exec.CommandContext(s.Context(), "go", "build", "-o", binary, "./examples/operator")
	build.Dir = filepath.Join("..", "..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		s.Fatalf("build the example: %v\n%s", err, out)
	}
	var output strings.Builder
	ctx, cancel := context.WithCancel(context.Background())
	command := exec.CommandContext(ctx, binary)
	command.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig(), "REGISTRY_URL="+registry.URL)
	command.Stdout, command.Stderr = &output, &output
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	s.must(command.Start())
	s.Cleanup(func() {
		cancel()
		_ = command.Wait() // It was interrupted.
		if s.Failed() {
			s.Logf("the output of the example:\n%s", output.String())
		}
	})
}

func (s *story) patch(text string) {
	s.Helper()
	s.must(s.Patch(s.Context(), s.set(), client.RawPatch(types.MergePatchType, []byte(text))))
}

func (s *story) set() *apps.CloneSet {
	s.Helper()
	var out apps.CloneSet
	s.must(s.Get(s.Context(), client.ObjectKey{Namespace: namespace, Name: "nginx"}, &out))
	return &out
}

func (s *story) pods() []corev1.Pod {
	s.Helper()
	var list corev1.PodList
	s.must(s.List(s.Context(), &list, client.InNamespace(namespace)))
	return list.Items
}

// listed waits until the registry has the addresses of exactly that many Pods, and no
// other Pod exists.
func (s *story) listed(when string, count int) {
	s.Helper()
	s.until("the registry "+when, func() string {
		var want []string
		for _, pod := range s.pods() {
			want = append(want, "/nginx/"+pod.Status.PodIP)
		}
		slices.Sort(want)
		have := s.directory.list()
		return registrytest.Unless(len(want) == count && slices.Equal(have, want), fmt.Sprintf("it has %v, the Pods are %v", have, want))
	})
}

func (s *story) event(reason, text string) string {
	var list corev1.EventList
	s.must(s.List(s.Context(), &list, client.InNamespace(namespace)))
	seen := slices.ContainsFunc(list.Items, func(event corev1.Event) bool {
		return event.Reason == reason && strings.Contains(event.Message, text)
	})
	return registrytest.Unless(seen, fmt.Sprintf("no %s among %d events", reason, len(list.Items)))
}

func (s *story) until(what string, check func() string) {
	s.Helper()
	registrytest.Eventually(s.T, what, check)
}

func (s *story) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}
