// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/memory"
	registryservice "github.com/usher-dev/usher/internal/registration/registry/service"
)

const (
	poll = 20 * time.Millisecond
	// propagation is how long callers may use an entry that is gone.
	propagation = time.Second
)

// witness sees when Pods leave the registry, and when they are deleted.
type witness struct {
	registry *memory.Registry

	mu sync.Mutex
	// left is when each Pod's entry was removed; a Pod that is listed has none.
	left map[types.UID]time.Time
	// everLeft are the Pods that have left at least once, with their names.
	everLeft map[types.UID]string
	deleted  map[types.UID]bool
	// fewest are the fewest entries that a service has had since somebody asked to count.
	fewest map[string]int
	// early are Pods that were deleted too early, as namespace/name and why.
	early []string
}

func newWitness() *witness {
	return &witness{registry: memory.New(), left: map[types.UID]time.Time{}, everLeft: map[types.UID]string{}, deleted: map[types.UID]bool{}, fewest: map[string]int{}}
}

// watched is the registry; it tells the witness of each change.
type watched struct {
	*memory.Registry
	witness *witness
}

func (w *witness) connect(r *usherv1alpha1.Registry, root string, _ map[string][]byte) (registry.Connector, error) {
	if r.Spec.Service != nil {
		return registryservice.New(api, root)
	}
	return &watched{Registry: w.registry, witness: w}, nil
}

// Apply implements registry.Connector.
func (c *watched) Apply(ctx context.Context, service string, changes []registry.Change) error {
	c.witness.mu.Lock()
	defer c.witness.mu.Unlock()
	if err := c.Registry.Apply(ctx, service, changes); err != nil {
		return err
	}
	if fewest, counts := c.witness.fewest[service]; counts {
		c.witness.fewest[service] = min(fewest, len(c.Entries(service)))
	}
	for _, change := range changes {
		uid := types.UID(change.Entry.Owner.PodUID)
		if change.Op == registry.Put {
			delete(c.witness.left, uid)
			continue
		}
		c.witness.left[uid] = time.Now()
		c.witness.everLeft[uid] = change.Entry.Owner.Namespace + "/" + change.Entry.Owner.Pod
	}
	return nil
}

// follow watches all Pods.
func (w *witness) follow(ctx context.Context, api client.WithWatch) error {
	events, err := api.Watch(ctx, &corev1.PodList{})
	if err != nil {
		return err
	}
	go func() {
		for event := range events.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok && pod.DeletionTimestamp != nil {
				w.saw(pod)
			}
		}
	}()
	return nil
}

// saw notes a deletion, and whether it came too early.
func (w *witness) saw(pod *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.deleted[pod.UID] {
		return
	}
	w.deleted[pod.UID] = true
	name := pod.Namespace + "/" + pod.Name
	for _, e := range w.registry.Entries(pod.Namespace) {
		if e.Owner.PodUID == string(pod.UID) {
			w.early = append(w.early, name+": the registry lists it")
		}
	}
	if at, left := w.left[pod.UID]; left && time.Since(at) < propagation {
		w.early = append(w.early, fmt.Sprintf("%s: callers have had %s", name, time.Since(at)))
	}
}

// tooEarly are the Pods of a namespace that were deleted too early.
func (w *witness) tooEarly(namespace string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(w.early), func(line string) bool { return !within(line, namespace) })
}

// leavers are the names of a namespace's Pods that have left the registry at least once.
func (w *witness) leavers(namespace string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var names []string
	for _, name := range w.everLeft {
		if within(name, namespace) {
			names = append(names, name)
		}
	}
	return names
}

func within(name, namespace string) bool {
	return strings.HasPrefix(name, namespace+"/")
}

// count begins to count a service's entries; the returned function says how few there were.
func (w *witness) count(service string) (fewest func() int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fewest[service] = len(w.registry.Entries(service))
	return func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.fewest[service]
	}
}

// forget drops what was seen of a namespace whose Pods are deleted without a drain.
func (w *witness) forget(namespace string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.early = slices.DeleteFunc(w.early, func(line string) bool { return within(line, namespace) })
}
