// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/podcache"
	"github.com/usher-dev/usher/internal/podread"
)

// TestPartialPods: of Pods that are too large, the cache keeps only a part. A write depends on the
// whole Pod nevertheless, and loses nothing of it.
func TestPartialPods(t *testing.T) {
	set := web()
	crowd := func(pod *corev1.Pod) { // before the set's own reference, so that its index changes
		var others []metav1.OwnerReference
		for i := range 300 {
			others = append(others, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: fmt.Sprintf("of-%s-%03d", pod.Name, i), UID: "x"})
			pod.Labels[fmt.Sprintf("example.com/label-%03d", i)] = strings.Repeat("v", 63)
			pod.Finalizers = append(pod.Finalizers, fmt.Sprintf("example.com/%s-%03d", strings.Repeat("f", 50), i))
		}
		pod.OwnerReferences = append(others, pod.OwnerReferences...)
	}
	released := podOf(set, "web-a", func(pod *corev1.Pod) { pod.Labels["app"] = "other" }, crowd)
	adopted := podOf(nil, "web-b", crowd)
	moves := podOf(set, "web-c", crowd, func(pod *corev1.Pod) {
		pod.Labels[apps.LabelLifecycleState], pod.Spec.NodeName = string(apps.StatePreparingNormal), "n1"
	})
	c := server(t, set, released, adopted, moves)
	r, _ := reconcilerOn(c)
	keeper := podcache.New()
	r.pods = newOverlay(keeper.Keep)
	listed := r.ListPods
	r.ListPods = func(ctx context.Context, namespace, owner string) ([]*corev1.Pod, error) {
		pods, err := listed(ctx, namespace, owner)
		pods = list.Map(pods, keeper.Keep)
		for _, pod := range pods {
			if crowded := slices.ContainsFunc(pod.OwnerReferences, isConfigMap); crowded && !podread.IsPartial(pod) {
				t.Errorf("Pod %s is kept whole", pod.Name)
			}
		}
		return pods, err
	}
	for range 3 {
		if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: keyOf(set)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []*corev1.Pod{released, adopted, moves} {
		got := intact(t, c, want)
		checktest.Same(t, "whether the set has "+want.Name, want != released, metav1.IsControlledBy(got, set))
		if want == moves {
			checktest.Same(t, "state of "+want.Name, string(apps.StateNormal), got.Labels[apps.LabelLifecycleState])
		}
	}
}

// intact reads a Pod, which must have other owners, finalizers and labels as before.
func intact(t *testing.T, c client.Client, want *corev1.Pod) *corev1.Pod {
	t.Helper()
	got := &corev1.Pod{}
	checktest.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(want), got))
	others := list.Only(got.OwnerReferences, isConfigMap)
	checktest.Same(t, "other owners of "+want.Name, 300, len(others))
	checktest.Same(t, "finalizers of "+want.Name, want.Finalizers, got.Finalizers)
	for key, value := range want.Labels {
		if got.Labels[key] != value && !strings.Contains(key, "kruise.io") {
			t.Errorf("label %s of %s is %q, want %q", key, want.Name, got.Labels[key], value)
		}
	}
	return got
}

func isConfigMap(o metav1.OwnerReference) bool { return o.Kind == "ConfigMap" }

// TestRevisionsOfOthers: the cache keeps the templates of CloneSets' revisions, and of no others.
func TestRevisionsOfOthers(t *testing.T) {
	keep := RevisionCache().Transform
	for kind, want := range map[string]bool{apps.KindCloneSet.Kind: true, "StatefulSet": false, "": false} {
		object := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{
			Name: "web-1", Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"example.com/notes": "long"},
		}, Data: runtime.RawExtension{Raw: []byte("{}")}, Revision: 7}
		if kind != "" {
			object.OwnerReferences = []metav1.OwnerReference{{Kind: kind, UID: "1", Controller: new(true)}}
		}
		kept := checktest.Must(keep(object.DeepCopy()))(t).(*appsv1.ControllerRevision)
		checktest.Same(t, "template and annotations of a "+kind, [2]bool{want, want}, [2]bool{kept.Data.Raw != nil, kept.Annotations != nil})
		checktest.Same(t, "labels and owner of a "+kind, ownerOf(object)[0]+object.Labels["app"], ownerOf(kept)[0]+kept.Labels["app"])
	}
	checktest.Same[any](t, "what is no revision", "other", checktest.Must(keep("other"))(t))
}
