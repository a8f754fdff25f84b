// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/google/go-cmp/cmp"
	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// adopted reports whether a pass, which sees the one set while the API server has the
// other, makes the set the owner of the object.
func adopted(t *testing.T, seen, live *apps.CloneSet, object client.Object) bool {
	t.Helper()
	c := server(t, live, object)
	r, _ := reconcilerOn(c)
	if err := errors.Join(r.adoptOrphans(t.Context(), seen), r.adoptRevisions(t.Context(), seen)); err != nil {
		t.Fatal(err)
	}
	return metav1.IsControlledBy(read(t, c, object), seen)
}

// TestAdoptingSets: a set adopts only if the API server has this very set, and it is not
// terminating.
func TestAdoptingSets(t *testing.T) {
	going := func(set *apps.CloneSet) { set.DeletionTimestamp, set.Finalizers = deletedNow(), []string{"orphan"} }
	for name, test := range map[string]struct {
		seen, live func(*apps.CloneSet)
		want       bool
	}{
		"it stays":                               {want: true},
		"it is deleted":                          {seen: going},
		"it is deleted, and the cache is behind": {live: going},
		"another set of that name by now":        {live: func(set *apps.CloneSet) { set.UID = "later" }},
	} {
		for _, object := range []client.Object{podOf(nil, "web-a"), revisionObject(nil, "web-6f", `{}`)} {
			seen, live := web(), web()
			if test.seen != nil {
				test.seen(seen)
			}
			if test.live != nil {
				test.live(live)
			}
			if got := adopted(t, seen, live, object); got != test.want {
				t.Errorf("%s: adopts %s: %t", name, object.GetName(), got)
			}
		}
	}
}

// TestAdoptedObjects: a set adopts Pods that match and are not terminating, and the
// revisions that have its name and labels; and none of other owners.
func TestAdoptedObjects(t *testing.T) {
	db := func(object client.Object) client.Object {
		object.SetLabels(map[string]string{"app": "db"})
		return object
	}
	terminating := podOf(nil, "web-a")
	terminating.DeletionTimestamp, terminating.Finalizers = deletedNow(), []string{"f"}
	for name, test := range map[string]struct {
		object client.Object
		want   bool
	}{
		"a terminating Pod":                  {terminating, false},
		"a Pod with other labels":            {db(podOf(nil, "web-a")), false},
		"another owner's Pod":                {podOf(anotherSet(), "web-a"), false},
		"its own revision":                   {revisionObject(web(), "web-6f", `{}`), true},
		"another owner's revision":           {revisionObject(anotherSet(), "web-6f", `{}`), false},
		"a revision with other labels":       {db(revisionObject(nil, "web-6f", `{}`)), false},
		"a revision with another set's name": {revisionObject(nil, "db-6f", `{}`), false},
		"a revision with a longer name":      {revisionObject(nil, "web-front-6f", `{}`), false},
	} {
		if got := adopted(t, web(), web(), test.object); got != test.want {
			t.Errorf("%s: adopted: %t", name, got)
		}
	}
}

// TestAdoptedAndGone: an adopted object counts until it is found gone, although the cache
// still shows it without an owner, as one to adopt.
func TestAdoptedAndGone(t *testing.T) {
	t.Run("Pod", func(t *testing.T) {
		adoptedAndGone(t, func(r *Reconciler) *overlay[*corev1.Pod] { return r.pods }, podOf(nil, "web-a"))
	})
	t.Run("claim", func(t *testing.T) {
		adoptedAndGone(t, func(r *Reconciler) *overlay[*corev1.PersistentVolumeClaim] { return r.claims }, claimOf(nil, "data-web-x", "x"))
	})
}

func adoptedAndGone[T client.Object](t *testing.T, overlayOf func(*Reconciler) *overlay[T], orphan T) {
	for _, gone := range []bool{false, true} {
		objects := []client.Object{web(), orphan}
		if gone {
			objects = objects[:1]
		}
		c := server(t, objects...)
		r, _ := reconcilerOn(c)
		o, cached := overlayOf(r), orphan
		if !gone {
			cached = read(t, c, orphan)
		}
		o.noteCreated(web(), orphan, now) // adopted before
		if err := adopt(t.Context(), r, o, web(), cached); err != nil {
			t.Fatal(err)
		}
		if seen, _ := o.merge(web().UID, nil, now); len(seen) == 1 == gone {
			t.Errorf("gone %v: the pass sees %d objects", gone, len(seen))
		}
	}
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
		"its owner":         {changes: []change{func(p *corev1.Pod) { p.OwnerReferences = podOf(anotherSet(), "").OwnerReferences }}},
		"time after time":   {changes: []change{message, message}, fail: true},
		"it is deleted now": {changes: []change{nil}},
	} {
		t.Run(name, func(t *testing.T) {
			set, pod := web(), podOf(nil, "web-x")
			live := server(t, set, pod)
			var calls []func() error
			for _, change := range test.changes {
				calls = append(calls, func() error {
					if change == nil {
						return live.Delete(t.Context(), pod)
					}
					now := read(t, live, pod)
					change(now)
					return errors.Join(live.Update(t.Context(), now), live.Status().Update(t.Context(), now))
				})
			}
			r, _ := reconcilerOn(beforePatch(live, calls...))
			err := r.adoptPod(t.Context(), read(t, live, set), labels.SelectorFromSet(labels.Set{"app": "web"}), read(t, live, pod))
			if (err != nil) != test.fail {
				t.Fatal(err)
			}
			if got := exists(t, live, pod) && metav1.IsControlledBy(read(t, live, pod), set); got != test.adopted {
				t.Errorf("adopted: %t, want %t", got, test.adopted)
			}
		})
	}
}

// TestReleasePatch: the set is removed from the Pod's owners, nothing else changes, and a
// Pod that has changed is left alone.
func TestReleasePatch(t *testing.T) {
	owner := func(uid types.UID) metav1.OwnerReference {
		return metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Owner", Name: string(uid), UID: uid}
	}
	for name, others := range map[string][]metav1.OwnerReference{"the only owner": nil, "one of two": {owner("other")}} {
		t.Run(name, func(t *testing.T) {
			pod := podOf(nil, "web-a", func(p *corev1.Pod) { p.Finalizers = []string{"example.com/f"} })
			pod.OwnerReferences = append(others[:len(others):len(others)], owner("set"))
			data, err := releasePatch(pod, "set")
			if err != nil {
				t.Fatal(err)
			}
			got, err := patched(t, pod, data)
			if err != nil {
				t.Fatal(err)
			}
			want := pod.DeepCopy()
			want.OwnerReferences = others
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("Pod (-want +got):\n%s", diff)
			}
			stops(t, pod, data, map[string]func(*corev1.Pod){
				"another Pod of that name": func(p *corev1.Pod) { p.UID = "later" },
				"another label":            func(p *corev1.Pod) { p.Labels["app"] = "db" },
				"another owner":            func(p *corev1.Pod) { p.OwnerReferences[0].UID = "third" },
				"a deletion":               func(p *corev1.Pod) { p.DeletionTimestamp = deletedNow() },
			})
		})
	}
}
