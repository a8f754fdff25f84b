// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/cloneset/write"
)

// cloneSetSeeds are the CloneSets that fuzzing starts from: one with all fields, and one for each kind
// of mistake.
var cloneSetSeeds = []string{
	`{"apiVersion":"apps.kruise.io/v1alpha1","kind":"CloneSet","metadata":{"name":"web","namespace":"shop"},"spec":{"replicas":3,
	"selector":{"matchLabels":{"app":"web"}},"minReadySeconds":5,"progressDeadlineSeconds":60,
	"template":{"metadata":{"labels":{"app":"web"},"finalizers":["a/b"]},"spec":{"containers":[{"name":"main","image":"app:1","newer":{"x":[1,2.5]}}],
	"readinessGates":[{"conditionType":"own"}]}},
	"scaleStrategy":{"podsToDelete":["web-abcde"],"maxUnavailable":"10%"},
	"updateStrategy":{"type":"InPlaceIfPossible","partition":"50%","maxUnavailable":1,"maxSurge":"20%","paused":false,
	"inPlaceUpdateStrategy":{"gracePeriodSeconds":5},"scatterStrategy":[{"key":"a","value":"b"}],
	"priorityStrategy":{"weightPriority":[{"weight":50,"matchSelector":{"matchExpressions":[{"key":"a","operator":"In","values":["x"]}]}}]}},
	"lifecycle":{"preNormal":{"labelsHandler":{"a":"true"}},"preDelete":{"finalizersHandler":["a/b"],"markPodNotReady":true}}}}`,
	`{"spec":{"template":{},"updateStrategy":{"partition":"x%"}}}`,
	`{"spec":{"template":{},"updateStrategy":{"type":"","maxSurge":"1000000%"}}}`,
	`{"spec":{"template":[],"updateStrategy":{"maxSurge":-1}}}`,
	`{"spec":{"template":{"metadata":{"labels":{"a":"1"}},"spec":{"readinessGates":[1,null]}},"updateStrategy":{"maxUnavailable":"99999%"}}}`,
	`{"spec":{"template":{"spec":{"containers":null}},"updateStrategy":{"priorityStrategy":{"weightPriority":[{"matchSelector":{"matchExpressions":[{"operator":"?"}]}}]}}}}`,
	`{"spec":{"replicas":-1,"selector":{"matchExpressions":[{"key":"","operator":"Exists"}]},"scaleStrategy":{"maxUnavailable":"5"}}}`,
	`{"spec":{"template":{"metadata":{"finalizers":[1,null,"f"],"annotations":{"a":1}},"spec":{"readinessGates":"x"}}}}`,
}

// FuzzCloneSet passes any CloneSet through everything that a pass does with its spec:
// nothing panics, an error names the field, and nothing of the template is lost.
func FuzzCloneSet(f *testing.F) {
	for _, seed := range cloneSetSeeds {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var set apps.CloneSet
		if json.Unmarshal(data, &set) != nil {
			return // the API server and the cache refuse it
		}
		checktest.NoError(t, keepsTemplate(&set))
		spec, err := plan.SpecOf(&set)
		if err != nil && !strings.HasPrefix(err.Error(), "spec.") {
			t.Errorf("the error names no field: %v", err)
		}
		template, templateErr := revision.Decode(set.Spec.Template.Raw())
		if err == nil && templateErr == nil {
			checktest.NoError(t, useTemplate(&set, spec, template))
		}
	})
}

// keepsTemplate: a CloneSet that is written and read back keeps its template, and the
// copy shares nothing that could change.
func keepsTemplate(set *apps.CloneSet) error {
	data, err := json.Marshal(set.DeepCopy())
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	var again apps.CloneSet
	if err := json.Unmarshal(data, &again); err != nil {
		return fmt.Errorf("a CloneSet that was read cannot be read again: %w", err)
	}
	var before, after map[string]any
	if raw := set.Spec.Template.Raw(); len(raw) > 0 {
		if err := json.Unmarshal(raw, &before); err != nil {
			return fmt.Errorf("decode the template: %w", err)
		}
	}
	if err := json.Unmarshal(again.Spec.Template.Raw(), &after); err != nil {
		return fmt.Errorf("decode the template that was written: %w", err)
	}
	if diff := cmp.Diff(revision.Normalize(before), revision.Normalize(after)); diff != "" {
		return fmt.Errorf("the template changes on its way: %s", diff)
	}
	return nil
}

// useTemplate uses a template as a rollout does.
func useTemplate(set *apps.CloneSet, spec plan.Spec, template map[string]any) error {
	r, err := revisionOf(template)
	if err != nil || r == nil {
		return err
	}
	manifest := write.PodManifest(set, r, "abcde", now)
	pod := &corev1.Pod{}
	if runtime.DefaultUnstructuredConverter.FromUnstructured(manifest.Object, pod) != nil {
		return nil // the API server refuses it
	}
	s := &plan.Snapshot{
		Now: now, Set: "web", Spec: spec, Current: r, Update: r, Starts: 32,
		Revisions: map[string]*revision.Revision{revision.Short(r.Name): r}, Pods: []*corev1.Pod{pod},
	}
	plan.Review(s)
	for _, a := range plan.Make(s).Actions {
		if a.Pod == nil {
			continue
		}
		for _, subresource := range write.Subresources(&a) {
			write.Patch(subresource, a.Pod, &a, false, now)
		}
	}
	return nil
}

// revisionOf passes a template through a ControllerRevision; nil if there is none.
func revisionOf(template map[string]any) (*revision.Revision, error) {
	data, err := revision.Data(template) // fails if the revision would hold another one
	if errors.Is(err, revision.ErrNoTemplate) {
		return nil, nil // the set reports it
	}
	if err != nil {
		return nil, fmt.Errorf("encode revision: %w", err)
	}
	return revision.Of("web-"+revision.Hash(template, 0), 0, data), nil
}

// BenchmarkPass measures a whole pass over a set that needs nothing: the costs of every pass without
// its writes. Of a set in motion, only changed Pods are read; an idle set is read completely.
func BenchmarkPass(b *testing.B) {
	for _, n := range []int{100, 2_000, 20_000} {
		for _, moves := range []bool{false, true} {
			b.Run(fmt.Sprintf("pods=%d,moves=%t", n, moves), func(b *testing.B) {
				r, set := idleSet(b, n, moves)
				b.ReportAllocs()
				for b.Loop() {
					checktest.Must(r.pass(b.Context(), set))(b)
				}
			})
		}
	}
}

// idleSet returns a set with nothing to do: all its Pods are as its spec asks or, with moves, its
// rollout is paused.
func idleSet(b *testing.B, n int, moves bool) (*Reconciler, *apps.CloneSet) {
	b.Helper()
	set := web()
	set.ResourceVersion, set.Spec.Replicas = "1", new(int32(n)) // a benchmark's sizes are small
	c := server(b, set)
	r, _ := reconcilerOn(c)
	known := checktest.Must(r.syncRevisions(b.Context(), set, nil))(b)
	pods := make([]*corev1.Pod, n)
	for i := range pods {
		pods[i] = servingPod(set, fmt.Sprintf("web-%05d", i), known.update.Name)
		pods[i].ResourceVersion = strconv.Itoa(i + 1)
	}
	r.ListPods = func(_ context.Context, _, owner string) ([]*corev1.Pod, error) {
		if owner != string(set.UID) {
			return nil, nil
		}
		return pods, nil
	}
	if moves {
		set.Spec.Template, set.Spec.UpdateStrategy.Paused = templateOf("app:2"), true
	}
	if _, err := r.pass(b.Context(), set); err != nil { // writes the status
		b.Fatal(err)
	}
	set.Status = read(b, c, set).Status
	return r, set
}

func servingPod(set *apps.CloneSet, name, of string) *corev1.Pod {
	at := metav1.NewTime(now.Add(-time.Hour))
	pod := podOf(set, name)
	pod.CreationTimestamp, pod.Generation, pod.Annotations = at, 1, map[string]string{apps.AnnotationLifecycleTimestamp: at.Format(time.RFC3339)}
	maps.Copy(pod.Labels, map[string]string{
		apps.LabelLifecycleState: string(apps.StateNormal), apps.LabelInstanceID: name, apps.LabelRevision: of, apps.LabelTemplateHash: revision.Short(of),
	})
	pod.Spec = corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{Name: "main", Image: "app:1"}}}
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, ObservedGeneration: 1,
		ContainerStatuses: []corev1.ContainerStatus{{Name: "main", Image: "app:1", ImageID: "id", ContainerID: "c", Ready: true}},
	}
	for _, kind := range []corev1.PodConditionType{
		corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady, corev1.PodScheduled, apps.ConditionInPlaceUpdateReady,
	} {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: at})
	}
	return pod
}
