// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func waits(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "default", Name: name}}
}

// TestLanes: a set of which a Pod has changed is next, whoever came before, also if it waited
// already or has a pass; then its time ahead is over. No set waits twice.
func TestLanes(t *testing.T) {
	r, _ := reconcilerOn(server(t, web()))
	q := r.controllerOptions().NewQueue("", workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Second, time.Second))
	defer q.ShutDown()
	before := podOf(web(), "web-a", at("1"))
	after := before.DeepCopy()
	after.ResourceVersion, after.Status.Phase = "2", corev1.PodRunning
	podChanges := func() {
		r.PodEvents().Update(t.Context(), event.UpdateEvent{ObjectOld: before, ObjectNew: after}, q)
	}
	expect := func(want ...string) {
		t.Helper()
		var got []string
		for range want {
			set, _ := q.Get()
			got = append(got, set.Name)
		}
		if !slices.Equal(got, want) || q.Len() > 0 {
			t.Errorf("%v were next, and %d are left; want %v", got, q.Len(), want)
		}
		for _, name := range got {
			q.Done(waits(name))
		}
	}
	add := func(names ...string) {
		for _, name := range names {
			q.Add(waits(name))
		}
	}

	add("a", "b")
	podChanges()
	expect("web", "a", "b")

	add("a", "web", "b")
	podChanges()
	podChanges()
	expect("web", "a", "b")

	add("a", "web", "b")
	expect("a", "web", "b")

	podChanges()
	during, _ := q.Get()
	add("a")
	podChanges()
	q.Done(during)
	expect("web", "a")
}
