// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
)

// TestReturnsDuringPass: while a pass waits for the answer to a write, Pods that can return do,
// once, and those that a write of the pass concerns do not.
func TestReturnsDuringPass(t *testing.T) {
	set := web()
	set.Spec.Replicas = new(int32(3))
	bound := func(pod *corev1.Pod) *corev1.Pod { pod.Spec.NodeName = "n1"; return pod }
	c := server(t, set)
	sent, release := make(chan string, 10), make(chan struct{})
	waits, fails := "", ""
	r, _ := reconcilerOn(interceptor.NewClient(c, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
			object.SetUID(types.UID(object.GetName()))
			return c.Create(ctx, object, options...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			if waits != "" {
				sent <- object.GetName()
			}
			switch object.GetName() {
			case waits:
				<-release
			case fails:
				return errors.New("broken for good")
			}
			return c.Patch(ctx, object, patch, options...)
		},
	}))
	checktest.Must(r.Reconcile(t.Context(), reconcile.Request{NamespacedName: keyOf(set)}))(t)
	pods := checktest.Must(r.ListPods(t.Context(), set.Namespace, string(set.UID)))(t)
	checktest.NoError(t, c.Update(t.Context(), bound(pods[0].DeepCopy())))
	waits, fails = pods[0].Name, pods[2].Name
	done := make(chan error)
	go func() {
		_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: keyOf(set)})
		done <- err
	}()
	checktest.Same(t, "what is written first", waits, <-sent)
	for _, pod := range append(pods, pods[1]) {
		r.PodEvents().Update(t.Context(), event.UpdateEvent{ObjectOld: pod, ObjectNew: bound(pod.DeepCopy())}, &queued{})
	}
	checktest.Same(t, "what returns meanwhile", sets.New(pods[1].Name, fails), sets.New(next(t, sent), next(t, sent)))
	close(release)
	if err := <-done; err == nil || !strings.Contains(err.Error(), "broken for good") {
		t.Errorf("the pass hides that a return failed: %v", err)
	}
	for _, pod := range pods[:2] {
		checktest.Same(t, "the state of "+pod.Name, string(apps.StateNormal), read(t, c, pod).Labels[apps.LabelLifecycleState])
	}
	checktest.Same(t, "more writes", 0, len(sent))
}

// next is what comes within a minute.
func next(t *testing.T, from <-chan string) string {
	t.Helper()
	select {
	case name := <-from:
		return name
	case <-time.After(time.Minute):
		t.Fatal("nothing comes")
		return ""
	}
}
