// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/podread"
	"github.com/usher-dev/usher/test/cluster"
)

const fieldManager, pollEvery, setupTime = "usher-stage", 100 * time.Millisecond, 30 * time.Second

// Apply creates or changes an object as "kubectl apply --server-side" does, and returns
// its generation.
func Apply(ctx context.Context, kube client.Client, object *unstructured.Unstructured) (int64, error) {
	applied := object.DeepCopy()
	err := kube.Apply(ctx, client.ApplyConfigurationFromUnstructured(applied), client.FieldOwner(fieldManager), client.ForceOwnership)
	if err != nil {
		return 0, fmt.Errorf("apply %s %s: %w", object.GetKind(), object.GetName(), err)
	}
	return applied.GetGeneration(), nil
}

// Scale scales a workload as "kubectl scale" and autoscalers do, and returns its
// generation.
func Scale(ctx context.Context, kube client.Client, set client.Object, pods int) (int64, error) {
	scale := &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{Namespace: set.GetNamespace(), Name: set.GetName()},
		Spec:       autoscalingv1.ScaleSpec{Replicas: int32(pods)},
	}
	if err := kube.SubResource("scale").Update(ctx, set, client.WithSubResourceBody(scale)); err != nil {
		return 0, fmt.Errorf("scale %s to %d: %w", set.GetName(), pods, err)
	}
	if err := kube.Get(ctx, client.ObjectKeyFromObject(set), set); err != nil {
		return 0, fmt.Errorf("read %s: %w", set.GetName(), err)
	}
	return set.GetGeneration(), nil
}

// Cordon marks a node unschedulable, or schedulable again.
func Cordon(ctx context.Context, kube client.Client, node string, yes bool) error {
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec": {"unschedulable": %t}}`, yes))
	if err := kube.Patch(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, patch); err != nil {
		return fmt.Errorf("mark node %s (un)schedulable: %w", node, err)
	}
	return nil
}

// OpenNamespace creates a namespace and waits until Pods can be created in it.
func OpenNamespace(ctx context.Context, kube client.Client, name string) error {
	if err := kube.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
		return fmt.Errorf("create namespace %s: %w", name, err)
	}
	return Poll(ctx, setupTime, "the service account of namespace "+name, func(ctx context.Context) (bool, error) {
		err := kube.Get(ctx, client.ObjectKey{Namespace: name, Name: "default"}, &corev1.ServiceAccount{})
		return err == nil, client.IgnoreNotFound(err)
	})
}

// Pause waits for a time.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// Poll waits until a condition holds that no watch reports.
func Poll(ctx context.Context, limit time.Duration, what string, holds wait.ConditionWithContextFunc) error {
	err := wait.PollUntilContextTimeout(ctx, pollEvery, limit, true, holds)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	if err != nil {
		return fmt.Errorf("wait at most %s for %s: %w", limit, what, err)
	}
	return nil
}

// Try polls until do succeeds. Its last error says why it did not.
func Try(ctx context.Context, limit time.Duration, what string, do func(ctx context.Context) error) error {
	var last error
	err := Poll(ctx, limit, what, func(ctx context.Context) (bool, error) {
		last = do(ctx)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("%w: %w", err, last)
	}
	return nil
}

// Ready reports whether a Pod is ready.
func Ready(pod *corev1.Pod) bool { return podread.IsTrue(pod, corev1.PodReady) }

// Version returns the image tag that a Pod's container main runs, which differs from the spec during an
// in-place update; empty if it runs none.
func Version(pod *corev1.Pod) string {
	for _, c := range pod.Status.ContainerStatuses {
		if c.Name == "main" && c.State.Running != nil {
			_, tag, _ := strings.Cut(c.Image[strings.LastIndexByte(c.Image, '/')+1:], ":")
			return tag
		}
	}
	return ""
}

// Restarts counts the restarts of a Pod's containers.
func Restarts(pod *corev1.Pod) (n int) {
	for _, c := range pod.Status.ContainerStatuses {
		n += int(c.RestartCount)
	}
	return n
}

// CloneSet is the type from which Merge knows how to merge lists: those of a Pod by their merge keys,
// as "kubectl patch" does. The API's own type has the template as raw JSON.
type CloneSet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		appsv1alpha1.CloneSetSpec `json:",inline"`
		Template                  corev1.PodTemplateSpec `json:"template"`
	} `json:"spec"`
}

// Merge merges YAML documents into an object of a type. A null removes.
func Merge(object *unstructured.Unstructured, kind any, documents ...string) (*unstructured.Unstructured, error) {
	merged := object.DeepCopy()
	for _, document := range documents {
		var change map[string]any
		err := yaml.UnmarshalStrict([]byte(document), &change)
		if err == nil {
			merged.Object, err = strategicpatch.StrategicMergeMapPatch(merged.Object, change, kind)
		}
		if err != nil {
			return nil, fmt.Errorf("%w in\n%s", err, document)
		}
	}
	return merged, nil
}

// StartEtcd starts a service registry, unrelated to Kubernetes, that lives as long as the stage.
func (s *Stage) StartEtcd(ctx context.Context, name string, options cluster.EtcdOptions) (*cluster.Etcd, error) {
	server, err := cluster.StartEtcd(ctx, s.Path(name), options)
	if err != nil {
		return nil, fmt.Errorf("the registry %s: %w", name, err)
	}
	s.AtEnd(func(context.Context) error { return server.Close() })
	return server, nil
}

// EtcdPrefix is the prefix of entries in a registry.
const EtcdPrefix = "services"

// Register adds a Registry for an etcd.
func (s *Stage) Register(ctx context.Context, name, endpoint string) error {
	registry := &usherv1alpha1.Registry{ObjectMeta: metav1.ObjectMeta{Name: name}}
	registry.Spec.Etcd = &usherv1alpha1.EtcdRegistry{Endpoints: []string{endpoint}, Prefix: EtcdPrefix}
	if err := s.Kube.Create(ctx, registry); err != nil {
		return fmt.Errorf("create Registry %s: %w", name, err)
	}
	return nil
}

// Follow is a kind of objects to watch.
type Follow func(ctx context.Context, objects cache.Cache) error

// On passes every new or changed object of a kind to is, and every deleted one to gone.
func On[T client.Object](kind T, is, gone func(T)) Follow {
	take := func(object any, f func(T)) {
		if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
			object = unknown.Obj
		}
		if typed, ok := object.(T); ok {
			f(typed)
		}
	}
	return func(ctx context.Context, objects cache.Cache) error {
		informer, err := objects.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
		if err != nil {
			return err
		}
		_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { take(object, is) },
			UpdateFunc: func(_, object any) { take(object, is) },
			DeleteFunc: func(object any) { take(object, gone) },
		})
		return err
	}
}

// Watch watches the objects of a namespace ("" is all) until ctx ends, and keeps them in
// a cache. It returns when the cache has all existing ones.
func Watch(ctx context.Context, config *rest.Config, kube client.Client, namespace string, kinds ...Follow) (cache.Cache, error) {
	objects, err := cache.New(config, cache.Options{
		Scheme: kube.Scheme(), DefaultNamespaces: map[string]cache.Config{namespace: {}}, DefaultTransform: cache.TransformStripManagedFields(),
	})
	if err != nil {
		return nil, fmt.Errorf("watch the cluster: %w", err)
	}
	for _, follow := range kinds {
		if err := follow(ctx, objects); err != nil {
			return nil, fmt.Errorf("watch the cluster: %w", err)
		}
	}
	// It ends only with ctx, and retries by itself.
	go func() { _ = objects.Start(ctx) }()
	if !objects.WaitForCacheSync(ctx) {
		return nil, errors.Join(errors.New("watch the cluster: interrupted"), context.Cause(ctx))
	}
	return objects, nil
}

// Watched guards state that watches change, and wakes goroutines that wait for a condition on it. The
// zero value is ready to use.
type Watched struct {
	mu      sync.Mutex
	changed chan struct{} // closed at the next change; nil if no goroutine waits
}

// Change makes a change to the state.
func (w *Watched) Change(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
	if w.changed != nil {
		close(w.changed)
		w.changed = nil
	}
}

// Read reads the state.
func (w *Watched) Read(read func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	read()
}

// Next returns a channel that is closed at the next change.
func (w *Watched) Next() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.next()
}

func (w *Watched) next() <-chan struct{} {
	if w.changed == nil {
		w.changed = make(chan struct{})
	}
	return w.changed
}

// Unless returns "" if a condition holds, and otherwise a text that says what is missing or wrong.
func Unless(holds bool, format string, args ...any) string {
	if holds {
		return ""
	}
	return fmt.Sprintf(format, args...)
}

// Await waits until missing, which may read the state, returns nothing.
func (w *Watched) Await(ctx context.Context, missing func() string) error {
	for {
		w.mu.Lock()
		lacks, next := missing(), w.next()
		w.mu.Unlock()
		if lacks == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", lacks, context.Cause(ctx))
		case <-next:
		}
	}
}
