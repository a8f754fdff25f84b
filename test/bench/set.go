// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

const (
	namespace = "measure"
	setName   = "web"
	appLabel  = "app"
)

// image is a version of the image that the Pods run.
func image(version int) string { return "example.test/web:v" + strconv.Itoa(version) }

// podLabels mark the Pods for all hooks; the CloneSet's spec.lifecycle decides whether
// a hook holds.
func podLabels() map[string]string {
	return map[string]string{appLabel: setName, updateHook: hooked, deleteHook: hooked}
}

// cloneSet is the measured CloneSet, without Pods.
func cloneSet() *unstructured.Unstructured {
	labels := map[string]any{}
	for key, value := range podLabels() {
		labels[key] = value
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": apps.GroupVersion.String(), "kind": apps.KindCloneSet.Kind,
		"metadata": map[string]any{"namespace": namespace, "name": setName},
		"spec": map[string]any{
			"replicas": int64(0),
			"selector": map[string]any{"matchLabels": map[string]any{appLabel: setName}},
			"updateStrategy": map[string]any{
				"type": string(apps.UpdateInPlaceIfPossible), "maxUnavailable": fmt.Sprintf("%.0f%%", 100*maxUnavailable),
			},
			"template": map[string]any{
				"metadata": map[string]any{"labels": labels},
				"spec":     map[string]any{"containers": []any{map[string]any{"name": "main", "image": image(1)}}},
			},
		},
	}}
}

// change is what a phase changes in the CloneSet.
type change struct {
	replicas int
	version  int // of the image
	recreate bool
	// updateHook and deleteHook are the hooks that hold.
	updateHook, deleteHook bool
}

// patch is the JSON merge patch that applies the change to the CloneSet.
func (c change) patch() ([]byte, error) {
	kind := apps.UpdateInPlaceIfPossible
	if c.recreate {
		kind = apps.UpdateReCreate
	}
	return json.Marshal(map[string]any{"spec": map[string]any{
		"replicas":       c.replicas,
		"updateStrategy": map[string]any{"type": kind},
		"lifecycle":      map[string]any{"inPlaceUpdate": hook(c.updateHook, updateHook), "preDelete": hook(c.deleteHook, deleteHook)},
		"template": map[string]any{"spec": map[string]any{
			"containers": []any{map[string]any{"name": "main", "image": image(c.version)}},
		}},
	}})
}

// hook is a label hook; nil, which removes it, if it is not wanted.
func hook(wanted bool, label string) any {
	if !wanted {
		return nil
	}
	return map[string]any{"labelsHandler": map[string]string{label: hooked}}
}

// apply changes the CloneSet and returns the resulting generation.
func (c change) apply(ctx context.Context, kube client.Client) (int64, error) {
	patch, err := c.patch()
	if err != nil {
		return 0, fmt.Errorf("encode the change of the CloneSet: %w", err)
	}
	set := &apps.CloneSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: setName}}
	if err := kube.Patch(ctx, set, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return 0, fmt.Errorf("change the CloneSet: %w", err)
	}
	return set.Generation, nil
}

// word is what a watch of the CloneSet has reported. It is the store of a reflector.
type word struct {
	changed chan struct{} // has one element after a change
	mu      sync.Mutex
	set     *apps.CloneSet // nil: there is none
}

var _ cache.ReflectorStore = (*word)(nil)

func newWord() *word { return &word{changed: make(chan struct{}, 1)} }

func (w *word) take(set *apps.CloneSet) {
	w.mu.Lock()
	w.set = set
	w.mu.Unlock()
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// Add stores the CloneSet.
func (w *word) Add(object any) error { return w.Update(object) }

// Update stores the present CloneSet.
func (w *word) Update(object any) error {
	set, ok := object.(*apps.CloneSet)
	if !ok {
		return fmt.Errorf("the watch of CloneSets brought a %T", object)
	}
	w.take(set)
	return nil
}

// Delete records that the CloneSet is gone.
func (w *word) Delete(any) error {
	w.take(nil)
	return nil
}

// Replace replaces the CloneSet after an interrupted watch.
func (w *word) Replace(objects []any, _ string) error {
	w.take(nil)
	for _, object := range objects {
		if err := w.Update(object); err != nil {
			return err
		}
	}
	return nil
}

// Resync does nothing: there are no handlers to notify again.
func (w *word) Resync() error { return nil }

// await waits until the status reports that all Pods match a generation.
func (w *word) await(ctx context.Context, generation int64, pods int) error {
	for {
		w.mu.Lock()
		set := w.set
		w.mu.Unlock()
		if set != nil && reports(set, generation, pods) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the status does not get to %d updated and available Pods: %s: %w", pods, statusText(set), context.Cause(ctx))
		case <-w.changed:
		}
	}
}

func statusText(set *apps.CloneSet) string {
	if set == nil {
		return "there is no CloneSet"
	}
	s := &set.Status
	return fmt.Sprintf("observed generation %d of %d, %d Pods, %d updated, %d of them available",
		s.ObservedGeneration, set.Generation, s.Replicas, s.UpdatedReplicas, s.UpdatedAvailableReplicas)
}

// reports reports whether the status has that many Pods, all updated and available.
func reports(set *apps.CloneSet, generation int64, pods int) bool {
	s := &set.Status
	for _, count := range []int32{
		s.Replicas, s.ReadyReplicas, s.AvailableReplicas, s.UpdatedReplicas, s.UpdatedReadyReplicas, s.UpdatedAvailableReplicas,
	} {
		if int(count) != pods {
			return false
		}
	}
	return s.ObservedGeneration >= generation
}

// versionOf is a Pod's resource version; 0 if it has none that can be compared.
func versionOf(pod *corev1.Pod) uint64 {
	version, err := strconv.ParseUint(pod.ResourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return version
}
