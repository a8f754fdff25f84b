// SPDX-License-Identifier: Apache-2.0

package install

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/clustertest"
)

// guarded is Usher with the guard, a registry, and a witness of all deletions.
type guarded struct {
	*story
	etcd *cluster.Etcd

	mu   sync.Mutex
	seen map[types.UID]bool
	// early are Pods that were deleted while a registry might list them, left those that
	// were deleted after that.
	early, left []string
}

// follow runs a step of a page, with etcd's address and a propagation that fits a test.
func (g *guarded) follow(page, name string) {
	g.Helper()
	script, err := checkout.DocumentedStep(root, page, name)
	g.Must(err)
	script = strings.NewReplacer("http://etcd.example.com:2379", g.etcd.Endpoint(), "propagation: 5s", "propagation: 1s").Replace(script)
	g.sh("%s", script)
}

// guardedStory installs Usher with the guard as README says.
func guardedStory(t *testing.T) *guarded {
	t.Helper()
	g := &guarded{story: begin(t), etcd: clustertest.StartEtcd(t), seen: map[types.UID]bool{}}
	g.follow("first-deployment.md", "install")
	g.run("usher")
	g.until("API servers to trust the guard", func() bool {
		return g.sh("kubectl get validatingwebhookconfiguration usher-guard -o jsonpath='{.webhooks[1].clientConfig.caBundle}'") != ""
	})
	g.watch()
	return g
}

// watch notes every deletion.
func (g *guarded) watch() {
	g.Helper()
	events, err := g.Watch(g.Context(), &corev1.PodList{}, client.InNamespace("default"))
	g.Must(err)
	go func() {
		for event := range events.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok && pod.DeletionTimestamp != nil {
				g.saw(pod)
			}
		}
	}()
}

func (g *guarded) saw(pod *corev1.Pod) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.seen[pod.UID]:
	case slices.Contains(pod.Finalizers, usherv1alpha1.Finalizer):
		g.early = append(g.early, pod.Name)
	default:
		g.left = append(g.left, pod.Name)
	}
	g.seen[pod.UID] = true
}

// deleted waits until so many Pods have been deleted since the last call, and returns their
// names in that order. None may have been deleted before it was drained.
func (g *guarded) deleted(what string, n int) (names []string) {
	g.Helper()
	g.until(fmt.Sprintf("%d deletions: %s", n, what), func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.left)+len(g.early) >= n
	})
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.left) != n || len(g.early) > 0 {
		g.Errorf("%s: deleted after their drain: %v, want %d; deleted before: %v", what, g.left, n, g.early)
	}
	names = g.left
	g.left, g.early = nil, nil
	return names
}

// inService waits until etcd lists so many Pods.
func (g *guarded) inService(n int) {
	g.Helper()
	g.until(fmt.Sprintf("%d entries in etcd", n), func() bool { return g.entries(g.etcd) == n })
}

// ofNode is how many Pods a step deletes that drains the node of the first Pod: the scheduler
// may have put them side by side.
const ofNode = -1

// step runs a step of a page, which deletes so many Pods.
func (g *guarded) step(page, name string, deleted int) {
	g.Helper()
	if deleted == ofNode {
		nodes := strings.Fields(g.sh("kubectl get pods -l 'app in (cart, shop)' -o jsonpath='{.items[*].spec.nodeName}'"))
		deleted = len(slices.DeleteFunc(nodes[1:], func(node string) bool { return node != nodes[0] })) + 1
	}
	g.follow(page, name)
	g.deleted(name, deleted)
}

// TestDeployments follows README, and the pages that it is taken from, and then
// docs/deployments.md: whatever somebody does to a Deployment or a CloneSet, each Pod is deleted
// only when it is drained; and so with the Pods of other kinds, and of nobody.
func TestDeployments(t *testing.T) {
	g := guardedStory(t)
	g.firstSteps()
	for _, step := range []struct {
		name             string
		deleted, entries int
	}{
		{"registry", 0, 0},
		{"deployment", 0, 4},
		{"look", 0, 4},
		{"delete a Pod", 1, 4},
		{"rollout", 4, 4},
		{"scale in", 2, 2},
		{"node drain", ofNode, 2},
		{"events", 0, 2},
		{"delete the Deployment", 2, 0},
	} {
		g.step("deployments.md", step.name, step.deleted)
		g.inService(step.entries)
	}
	g.others()
}

// firstSteps are a Deployment's and a CloneSet's behind a Service. A Pod that is updated in
// place restarts once and stays.
func (g *guarded) firstSteps() {
	g.Helper()
	for _, step := range []struct {
		page, name string
		deleted    int
	}{
		{"first-deployment.md", "service", 0},
		{"first-deployment.md", "service delete", 1},
		{"first-deployment.md", "service drain", ofNode},
		{"first-deployment.md", "service rollout", 5},
		{"first-deployment.md", "service events", 0},
		{"first-cloneset.md", "cloneset", 0},
		{"first-cloneset.md", "cloneset update", 0},
		{"update-in-place.md", "canary", 0},
		{"update-in-place.md", "broken version", 0},
		{"first-cloneset.md", "cloneset delete", 3},
	} {
		g.step(step.page, step.name, step.deleted)
		if step.name == "cloneset update" {
			if restarts := g.sh("kubectl get pods -l app=web -o jsonpath='{.items[*].status.containerStatuses[*].restartCount}'"); restarts != "1 1 1" {
				g.Errorf("after an update in place the containers have restarted %s times", restarts)
			}
		}
	}
	g.sh("kubectl delete deployment cart")
	g.deleted("the Deployment's last Pod", 1)
}

// others are a StatefulSet, a DaemonSet, a Job and a bare Pod, of two Pods each but for the
// last. A Job that scales in may choose another Pod at its next attempt: the first one it
// asked for comes back after requestTimeout.
const others = `
apiVersion: v1
kind: List
items:
- apiVersion: apps/v1
  kind: StatefulSet
  metadata: {namespace: default, name: db}
  spec: {replicas: 2, serviceName: db, selector: {matchLabels: {app: db}}, template: &template {metadata: {labels: {app: db, registered: "yes"}}, spec: {containers: [{name: main, image: "nginx:1.28"}]}}}
- apiVersion: apps/v1
  kind: DaemonSet
  metadata: {namespace: default, name: agent}
  spec: {selector: {matchLabels: {app: db}}, template: *template}
- apiVersion: batch/v1
  kind: Job
  metadata: {namespace: default, name: import}
  spec: {parallelism: 2, template: {metadata: {labels: {registered: "yes"}}, spec: {restartPolicy: Never, containers: [{name: main, image: "nginx:1.28"}]}}}
- {apiVersion: v1, kind: Pod, metadata: {namespace: default, name: alone, labels: {registered: "yes"}}, spec: {containers: [{name: main, image: "nginx:1.28"}]}}
- apiVersion: usher.dev/v1alpha1
  kind: Registration
  metadata: {namespace: default, name: others}
  spec: {selector: {matchLabels: {registered: "yes"}}, registries: [discovery], instance: {service: others, port: 80}, drain: {propagation: 1s, requestTimeout: 1m}}
`

func (g *guarded) others() {
	g.Helper()
	g.apply(others)
	g.inService(7)
	g.sh(`kubectl patch job import --type merge -p '{"spec":{"parallelism":1}}'
		kubectl rollout restart statefulset/db daemonset/agent
		kubectl rollout status statefulset/db --timeout 60s
		kubectl rollout status daemonset/agent --timeout 60s`)
	gone := g.deleted("rollouts, and a Job of less parallelism", 5)
	ordinals := slices.DeleteFunc(gone, func(name string) bool { return !strings.HasPrefix(name, "db-") })
	if len(ordinals) != 2 || !strings.HasPrefix(ordinals[0], "db-1") {
		g.Errorf("the StatefulSet's Pods were deleted in the order %v", ordinals)
	}
	g.inService(6)
	g.sh("kubectl delete --timeout 60s statefulset/db daemonset/agent job/import pod/alone")
	g.deleted("kubectl delete", 6)
	g.inService(0)
}
