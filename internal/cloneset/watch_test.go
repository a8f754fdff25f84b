// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// TestSetChanged: the controller's own write of counters and conditions triggers no pass.
// A write by someone else does, since it may be wrong, and so does everything that a pass
// reads.
func TestSetChanged(t *testing.T) {
	two := int32(2)
	counters := func(s *apps.CloneSet) { s.Status.ReadyReplicas, s.Status.ObservedGeneration = 3, 1 }
	for _, test := range []struct {
		name     string
		answered string // the version that this controller's last write produced
		change   func(*apps.CloneSet)
		want     bool
	}{
		{"its own counters", "2", counters, false},
		{"its own counters, of a write before the last one", "3", counters, false},
		{"another's counters", "1", counters, true},
		{"another's counters, and it has written none", "", counters, true},
		{"its own condition", "2", func(s *apps.CloneSet) { s.Status.Conditions = []apps.CloneSetCondition{{Type: "Blocked"}} }, false},
		{"managed fields", "2", func(s *apps.CloneSet) { s.ManagedFields = record(metav1.ManagedFieldsOperationUpdate) }, false},
		{"the spec", "3", func(s *apps.CloneSet) { s.Generation++ }, true},
		{"a label", "3", func(s *apps.CloneSet) { s.Labels = map[string]string{"a": "b"} }, true},
		{"an annotation", "3", func(s *apps.CloneSet) { s.Annotations = map[string]string{"a": "b"} }, true},
		{"a finalizer", "3", func(s *apps.CloneSet) { s.Finalizers = []string{"a"} }, true},
		{"its deletion", "3", func(s *apps.CloneSet) { s.DeletionTimestamp = &metav1.Time{Time: now} }, true},
		{"another set of its name", "3", func(s *apps.CloneSet) { s.UID = "other" }, true},
		{"the current revision", "2", func(s *apps.CloneSet) { s.Status.CurrentRevision = "web-2" }, true},
		{"the update revision", "2", func(s *apps.CloneSet) { s.Status.UpdateRevision = "web-2" }, true},
		{"a collision", "2", func(s *apps.CloneSet) { s.Status.CollisionCount = &two }, true},
		{"nothing: the periodic event", "1", func(s *apps.CloneSet) { s.ResourceVersion = "1" }, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := &apps.CloneSet{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "uid", Generation: 1, ResourceVersion: "1"}}
			after := before.DeepCopy()
			after.ResourceVersion = "2"
			r, _ := reconcilerOn(server(t))
			if test.answered != "" {
				own := before.DeepCopy()
				own.ResourceVersion = test.answered
				r.memory(keyOf(own)).note(own)
			}
			test.change(after)
			if got := r.SetChanged(before, after); got != test.want {
				t.Errorf("SetChanged = %v, want %v", got, test.want)
			}
		})
	}
}

// TestPodsByIndex: the index returns a set's Pods and the orphans, of one namespace, and
// the cache's own objects.
func TestPodsByIndex(t *testing.T) {
	indexer := toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, toolscache.Indexers{indexOwner: ownerInNamespace})
	pod := func(namespace, name string, owner *apps.CloneSet) *corev1.Pod {
		p := podOf(owner, name)
		if p.Namespace = namespace; indexer.Add(p) != nil {
			t.Fatal("the Pod cannot be indexed")
		}
		return p
	}
	ours, orphan := pod("here", "a", web()), pod("here", "b", nil)
	pod("there", "a", web())
	list := byIndex(indexer)
	for key, want := range map[string]*corev1.Pod{"set": ours, orphanKey: orphan} {
		got, err := list(t.Context(), "here", key)
		if err != nil || len(got) != 1 || got[0] != want {
			t.Errorf("Pods of %s: %v, %v", key, got, err)
		}
	}
	if got, err := list(t.Context(), "here", "uid-2"); err != nil || len(got) != 0 {
		t.Errorf("Pods of nobody: %v, %v", got, err)
	}
}

// TestGone: deletions of terminating Pods are batched; that of a Pod that was not
// terminating, or had claims, is reported at once.
func TestGone(t *testing.T) {
	ends := func(p *corev1.Pod) { p.DeletionTimestamp = deletedNow() }
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want time.Duration
	}{
		"on its way out":              {podOf(web(), "web-a", ends), deletionDelay},
		"on its way out, with claims": {podOf(web(), "web-a", ends, mounting("data-web-a")), 0},
		"all of a sudden":             {podOf(web(), "web-a"), 0},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := reconcilerOn(server(t, web()))
			q := &queued{}
			r.PodEvents().Delete(t.Context(), event.DeleteEvent{Object: test.pod}, q)
			if !slices.Contains(q.after, test.want) || (test.want > 0 && len(q.after) > 1) {
				t.Errorf("passes after %v, want one after %s", q.after, test.want)
			}
		})
	}
}

// queued is a queue that records what is added, and when it is due.
type queued struct {
	workqueue.TypedRateLimitingInterface[reconcile.Request]
	requests []reconcile.Request
	after    []time.Duration
}

func (q *queued) Add(request reconcile.Request) { q.AddAfter(request, 0) }
func (q *queued) AddAfter(request reconcile.Request, delay time.Duration) {
	q.requests, q.after = append(q.requests, request), append(q.after, delay)
}
