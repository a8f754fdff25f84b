// SPDX-License-Identifier: Apache-2.0

package install

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/scenariotest"
)

// deletions is a witness of all deletions of Pods.
type deletions struct {
	mu   sync.Mutex
	seen map[types.UID]bool
	// early are Pods that were deleted while a registry might list them, left those that
	// were deleted after that.
	early, left []string
}

// watchDeletions notes every deletion.
func (s *story) watchDeletions() {
	s.deletions.seen = map[types.UID]bool{}
	events := checktest.Must(s.Watch(s.Context(), &corev1.PodList{}, client.InNamespace("default")))(s)
	go func() {
		for event := range events.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok && pod.DeletionTimestamp != nil && pod.Labels[appsv1alpha1.LabelPullsFor] == "" {
				s.deletions.saw(pod)
			}
		}
	}()
}

func (g *deletions) saw(pod *corev1.Pod) {
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

// deleted is "5", or "5 db-1 db-0": it waits until so many Pods have been deleted since the last
// call, and Pods whose names begin like these in their order. None may have been deleted before it was
// drained.
func (s *story) deleted(rest string) {
	count, names, _ := strings.Cut(rest, " ")
	n, g := scenariotest.Number(count), &s.deletions
	s.Await(rest+" to be deleted", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.left)+len(g.early) >= n
	})
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.left) != n || len(g.early) > 0 {
		s.Errorf("deleted after their drain: %v, want %d; deleted before: %v", g.left, n, g.early)
	}
	order := g.left
	for name := range strings.FieldsSeq(names) {
		at := slices.IndexFunc(order, func(gone string) bool { return strings.HasPrefix(gone, name) })
		if at < 0 {
			s.Fatalf("the Pods were deleted in the order %v, want %s", g.left, names)
		}
		order = order[at+1:]
	}
	g.left, g.early = nil, nil
}

// deletes is a step of a page, and how many Pods it deletes, as in "5 install.md helm upgrade". That
// are "a node's" if it drains the node of the first Pod: the scheduler may have put them side by side.
func (s *story) deletes(rest string) {
	count, step, _ := strings.Cut(rest, " ")
	if node, ok := strings.CutPrefix(rest, "a node's "); ok {
		// What an earlier step deleted may be listed for a while yet, and is not deleted again.
		const terminating = "kubectl get pods -o jsonpath='{.items[*].metadata.deletionTimestamp}'"
		s.Await("deleted Pods to be gone", func() bool { return s.sh(terminating) == "" })
		nodes := strings.Fields(s.sh("kubectl get pods -l 'app in (cart, shop)' -o jsonpath='{.items[*].spec.nodeName}'"))
		others := slices.DeleteFunc(slices.Clone(nodes), func(node string) bool { return node == nodes[0] })
		count, step = fmt.Sprint(len(nodes)-len(others)), node
	}
	s.follow(step)
	s.deleted(count)
}
