// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/podread"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/kinds"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest/memory"
	"github.com/usher-dev/usher/test/integration/scene"
)

// propagation is how long callers may use an entry that is gone.
const propagation = time.Second

// witness sees when Pods leave the registry and the EndpointSlices of Services, and when
// their containers end.
type witness struct {
	registry *memory.Registry

	mu sync.Mutex
	// ready are the Pods that each slice lists as ready.
	ready map[types.NamespacedName][]types.UID
	// listed are the Pods that each slice has, ready or not.
	listed map[types.NamespacedName][]types.UID
	// left is when each Pod left the registry or its slice; a Pod that is listed has none.
	left map[types.UID]time.Time
	// everLeft are the names of the Pods that have left the registry at least once, by namespace.
	everLeft map[string]map[types.UID]string
	deleted  map[types.UID]bool
	// held are the Pods with Usher's finalizer.
	held map[types.UID]bool
	// fewest are the fewest entries that a service has had since somebody asked to count.
	fewest map[string]int
	// applications are the namespaces whose Pods register themselves.
	applications map[string]bool
	// atAddress are the Pods, by namespace and address.
	atAddress map[string]types.UID
	// early are Pods whose containers ended too early, or might have, with the reason, by
	// namespace.
	early map[string][]string
	// inUse says how a load balancer had the Pods of a namespace whose containers ended meanwhile.
	inUse map[string]map[types.UID]string
}

func newWitness() *witness {
	return &witness{
		registry: memory.New(), ready: map[types.NamespacedName][]types.UID{}, listed: map[types.NamespacedName][]types.UID{}, left: map[types.UID]time.Time{},
		everLeft: map[string]map[types.UID]string{}, deleted: map[types.UID]bool{}, held: map[types.UID]bool{},
		fewest: map[string]int{}, early: map[string][]string{}, applications: map[string]bool{}, atAddress: map[string]types.UID{}, inUse: map[string]map[types.UID]string{},
	}
}

// watched is the registry; it tells the witness of each change.
type watched struct {
	*memory.Registry
	witness *witness
}

func (w *witness) connect(r *usherv1alpha1.Registry, root string, secret map[string][]byte) (registry.Connector, error) {
	if r.Spec.Etcd == nil && r.Spec.Eureka == nil && r.Spec.ZooKeeper == nil {
		return kinds.Connect(kinds.Cluster{Reader: plane, Writer: plane})(r, root, secret)
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
		owner := change.Entry.Owner
		uid := types.UID(owner.PodUID)
		if change.Op == registry.Put || change.Op == registry.BringBack {
			delete(c.witness.left, uid)
			continue
		}
		c.witness.left[uid] = time.Now()
		if c.witness.everLeft[owner.Namespace] == nil {
			c.witness.everLeft[owner.Namespace] = map[types.UID]string{}
		}
		c.witness.everLeft[owner.Namespace][uid] = owner.Pod
	}
	return nil
}

// follow watches all slices and all Pods. API servers end watches: of a client that is slow for a moment, and of any client
// after some time. So a watch that ends begins again where it was.
func (w *witness) follow(ctx context.Context) error {
	for _, list := range []client.ObjectList{&discoveryv1.EndpointSliceList{}, &corev1.PodList{}} {
		events, err := plane.Watch(ctx, list)
		if err != nil {
			return err
		}
		go func() {
			for last := ""; ctx.Err() == nil; {
				last = cmp.Or(w.see(ctx, events), last)
				next, err := plane.Watch(ctx, list, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: last}})
				if err != nil && ctx.Err() == nil {
					panic(fmt.Sprintf("the witness sees nothing any more: %v", err))
				}
				events = next
			}
		}()
	}
	return nil
}

// see notes the events of a watch until it ends, and returns the version of the last one.
func (w *witness) see(ctx context.Context, events watch.Interface) (last string) {
	for event := range events.ResultChan() {
		switch object := event.Object.(type) {
		case *discoveryv1.EndpointSlice:
			last = object.ResourceVersion
			if event.Type == watch.Deleted {
				object.Endpoints = nil
			}
			w.sawSlice(object)
		case *corev1.Pod:
			last = object.ResourceVersion
			w.sawPod(ctx, object)
		case *metav1.Status:
			if ctx.Err() == nil {
				panic("the witness has missed something: " + object.Message)
			}
		}
	}
	return last
}

func (w *witness) sawSlice(slice *discoveryv1.EndpointSlice) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var now, all []types.UID
	for _, endpoint := range slice.Endpoints {
		if endpoint.TargetRef != nil {
			all = append(all, endpoint.TargetRef.UID)
		}
		if endpoint.TargetRef != nil && (endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready) {
			now = append(now, endpoint.TargetRef.UID)
			delete(w.left, endpoint.TargetRef.UID)
		}
	}
	key := client.ObjectKeyFromObject(slice)
	for _, uid := range w.ready[key] {
		if !slices.Contains(now, uid) {
			w.left[uid] = time.Now().Add(-scene.Poll) // What a watch shows may be a moment old.
		}
	}
	w.ready[key], w.listed[key] = now, all
}

// sawPod notes a Pod whose containers end while callers may use it: since it is being
// deleted, or updated in place behind a Service.
func (w *witness) sawPod(ctx context.Context, pod *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	early := func(why string) { w.early[pod.Namespace] = append(w.early[pod.Namespace], pod.Name+": "+why) }
	held := controllerutil.ContainsFinalizer(pod, usherv1alpha1.Finalizer)
	if _, labelled := pod.Labels[usherv1alpha1.LabelGuarded]; held != w.held[pod.UID] && held != labelled {
		early("the finalizer and the guard's label are not written together")
	}
	w.held[pod.UID] = held
	w.sawTarget(ctx, pod)
	w.atAddress[pod.Namespace+"/"+pod.Status.PodIP] = pod.UID
	deletion := pod.DeletionTimestamp != nil && !w.deleted[pod.UID]
	if deletion || updating(pod) {
		w.endApplication(pod, early)
	} else {
		w.runApplication(pod)
	}
	if deletion || updating(pod) {
		w.sawEnd(pod, deletion, early)
	}
}

// sawEnd notes a Pod whose containers end, or are replaced, if that is too early.
func (w *witness) sawEnd(pod *corev1.Pod, deletion bool, early func(why string)) {
	w.deleted[pod.UID] = pod.DeletionTimestamp != nil
	if why := w.served(pod); why != "" {
		early(why)
	}
	if n := programs.busy(pod.Namespace); n != "" {
		early("under way there: " + n)
	}
	if deletion && slices.ContainsFunc(w.registry.Entries(pod.Namespace), func(e registry.Entry) bool { return e.Owner.PodUID == string(pod.UID) }) {
		early("the registry lists it")
	}
	if at, left := w.left[pod.UID]; left && time.Since(at) < propagation {
		early(fmt.Sprintf("callers have had %s", time.Since(at)))
	}
}

// entryOf is what the Pod's application registers.
func entryOf(pod *corev1.Pod) registry.Entry {
	return registry.Entry{ID: pod.Name + "@" + pod.Status.PodIP, Address: pod.Status.PodIP, Port: 80}
}

// runApplication has the application of a Pod register itself, if it does that. Heartbeats are the same.
func (w *witness) runApplication(pod *corev1.Pod) {
	if w.applications[pod.Namespace] && podread.IsTrue(pod, corev1.ContainersReady) && pod.DeletionTimestamp == nil &&
		!asked.isAway(pod.Namespace, pod.Status.PodIP) {
		w.registry.Register(pod.Namespace, entryOf(pod))
	}
}

// endApplication notes that the process of a Pod ends: too early if callers get its entry. It deregisters itself when it
// goes.
func (w *witness) endApplication(pod *corev1.Pod, early func(why string)) {
	if !w.applications[pod.Namespace] {
		return
	}
	if e := registrytest.Find(w.registry.Entries(pod.Namespace), entryOf(pod).ID); e != nil && e.Weight > 0 {
		early("its application's entry is in service")
	}
	asked.put(pod.Namespace, pod.Status.PodIP, nil) // its next process knows nothing of it
	if pod.DeletionTimestamp != nil {
		w.registry.Drop(pod.Namespace, entryOf(pod).ID)
	}
}

// applicationsRun has the applications of a namespace register themselves from now on. forgets means that the registry
// has lost what it had.
func (w *witness) applicationsRun(namespace string, pods []corev1.Pod, forgets bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.applications[namespace] = true
	for i := range pods {
		if forgets {
			w.registry.Drop(namespace, entryOf(&pods[i]).ID)
			delete(w.left, pods[i].UID)
		}
		w.runApplication(&pods[i])
	}
}

// updating reports whether the containers of a CloneSet's Pod are being replaced.
func updating(pod *corev1.Pod) bool {
	return pod.Labels[appsv1alpha1.LabelLifecycleState] == string(appsv1alpha1.StateUpdating)
}

// served says how callers of a Service may still find the Pod; empty if they do not.
func (w *witness) served(pod *corev1.Pod) string {
	_, labelled := pod.Labels[usherv1alpha1.LabelInService]
	switch {
	case slices.Contains(w.readyIn(pod.Namespace), pod.UID):
		return "its Service lists it"
	case labelled && w.sliced(pod):
		return "a slice of its Service has its address"
	}
	return ""
}

// sliced reports whether any slice has the Pod.
func (w *witness) sliced(pod *corev1.Pod) bool {
	for slice, uids := range w.listed {
		if slice.Namespace == pod.Namespace && slices.Contains(uids, pod.UID) {
			return true
		}
	}
	return false
}

// readyIn are the Pods that the Services of a namespace list as ready.
func (w *witness) readyIn(namespace string) (found []types.UID) {
	for slice, uids := range w.ready {
		if slice.Namespace == namespace {
			found = append(found, uids...)
		}
	}
	return found
}

// inServices is readyIn for stories, in order.
func (w *witness) inServices(namespace string) []types.UID {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(slices.Values(w.readyIn(namespace)))
}

// tooEarly are the Pods of a namespace whose containers ended too early.
func (w *witness) tooEarly(namespace string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.early[namespace])
}

// leavers are the names of a namespace's Pods that have left the registry at least once.
func (w *witness) leavers(namespace string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Values(w.everLeft[namespace]))
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
	delete(w.early, namespace)
}
