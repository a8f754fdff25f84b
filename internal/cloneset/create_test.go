// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/cloneset/revision"
)

// TestTakenName: if a name is taken, by a terminating Pod or by anyone else's, another
// one is tried, a few times.
func TestTakenName(t *testing.T) {
	for taken, want := range map[int]string{
		0: "web-id0", 1: "web-id1", idTries - 1: fmt.Sprintf("web-id%d", idTries-1), idTries: "",
	} {
		t.Run(fmt.Sprint(taken), func(t *testing.T) {
			var there []client.Object
			for i := range taken {
				there = append(there, podOf(nil, fmt.Sprintf("web-id%d", i)))
			}
			r, _ := reconcilerOn(server(t, there...))
			tries := 0
			r.NewID = func() string { tries++; return fmt.Sprintf("id%d", tries-1) }
			made := r.perform(t.Context(), web(), plan.Action{Verb: plan.Create, Revision: emptyRevision()})
			if want == "" {
				if !apierrors.IsAlreadyExists(made.err) || tries != idTries {
					t.Errorf("after %d tries: %v", tries, made.err)
				}
				return
			}
			if made.err != nil || made.pod.Name != want || "web-"+made.pod.Labels[apps.LabelInstanceID] != want {
				t.Fatalf("made %v: %v", made.pod, made.err)
			}
			if i := indexOf(made.pod, apps.ConditionInPlaceUpdateReady); i < 0 || made.pod.Status.Conditions[i].Status != corev1.ConditionTrue {
				t.Errorf("conditions %v", made.pod.Status.Conditions)
			}
		})
	}
}

// TestNewPod: what a Pod is created with, in addition to its template. The gates are
// there whatever the update type: no webhook adds them.
func TestNewPod(t *testing.T) {
	template := `{"metadata":{"labels":{"app":"web","lifecycle.apps.kruise.io/state":"Normal"},"annotations":{"note":"x"},"finalizers":["example.com/f"]},` +
		`"spec":{"readinessGates":[{"conditionType":"mine"},{"conditionType":"InPlaceUpdateReady"}],"fromTheFuture":{"a":9007199254740993},"containers":[{"name":"main","image":"app:1"}]}}`
	marked := &apps.Lifecycle{PreDelete: &apps.LifecycleHook{MarkPodNotReady: true}}
	for _, test := range []struct {
		name      string
		template  string
		kind      apps.UpdateStrategyType
		lifecycle *apps.Lifecycle
		gates     []string
	}{
		{"recreate", `{"spec":{"containers":[]}}`, apps.UpdateReCreate, nil, []string{"InPlaceUpdateReady"}},
		{"gates of its own", template, apps.UpdateInPlaceIfPossible, nil, []string{"mine", "InPlaceUpdateReady"}},
		{"a hook that marks", template, apps.UpdateOnDelete, marked, []string{"mine", "InPlaceUpdateReady", "KruisePodReady"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			raw, err := revision.Decode([]byte(test.template))
			if err != nil {
				t.Fatal(err)
			}
			set := web()
			set.Spec.UpdateStrategy.Type, set.Spec.Lifecycle = test.kind, test.lifecycle
			pod := podManifest(set, &revision.Revision{Name: "web-r1", Template: raw}, "abcde", now)
			if gates := gatesOf(pod); !slices.Equal(gates, test.gates) {
				t.Errorf("gates %v, want %v", gates, test.gates)
			}
			isNewPod(t, pod, set)
			if test.template != template {
				return
			}
			future, _, _ := unstructured.NestedInt64(pod.Object, "spec", "fromTheFuture", "a")
			if future != 9007199254740993 || pod.GetAnnotations()["note"] != "x" || !slices.Equal(pod.GetFinalizers(), []string{"example.com/f"}) {
				t.Errorf("lost on the way: %v", pod.Object)
			}
		})
	}
}

func gatesOf(pod *unstructured.Unstructured) []string {
	var out []string
	list, _, _ := unstructured.NestedSlice(pod.Object, "spec", "readinessGates")
	for _, gate := range list {
		out = append(out, gate.(map[string]any)["conditionType"].(string))
	}
	return out
}

// isNewPod checks what every new Pod web-abcde of revision web-r1 carries.
func isNewPod(t *testing.T, pod *unstructured.Unstructured, set *apps.CloneSet) {
	t.Helper()
	for key, want := range map[string]string{
		apps.LabelInstanceID: "abcde", apps.LabelRevision: "web-r1", apps.LabelTemplateHash: "r1", apps.LabelLifecycleState: "PreparingNormal",
	} {
		if got := pod.GetLabels()[key]; got != want {
			t.Errorf("label %s = %q, want %q", key, got, want)
		}
	}
	if at := pod.GetAnnotations()[apps.AnnotationLifecycleTimestamp]; pod.GetName() != "web-abcde" || at != "2026-01-02T03:04:05Z" || !metav1.IsControlledBy(pod, set) {
		t.Errorf("Pod %s since %s of %v", pod.GetName(), at, pod.GetOwnerReferences())
	}
}

// TestPatchIsEncoded: whatever the user's keys and values, an encoder builds the patch,
// and it touches only what it names.
func TestPatchIsEncoded(t *testing.T) {
	key, value := `a/b~c`, `x","op":"remove`
	pod := podWithSecret("web-a")
	pod.Labels, pod.Finalizers = map[string]string{"kept": "1"}, []string{"example.com/theirs"}
	data, err := podPatch(pod, &plan.Action{Verb: plan.Move, Labels: map[string]*string{key: &value}, AddFinalizers: []string{"example.com/ours"}}, false, now)
	if err != nil {
		t.Fatal(err)
	}
	var patch jsonPatch
	if err := json.Unmarshal(data, &patch); err != nil {
		t.Fatal(err)
	}
	patch = slices.DeleteFunc(patch, func(o operation) bool { return o.Op == "test" })
	want := jsonPatch{
		{"add", "/metadata/labels/a~1b~0c", value},
		{"add", "/metadata/finalizers", []any{"example.com/theirs", "example.com/ours"}},
	}
	if diff := cmp.Diff(want, patch); diff != "" {
		t.Errorf("patch (-want +got):\n%s", diff)
	}
}
