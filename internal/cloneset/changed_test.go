// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// meddler is a client under which an object changes before the first patches.
type meddler struct {
	client.Client
	meddle []func()
}

func (c *meddler) Patch(ctx context.Context, object client.Object, patch client.Patch, options ...client.PatchOption) error {
	if len(c.meddle) > 0 {
		c.meddle[0]()
		c.meddle = c.meddle[1:]
	}
	return c.Client.Patch(ctx, object, patch, options...)
}

// TestAdoptionOfAChangedPod: a kubelet's write in between does not stop an adoption,
// since no event would trigger it again. A Pod that was replaced, or has another owner,
// does stop it.
func TestAdoptionOfAChangedPod(t *testing.T) {
	type change = func(*corev1.Pod)
	message := func(p *corev1.Pod) { p.Status.Message += "." }
	for name, test := range map[string]struct {
		changes       []change
		adopted, fail bool
	}{
		"nothing":           {adopted: true},
		"a status":          {changes: []change{message}, adopted: true},
		"its labels":        {changes: []change{func(p *corev1.Pod) { p.Labels["app"] = "db" }}},
		"its owner":         {changes: []change{func(p *corev1.Pod) { p.OwnerReferences = append(p.OwnerReferences, owner("other", true)) }}},
		"time after time":   {changes: []change{message, message}, fail: true},
		"it is deleted now": {changes: []change{nil}},
	} {
		t.Run(name, func(t *testing.T) {
			set := web()
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: set.Namespace, Name: "web-x", UID: "pod", Labels: map[string]string{"app": "web"}}}
			c := &meddler{Client: indexed(t, set, pod)}
			cached := read(t, c, pod)
			for _, change := range test.changes {
				c.meddle = append(c.meddle, func() { edit(t, c.Client, pod, change) })
			}
			r := New(c, c, events.NewFakeRecorder(1), Options{})
			err := r.adoptPod(t.Context(), read(t, c, set), labels.SelectorFromSet(labels.Set{"app": "web"}), cached)
			if (err != nil) != test.fail {
				t.Fatal(err)
			}
			after := &corev1.Pod{}
			if err := client.IgnoreNotFound(c.Get(t.Context(), client.ObjectKeyFromObject(pod), after)); err != nil {
				t.Fatal(err)
			}
			if got := metav1.IsControlledBy(after, set); got != test.adopted {
				t.Errorf("adopted: %t, want %t", got, test.adopted)
			}
		})
	}
}

// edit changes a Pod at the API server; nil deletes it.
func edit(t *testing.T, c client.Client, pod *corev1.Pod, change func(*corev1.Pod)) {
	t.Helper()
	live := read(t, c, pod)
	err := error(nil)
	if change == nil {
		err = c.Delete(t.Context(), live)
	} else {
		change(live)
		err = c.Update(t.Context(), live)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// read returns an object as the API server has it.
func read[T client.Object](t testing.TB, c client.Reader, object T) T {
	t.Helper()
	out, ok := object.DeepCopyObject().(T)
	if !ok {
		t.Fatalf("%T", object)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(object), out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestRollbackOfAnOldCache: a revision becomes the newest again only for the template
// that the API server has, and the API server's version counts from then on.
func TestRollbackOfAnOldCache(t *testing.T) {
	for name, test := range map[string]struct {
		generation int64
		want       int64
	}{
		"the cache is up to date": {generation: 3, want: 8},
		"the cache is behind":     {generation: 4, want: 5},
	} {
		t.Run(name, func(t *testing.T) {
			set := web()
			set.Generation = test.generation
			object := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: set.Namespace, Name: "web-6f"}, Revision: 5}
			c := indexed(t, set, object)
			r := New(c, c, events.NewFakeRecorder(1), Options{})
			cached := read(t, c, set)
			cached.Generation, cached.ResourceVersion = 3, "1"
			err := r.renumber(t.Context(), cached, object, 8)
			if apierrors.IsConflict(err) != (test.generation != 3) || (err != nil && !apierrors.IsConflict(err)) {
				t.Errorf("error %v", err)
			}
			if got := read(t, c, object).Revision; got != test.want {
				t.Errorf("revision %d, want %d", got, test.want)
			}
			if got := r.sets.newest(cached).Generation; got != test.generation {
				t.Errorf("the next pass takes generation %d, want %d", got, test.generation)
			}
		})
	}
}

// TestVerificationIsDue: an answer that the cache has not confirmed triggers a pass, since no
// event may.
func TestVerificationIsDue(t *testing.T) {
	entry := func(name string, age time.Duration, created, deleted bool) podEntry {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: "5"}}
		return podEntry{object: pod, created: created, deleted: deleted, at: now.Add(-age)}
	}
	for name, test := range map[string]struct {
		entries []podEntry
		want    time.Time
	}{
		"nothing":              {},
		"the oldest one":       {[]podEntry{entry("a", time.Second, true, false), entry("b", 3*time.Second, true, false)}, now.Add(verifyAfter - 3*time.Second)},
		"one that goes":        {[]podEntry{entry("a", 0, false, true)}, now.Add(verifyAfter)},
		"made, and gone again": {[]podEntry{entry("a", 0, true, true)}, time.Time{}},
	} {
		w := newOverlay[*corev1.Pod]()
		for _, e := range test.entries {
			w.note("set", e)
		}
		w.note("another", entry("c", time.Hour, true, false))
		if got := w.verifyAt("set"); !got.Equal(test.want) {
			t.Errorf("%s: due at %v, want %v", name, got, test.want)
		}
		if _, unverified := w.merge("set", nil, w.verifyAt("set")); len(unverified) != 0 != (name == "the oldest one") {
			t.Errorf("%s: to be verified then: %v", name, unverified)
		}
	}
}
