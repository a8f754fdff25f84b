// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"embed"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

const (
	namespace = "measure"
	setName   = "web"
)

// The labels of the hooks.
const (
	normalHook = "measure.usher.dev/normal"
	updateHook = "measure.usher.dev/update"
	deleteHook = "measure.usher.dev/delete"
	hooked     = "true"
)

// manifests are the measured CloneSet and its Registration.
//
//go:embed manifests
var manifests embed.FS

func object(kind string) (*unstructured.Unstructured, error) {
	text, err := manifests.ReadFile("manifests/" + kind + ".yaml")
	if err != nil {
		return nil, err
	}
	o := &unstructured.Unstructured{}
	return o, yaml.Unmarshal(text, &o.Object)
}

// image is a version of the image that the Pods run.
func image(version int) string { return fmt.Sprintf("example.test/web:v%d", version) }

// step is one change of the CloneSet, and how it is measured.
type step struct {
	name string
	pods int // how many it changes
	// replicas, version and old are what the CloneSet then asks for: old is the number
	// of Pods that keep the previous version.
	replicas, version, old int
	recreate               bool
	hooks                  []string // the gates that hold
	// bounded means that maxUnavailable bounds the step.
	bounded bool
	// hidden means that it only prepares the next one, and is not reported.
	hidden bool
	// do is what happens instead of a change, during what happens after it.
	do, during func(context.Context, *measurement, step) error
}

// Names that goals refer to.
const (
	stepInPlace = "in place"
	stepIdle    = "killed while idle"
	stepControl = "control: one entry taken out by hand"
)

// cloneSetScenario is the life of a CloneSet of n Pods. Each step begins where the
// previous one ended.
func cloneSetScenario(n int) []step {
	return []step{
		{name: "scale out", replicas: n, version: 1},
		{name: stepInPlace, replicas: n, version: 2, bounded: true},
		{name: "in place, hook", replicas: n, version: 3, bounded: true, hooks: []string{"inPlaceUpdate"}},
		{name: "recreate", replicas: n, version: 4, bounded: true, recreate: true},
		{name: "scale in, hook", version: 4, hooks: []string{"preDelete"}},
		{name: "scale out again", replicas: n, version: 4, hidden: true},
		{name: "scale in", version: 4},
	}
}

// restartScenario is what depends on how long containers take to restart.
func restartScenario(n int) []step {
	return []step{
		{name: "scale out", replicas: n, version: 1, hidden: true},
		{name: stepInPlace, replicas: n, version: 2, bounded: true},
	}
}

// fifth divides the Pods: that share changes in the steps in which Usher is killed.
const fifth = 5

// operatorScenario is the same for both halves of Usher with a registry.
func operatorScenario(n int) []step {
	some := n / fifth
	steps := []step{
		{name: "register", replicas: n, version: 1},
		{name: stepIdle, replicas: n, version: 1, do: killIdle},
		{name: "fail over", replicas: n, version: 2},
		{name: "deregister a fifth, killed twice", pods: some, replicas: n - some, version: 2, during: killTwice},
		{name: "register a fifth, killed twice", pods: some, replicas: n, version: 2, during: killTwice},
		{name: "fail over a fifth, killed twice", pods: some, replicas: n, version: 3, old: n - some, during: killTwice},
		{name: stepControl, pods: 1, replicas: n, version: 3, old: n - some, do: removeEntry},
		{name: "deregister", version: 3},
	}
	for i := range steps {
		steps[i].hooks = []string{"preNormal", "inPlaceUpdate", "preDelete"}
	}
	return steps
}

// apply changes the CloneSet and returns the resulting generation.
func (p step) apply(ctx context.Context, kube client.Client) (int64, error) {
	kind := apps.UpdateInPlaceIfPossible
	if p.recreate {
		kind = apps.UpdateReCreate
	}
	labels := map[string]string{"preNormal": normalHook, "inPlaceUpdate": updateHook, "preDelete": deleteHook}
	lifecycle := map[string]any{}
	for gate := range labels {
		lifecycle[gate] = nil // removes it
	}
	for _, gate := range p.hooks {
		lifecycle[gate] = map[string]any{"labelsHandler": map[string]string{labels[gate]: hooked}}
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{
		"replicas":       p.replicas,
		"updateStrategy": map[string]any{"type": kind, "partition": p.old},
		"lifecycle":      lifecycle,
		"template":       map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": "main", "image": image(p.version)}}}},
	}})
	if err != nil {
		return 0, fmt.Errorf("encode the change of the CloneSet: %w", err)
	}
	set := &apps.CloneSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: setName}}
	if err := kube.Patch(ctx, set, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return 0, fmt.Errorf("change the CloneSet: %w", err)
	}
	return set.Generation, nil
}

// answerWorkers is how many hooks are answered concurrently.
const answerWorkers = 16

// answerHooks returns a function that confirms the hook of a Pod that has just reached a
// gate, and marks the Pod again after an update, like a hook operator that has nothing to
// wait for. Each hook is answered once: later events of the Pod may be older than the
// answer.
func answerHooks(ctx context.Context, kube client.Client, fail func(error)) func(*corev1.Pod, apps.LifecycleState) {
	free := make(chan struct{}, answerWorkers)
	return func(pod *corev1.Pod, before apps.LifecycleState) {
		patch := answerTo(pod, before)
		if patch == "" {
			return
		}
		go func() {
			free <- struct{}{}
			defer func() { <-free }()
			err := kube.Patch(ctx, barePod(pod.Name), client.RawPatch(types.MergePatchType, []byte(patch)))
			if client.IgnoreNotFound(err) != nil && ctx.Err() == nil {
				fail(fmt.Errorf("answer the hook of Pod %s: %w", pod.Name, err))
			}
		}()
	}
}

// answerTo is the patch that answers a Pod's hook; "" if there is nothing new.
func answerTo(pod *corev1.Pod, before apps.LifecycleState) string {
	state := stateOf(pod)
	if pod.DeletionTimestamp != nil || state == before {
		return ""
	}
	switch {
	case state == apps.StatePreparingUpdate && pod.Labels[updateHook] != "":
		return labelPatch(updateHook, "null")
	case state == apps.StateUpdated && pod.Labels[updateHook] == "":
		return labelPatch(updateHook, `"`+hooked+`"`)
	case state == apps.StatePreparingDelete && pod.Labels[deleteHook] != "":
		return labelPatch(deleteHook, "null")
	}
	return ""
}

func labelPatch(label, value string) string {
	return fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, label, value)
}
