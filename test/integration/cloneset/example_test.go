// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/cluster/clustertest"
	"github.com/usher-dev/usher/test/cluster/process"
	"github.com/usher-dev/usher/test/integration/scene"
)

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

// startExample builds the example and runs it until the end of the test, as a user would:
// as a separate process.
func (s *story) startExample(kubeconfig string, d *directory) {
	s.Helper()
	folder := s.TempDir()
	program := checkout.Program{Module: scene.Root, Pkg: "./examples/operator", Out: filepath.Join(folder, "operator")}
	s.Must(program.Compile(s.Context(), nil))
	p := checktest.Must(process.Start(process.Spec{
		Name: "operator", Path: program.Out, Log: filepath.Join(folder, "log"),
		Env: append(os.Environ(), "KUBECONFIG="+kubeconfig, "REGISTRY_URL="+registrytest.Serve(s.T, d)),
	}))(s)
	s.Cleanup(func() {
		checktest.NoError(s, p.Stop(context.Background(), 10*time.Second))
		if s.Failed() {
			s.Logf("the output of the example:\n%s", strings.Join(p.Tail(100), "\n"))
		}
	})
}

// TestExample takes a set through its life; only the example of the hook library answers
// its hooks. It has its own cluster, because the example serves all namespaces.
func TestExample(t *testing.T) {
	t.Parallel()
	c := clustertest.Start(t)
	own, err := scene.New(c)
	checktest.NoError(t, errors.Join(err, startNodes(t.Context(), c)))
	s, d := &story{Scene: &scene.Scene{T: t, Plane: own, Namespace: "default"}, name: "web"}, &directory{entries: map[string]bool{}}
	s.startController()
	s.startExample(c.Kubeconfig(), d)
	s.Make(s.Prop("hooked", `spec: {replicas: 3, updateStrategy: {maxUnavailable: 1}, template: {metadata: {labels: {example.com/newly-create: "true"}}}}`))
	listed := func(when string, count int) {
		t.Helper()
		s.Await(fmt.Sprintf("the registry to have the addresses of exactly %d Pods %s", count, when), func() bool {
			want := list.Map(s.pods(), func(pod corev1.Pod) string { return "/web/" + pod.Status.PodIP })
			slices.Sort(want)
			return len(want) == count && slices.Equal(d.list(), want)
		})
	}
	listed("after scale out", 3)

	d.breaks(false)
	s.image("web:v2")
	s.settled(3)
	listed("after the update", 3)
	checktest.Same(t, "how many Pods were registered at the least during the update", 2, d.least)

	// While the registry is down, a leaving Pod waits and reports it.
	d.breaks(true)
	s.patch(`spec: {replicas: 2}`)
	s.Event(nil, "HookFailed", "503 Service Unavailable")
	d.breaks(false)
	listed("after scale in", 2)

	// Somebody other than the controller deletes a Pod: it is deregistered all the same.
	victim := s.pods()[0]
	s.Must(s.Delete(t.Context(), &victim))
	s.gone(victim.Name)
	listed("after a Pod was deleted", 2)
	for _, pod := range s.pods() {
		if !slices.Contains(pod.Finalizers, "example.com/traffic") {
			t.Errorf("%s is registered and not guarded: %v", pod.Name, pod.Finalizers)
		}
	}
}
