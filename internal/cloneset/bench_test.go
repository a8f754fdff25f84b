// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/revision"
)

// BenchmarkPass is a whole pass over a set that needs nothing: what every pass costs,
// without its writes. A set in motion is read again where it has changed, an idle set
// completely.
func BenchmarkPass(b *testing.B) {
	for _, n := range []int{100, 2_000, 20_000} {
		for _, moves := range []bool{false, true} {
			b.Run(fmt.Sprintf("pods=%d,moves=%t", n, moves), func(b *testing.B) {
				r, set := idleSet(b, n, moves)
				b.ReportAllocs()
				for b.Loop() {
					if _, err := r.pass(b.Context(), set); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// idleSet is a set whose Pods are as it asks, or which is paused during a rollout. The
// Pods are unordered, as from an index.
func idleSet(b *testing.B, n int, moves bool) (*Reconciler, *apps.CloneSet) {
	b.Helper()
	set := web()
	set.ResourceVersion, set.Spec.Replicas = "1", new(int32(n)) // a benchmark's sizes are small
	c := server(b, set)
	r, _ := reconcilerOn(c)
	known, err := r.syncRevisions(b.Context(), set)
	if err != nil {
		b.Fatal(err)
	}
	pods := make([]*corev1.Pod, n)
	for i := range pods {
		pods[i] = servingPod(set, fmt.Sprintf("web-%05d", i), known.update.Name)
		pods[i].ResourceVersion = strconv.Itoa(i + 1)
	}
	r.ListPods = func(_ context.Context, _, owner string) ([]*corev1.Pod, error) {
		if owner == orphanKey {
			return nil, nil
		}
		rand.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
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
