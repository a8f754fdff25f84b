// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset"
)

func cacheOf(namespace string) cache.Options {
	return cache.Options{
		DefaultNamespaces: map[string]cache.Config{namespace: {}},
		DefaultTransform:  cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}: cloneset.PodCache(), &corev1.PersistentVolumeClaim{}: cloneset.ClaimCache(),
		},
	}
}

const (
	inPlaceKey   = "example.com/unready-blocker-inplace"
	deleteKey    = "example.com/unready-blocker-delete"
	preNormalKey = "example.com/traffic-online"
)

// plain is a CloneSet without hooks, named web.
const plain = `
apiVersion: apps.kruise.io/v1alpha1
kind: CloneSet
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main, image: "example.test/web:v1"}]}
  updateStrategy: {type: InPlaceIfPossible, maxUnavailable: 1}
`

// hooked is a CloneSet with a label hook before updates and before deletion.
const hooked = `
apiVersion: apps.kruise.io/v1alpha1
kind: CloneSet
metadata: {name: web}
spec:
  replicas: 2
  lifecycle:
    inPlaceUpdate: {labelsHandler: {example.com/unready-blocker-inplace: "true"}}
    preDelete: {labelsHandler: {example.com/unready-blocker-delete: "true"}}
  selector: {matchLabels: {app: web}}
  template:
    metadata:
      labels:
        app: web
        example.com/unready-blocker-inplace: "true"
        example.com/unready-blocker-delete: "true"
    spec: {containers: [{name: main, image: "example.test/web:v1"}]}
  updateStrategy: {type: InPlaceIfPossible, maxUnavailable: 20%}
`

// object parses YAML into the story's namespace.
func (s *story) object(text string) *unstructured.Unstructured {
	s.Helper()
	out := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &out.Object); err != nil {
		s.Fatal(err)
	}
	out.SetNamespace(s.namespace)
	return out
}

// create creates an object from YAML; each edit is a path and a value.
func (s *story) create(text string, edits ...any) {
	s.Helper()
	if err := s.client.Create(s.Context(), s.edited(text, edits...)); err != nil {
		s.Fatal(err)
	}
}

// null is an edit that writes an explicit null; nil removes the field.
const null = explicit("null")

type explicit string

// edited is the object of a YAML text with values set by path, such as
// "spec.replicas", 3.
func (s *story) edited(text string, edits ...any) *unstructured.Unstructured {
	s.Helper()
	out := s.object(text)
	for i := 0; i+1 < len(edits); i += 2 {
		path := strings.Split(edits[i].(string), ".")
		value := edits[i+1]
		if number, ok := value.(int); ok {
			value = int64(number)
		}
		if value == nil {
			unstructured.RemoveNestedField(out.Object, path...)
			continue
		}
		if value == null {
			value = nil
		}
		if err := unstructured.SetNestedField(out.Object, value, path...); err != nil {
			s.Fatalf("set %v: %v", path, err)
		}
	}
	return out
}

// patch changes the set.
func (s *story) patch(format string, args ...any) {
	s.Helper()
	set := &apps.CloneSet{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: s.name}}
	data, err := yaml.YAMLToJSON(fmt.Appendf(nil, format, args...))
	if err != nil {
		s.Fatal(err)
	}
	if err := s.client.Patch(s.Context(), set, client.RawPatch(types.MergePatchType, data)); err != nil {
		s.Fatal(err)
	}
}

// image changes the template's image.
func (s *story) image(image string) {
	s.Helper()
	s.patch(`spec: {template: {spec: {containers: [{name: main, image: %q}]}}}`, image)
}

// label answers a hook, as an operator would.
func (s *story) label(pod, key, value string) {
	s.Helper()
	data, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]string{key: value}}})
	if err != nil {
		s.Fatal(err)
	}
	target := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: pod}}
	if err := s.client.Patch(s.Context(), target, client.RawPatch(types.MergePatchType, data)); err != nil {
		s.Fatal(err)
	}
}

func (s *story) set() *apps.CloneSet {
	s.Helper()
	set := &apps.CloneSet{}
	if err := s.client.Get(s.Context(), types.NamespacedName{Namespace: s.namespace, Name: s.name}, set); err != nil {
		s.Fatal(err)
	}
	return set
}

// pods lists the story's Pods that are not being deleted, by name.
func (s *story) pods() []corev1.Pod {
	s.Helper()
	var list corev1.PodList
	if err := s.client.List(s.Context(), &list, client.InNamespace(s.namespace)); err != nil {
		s.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
}

func state(pod *corev1.Pod) apps.LifecycleState {
	return apps.LifecycleState(pod.Labels[apps.LabelLifecycleState])
}

// in lists the Pods in a state.
func (s *story) in(want apps.LifecycleState) []corev1.Pod {
	s.Helper()
	return slices.DeleteFunc(s.pods(), func(p corev1.Pod) bool { return state(&p) != want })
}

// until waits for a condition; if it is not met, it fails the story with the present
// objects.
func (s *story) until(what string, condition func() bool) {
	s.Helper()
	err := wait.PollUntilContextTimeout(s.Context(), 20*time.Millisecond, patience, true,
		func(context.Context) (bool, error) { return condition(), nil })
	if err != nil {
		s.Fatalf("waited %s for: %s\n%s", patience, what, s.picture())
	}
}

// settled waits until all Pods are available in the update revision.
func (s *story) settled(replicas int32) {
	s.Helper()
	s.until(fmt.Sprintf("%d available Pods, all updated", replicas), func() bool {
		set := s.set()
		status := &set.Status
		return status.ObservedGeneration == set.Generation && status.Replicas == replicas &&
			status.UpdatedAvailableReplicas == replicas && status.CurrentRevision == status.UpdateRevision &&
			len(s.pods()) == int(replicas)
	})
}

// one waits for exactly one Pod in a state.
func (s *story) one(want apps.LifecycleState) corev1.Pod {
	s.Helper()
	var found []corev1.Pod
	s.until("one Pod in "+string(want), func() bool {
		found = s.in(want)
		return len(found) == 1
	})
	return found[0]
}

// gone waits until a Pod is being deleted.
func (s *story) gone(pod string) {
	s.Helper()
	s.until("Pod "+pod+" to go", func() bool {
		_, there := s.identities()[pod]
		return !there
	})
}

// picture describes the present objects, for a failed story.
func (s *story) picture() string {
	var b strings.Builder
	set := s.set()
	status, err := json.MarshalIndent(set.Status, "", "  ")
	fmt.Fprintf(&b, "status of %s: %s %v\n", set.Name, status, err)
	for _, pod := range s.pods() {
		fmt.Fprintf(&b, "Pod %s labels %v phase %s conditions", pod.Name, pod.Labels, pod.Status.Phase)
		for _, c := range pod.Status.Conditions {
			fmt.Fprintf(&b, " %s=%s", c.Type, c.Status)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// condition is a condition of the set.
func (s *story) condition(kind apps.CloneSetConditionType) apps.CloneSetCondition {
	s.Helper()
	for _, c := range s.set().Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return apps.CloneSetCondition{}
}

// identities maps Pod names to UIDs.
func (s *story) identities() map[string]types.UID {
	s.Helper()
	out := map[string]types.UID{}
	for _, pod := range s.pods() {
		out[pod.Name] = pod.UID
	}
	return out
}
