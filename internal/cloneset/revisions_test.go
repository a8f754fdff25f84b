// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/cloneset/write"
)

// revisionServer is an API server that has one CloneSet and its revisions.
type revisionServer struct {
	client.Client
	set *apps.CloneSet
	// alter is a webhook on revisions; nil if there is none.
	alter func(*appsv1.ControllerRevision)
	// made counts the revisions that were created, gets the requests for one.
	made, gets int
}

func newRevisionServer(t testing.TB, set *apps.CloneSet) (*revisionServer, *Reconciler, *recorder) {
	s := &revisionServer{set: set}
	s.Client = interceptor.NewClient(server(t), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
			if made, ok := object.(*appsv1.ControllerRevision); ok && s.alter != nil {
				s.alter(made)
			}
			err := c.Create(ctx, object, options...)
			if err == nil {
				s.made++
			}
			return err
		},
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, out client.Object, options ...client.GetOption) error {
			if live, ok := out.(*apps.CloneSet); ok {
				set.DeepCopyInto(live)
				return nil
			}
			s.gets++
			return c.Get(ctx, key, out, options...)
		},
		SubResourcePatch: func(_ context.Context, _ client.Client, _ string, _ client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
			data, err := patch.Data(nil)
			return errors.Join(err, json.Unmarshal(data, set))
		},
	})
	r, events := reconcilerOn(s)
	return s, r, events
}

// retemplate gives the set another template; false if admission would refuse it.
func retemplate(set *apps.CloneSet, raw []byte) bool {
	set.Generation++
	return set.Spec.Template.UnmarshalJSON(raw) == nil
}

// FuzzOneRevision: a generation gets at most one revision, which every later pass finds, or the status
// says why there is none. That holds for every template, also one into which a client has merged an old
// revision to undo a rollout.
func FuzzOneRevision(f *testing.F) {
	plain := `{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"main","image":"app:1"}]}}`
	for _, other := range []string{
		plain, `{"$patch":"replace","spec":{"containers":[{"name":"main"}]}}`, `{"spec":{"containers":[],"x":1.0,"y":-0,"z":1e20,"w":1152921504606846976.0}}`,
		`{"metadata":null,"spec":{"containers":[{"name":"main","image":"<&>\u2028"}]}}`, `{}`, `null`, `{"$patch":"replace"}`, `{"spec":{"a":[[[null]],{}],"b":{"$patch":"delete"}}}`,
	} {
		f.Add([]byte(plain), []byte(other))
		f.Add([]byte(other), []byte(plain))
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		set := web()
		server, r, _ := newRevisionServer(t, set)
		for _, raw := range [][]byte{first, second} {
			if !retemplate(set, raw) {
				return
			}
			oneRevision(t, server, r)
		}
		var objects appsv1.ControllerRevisionList
		checktest.NoError(t, server.List(t.Context(), &objects))
		for _, object := range objects.Items[:min(len(objects.Items), 1)] {
			template := fmt.Appendf(nil, `{"spec":{"template":%s}}`, set.Spec.Template.Raw())
			merged, err := jsonpatch.MergePatch(template, object.Data.Raw)
			if err != nil {
				return // not JSON
			}
			var undone struct {
				Spec struct{ Template apps.PodTemplate }
			}
			if err := json.Unmarshal(merged, &undone); err != nil {
				return
			}
			if !retemplate(set, undone.Spec.Template.Raw()) {
				return
			}
			oneRevision(t, server, r)
		}
	})
}

// oneRevision makes two passes. It checks that the first one creates at most one revision, and that the
// second one finds it.
func oneRevision(t *testing.T, server *revisionServer, r *Reconciler) {
	t.Helper()
	before := server.made
	var name string
	for pass := range 2 {
		known, err := r.syncRevisions(t.Context(), server.set, nil)
		var invalid *invalidError
		switch {
		case errors.As(err, &invalid):
			if server.made != before {
				t.Fatalf("a revision was made of %s, and then: %v", server.set.Spec.Template.Raw(), err)
			}
			return
		case err != nil: // no template: not decoded
			checktest.Says(t, "the error", err, "spec.template: ")
			return
		}
		if server.made > before+1 || (pass == 1 && known.update.Name != name) {
			t.Fatalf("%d revisions of %s: %s, then %s", server.made-before, server.set.Spec.Template.Raw(), name, known.update.Name)
		}
		name, server.set.Status.CollisionCount = known.update.Name, &known.collisions
	}
}

// TestRevisionNameTaken: if another template rightly has the name, that is a collision, and the
// revision gets another name; a revision with this very template is used. A revision whose template
// does not hash to its name is an error, not a collision.
func TestRevisionNameTaken(t *testing.T) {
	// The two hash to the same name.
	template, twin := podTemplate("app:b3c9ad2acdbe5245"), podTemplate("app:f43cbe7b186dce86")
	hash := revision.Hash(template, 0)
	holding := func(template map[string]any, owner *apps.CloneSet) *appsv1.ControllerRevision {
		data := checktest.Must(revision.Data(template))(t)
		return revisionObject(owner, "web-"+hash, string(data))
	}
	for name, test := range map[string]struct {
		there      []client.Object
		collisions int32
		altered    bool
	}{
		"free":                     {nil, 0, false},
		"ours, with this template": {[]client.Object{holding(template, web())}, 0, false},
		"ours, with another template of that name": {[]client.Object{holding(twin, web())}, 1, false},
		"ours, with a template of another name":    {[]client.Object{holding(podTemplate("app:1"), web())}, 0, true},
		"of another set, with this template":       {[]client.Object{holding(template, anotherSet())}, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := reconcilerOn(server(t, test.there...))
			known := &revisions{byHash: map[string]*revision.Revision{}}
			err := r.createRevision(t.Context(), web(), known, template, 1)
			if errors.Is(err, errAltered) != test.altered {
				t.Fatalf("error %v", err)
			}
			if test.altered {
				return
			}
			checktest.NoError(t, err)
			checktest.Same(t, "the revision", "web-"+revision.Hash(template, test.collisions), known.update.Name)
			checktest.Same(t, "collisions", test.collisions, known.collisions)
		})
	}
}

func podTemplate(image string) map[string]any {
	return map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": "main", "image": image}}}}
}

// TestAlteredRevision: if a webhook changes revisions, one is created and no more;
// conditions and one event report it, and it is retried with back-off.
func TestAlteredRevision(t *testing.T) {
	set := web()
	server, r, events := newRevisionServer(t, set)
	server.alter = func(object *appsv1.ControllerRevision) {
		object.Data.Raw = []byte(`{"spec":{"template":{"spec":{"x":1}}}}`)
	}
	for range 5 {
		if _, err := r.pass(t.Context(), set.DeepCopy()); !errors.Is(err, errAltered) {
			t.Fatalf("error %v, so that it is not tried again", err)
		}
	}
	c := set.Status.Condition(apps.ConditionFailedUpdate)
	if c == nil || c.Status != corev1.ConditionTrue || c.Reason != ReasonRevisionUnusable {
		t.Errorf("FailedUpdate = %+v", c)
	}
	if server.made != 1 || len(events.reasons) != 1 || set.Status.CollisionCount != nil {
		t.Errorf("%d revisions, %d events, %v collisions", server.made, len(events.reasons), set.Status.CollisionCount)
	}
}

// TestRevisionAnnotations: a revision carries the set's annotations, so that the rollout
// history shows the causes.
func TestRevisionAnnotations(t *testing.T) {
	set := web()
	set.Annotations = map[string]string{"kubernetes.io/change-cause": "first", corev1.LastAppliedConfigAnnotation: "{}"}
	server, r, _ := newRevisionServer(t, set)
	known := checktest.Must(r.syncRevisions(t.Context(), set, nil))(t)
	checktest.Same(t, "annotations", map[string]string{"kubernetes.io/change-cause": "first"}, read(t, server, known.objects[0]).Annotations)
	checktest.Same(t, "the number of the set's own annotations", 2, len(set.Annotations))
}

// TestLostRevisionIsAskedForOnce: a missing revision costs one request per pass, however
// many Pods have it.
func TestLostRevisionIsAskedForOnce(t *testing.T) {
	set := web()
	server, r, _ := newRevisionServer(t, set)
	known := checktest.Must(r.syncRevisions(t.Context(), set, nil))(t)
	server.gets = 0
	for range 100 {
		checktest.NoError(t, r.findRevision(t.Context(), set, known, "web-gone"))
	}
	checktest.Same(t, "how often it asked", 1, server.gets)
}

// TestRevisionsAreReadOnce: revisions are read once after each change of the set or of a revision.
func TestRevisionsAreReadOnce(t *testing.T) {
	set := web()
	server, r, _ := newRevisionServer(t, set)
	known := checktest.Must(r.syncRevisions(t.Context(), set, nil))(t)
	for what, change := range []func(*appsv1.ControllerRevision) error{
		func(*appsv1.ControllerRevision) error { set.Generation++; return nil },
		func(*appsv1.ControllerRevision) error { set.Status.CollisionCount = new(int32(1)); return nil },
		func(now *appsv1.ControllerRevision) error {
			now.Labels["x"] = "y"
			return server.Update(t.Context(), now)
		},
		func(now *appsv1.ControllerRevision) error { return server.Delete(t.Context(), now) },
	} {
		checktest.NoError(t, change(read(t, server, known.objects[0])))
		var last [3]*revision.Revision
		for i := range last {
			last[i], known = known.update, checktest.Must(r.syncRevisions(t.Context(), set, nil))(t)
		}
		if last[0] == last[2] || last[2] != known.update {
			t.Errorf("change %d: %v, then %p", what, last, known.update)
		}
	}
}

// TestRollbackOfAnOldCache: a revision becomes the newest again only for the template
// that the API server has, and the API server's version counts from then on.
func TestRollbackOfAnOldCache(t *testing.T) {
	// The cache has generation 3: it is up to date, or behind.
	for generation, want := range map[int64]int64{3: 8, 4: 5} {
		t.Run(fmt.Sprint("generation ", generation), func(t *testing.T) {
			set := web()
			set.Generation = generation
			object := revisionObject(set, "web-6f", `{}`)
			object.Revision = 5
			c := server(t, set, object)
			r, _ := reconcilerOn(c)
			cached := read(t, c, set)
			cached.Generation, cached.ResourceVersion = 3, "1"
			err := r.renumber(t.Context(), cached, object, 8)
			if apierrors.IsConflict(err) != (generation != 3) || (err != nil && !apierrors.IsConflict(err)) {
				t.Errorf("error %v", err)
			}
			checktest.Same(t, "revision", want, read(t, c, object).Revision)
			checktest.Same(t, "the generation that the next pass takes", generation, r.shared(keyOf(cached)).newest(cached).Generation)
		})
	}
}

// adopted reports whether a pass, which sees the one set while the API server has the
// other, makes the set the owner of the object.
func adopted(t *testing.T, seen, live *apps.CloneSet, object client.Object) bool {
	t.Helper()
	c := server(t, live, object)
	r, _ := reconcilerOn(c)
	selector := checktest.Must(selectorOf(seen))(t)
	checktest.NoError(t, errors.Join(r.adoptOrphans(t.Context(), seen), r.adoptRevisions(t.Context(), seen, selector)))
	return metav1.IsControlledBy(read(t, c, object), seen)
}

// TestAdoptingSets: a set adopts only if the API server has this very set, and it is not
// terminating; TestDeletedSet is about one that is terminating in the cache too.
func TestAdoptingSets(t *testing.T) {
	going := func(set *apps.CloneSet) { set.DeletionTimestamp, set.Finalizers = deletedNow(), []string{"orphan"} }
	for name, test := range map[string]struct {
		live func(*apps.CloneSet)
		want bool
	}{
		"it stays":                               {want: true},
		"it is deleted, and the cache is behind": {live: going},
		"another set of that name by now":        {live: func(set *apps.CloneSet) { set.UID = "later" }},
	} {
		for _, object := range []client.Object{podOf(nil, "web-a"), revisionObject(nil, "web-6f", `{}`)} {
			seen, live := web(), web()
			if test.live != nil {
				test.live(live)
			}
			checktest.Same(t, name+": adopts "+object.GetName(), test.want, adopted(t, seen, live, object))
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
	made := func(pod *corev1.Pod) { pod.Labels = map[string]string{"app": "web"} }
	terminating := podOf(nil, "web-a")
	terminating.DeletionTimestamp, terminating.Finalizers = deletedNow(), []string{"f"}
	for name, test := range map[string]struct {
		object client.Object
		want   bool
	}{
		"a terminating Pod":                  {terminating, false},
		"a Pod that somebody made":           {podOf(nil, "web-a", made), false},
		"a Pod that was a set's":             {podOf(nil, "web-a"), true},
		"a Pod with other labels":            {db(podOf(nil, "web-a")), false},
		"another owner's Pod":                {podOf(anotherSet(), "web-a"), false},
		"its own revision":                   {revisionObject(web(), "web-6f", `{}`), true},
		"another owner's revision":           {revisionObject(anotherSet(), "web-6f", `{}`), false},
		"a revision with other labels":       {db(revisionObject(nil, "web-6f", `{}`)), false},
		"a revision with another set's name": {revisionObject(nil, "db-6f", `{}`), false},
		"a revision with a longer name":      {revisionObject(nil, "web-front-6f", `{}`), false},
	} {
		checktest.Same(t, name+": adopted", test.want, adopted(t, web(), web(), test.object))
	}
}

// TestOwnersOfAnotherVersion: a set writes its API version into references to it that have another one, once. Those of
// other owners stay.
func TestOwnersOfAnotherVersion(t *testing.T) {
	set := web("{\"metadata\":{\"name\":\"data\"}}")
	other := metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Backup", Name: "web", UID: "backup"}
	objects := []client.Object{podOf(set, "web-x"), revisionObject(set, "web-6f", `{}`), claimOf(set, "data-web-x", "x")}
	for _, object := range objects {
		owner := object.GetOwnerReferences()[0]
		owner.APIVersion = "apps.kruise.io/v1beta1"
		object.SetOwnerReferences([]metav1.OwnerReference{other, owner})
	}
	c := server(t, append(objects, set)...)
	r, _ := reconcilerOn(c)
	versions := func() (all []string) {
		checktest.Must(r.claimOwnership(t.Context(), set, now))(t)
		for _, object := range objects {
			live := read(t, c, object)
			owners := live.GetOwnerReferences()
			checktest.Same(t, "another owner of "+live.GetName(), other, owners[0])
			checktest.Same(t, "the version in "+live.GetName(), apps.GroupVersion.String(), owners[1].APIVersion)
			all = append(all, live.GetResourceVersion())
		}
		return all
	}
	checktest.Same(t, "what a second pass writes", versions(), versions())
}

// TestAdoptedAndGone: an adopted object counts until it is found to be gone, although the cache still
// shows it without an owner.
func TestAdoptedAndGone(t *testing.T) {
	t.Run("Pod", func(t *testing.T) {
		adoptedAndGone(t, func(r *Reconciler) overlay[*corev1.Pod] { return r.pods }, podOf(nil, "web-a"))
	})
	t.Run("claim", func(t *testing.T) {
		adoptedAndGone(t, func(r *Reconciler) overlay[*corev1.PersistentVolumeClaim] { return r.claims }, claimOf(nil, "data-web-x", "x"))
	})
}

func adoptedAndGone[T client.Object](t *testing.T, overlayOf func(*Reconciler) overlay[T], orphan T) {
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
		checktest.Must(adopt(t.Context(), r, o, web(), cached))(t)
		if seen, _ := o.Merge(web().UID, nil, now); len(seen) == 1 == gone {
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
			err := r.adoptPod(t.Context(), read(t, live, set), read(t, live, pod))
			if (err != nil) != test.fail {
				t.Fatal(err)
			}
			checktest.Same(t, "adopted", test.adopted, exists(t, live, pod) && metav1.IsControlledBy(read(t, live, pod), set))
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
			data := write.Release(pod, "set")
			got := checktest.Must(patched(t, pod, data))(t)
			want := pod.DeepCopy()
			want.OwnerReferences = others
			checktest.Same(t, "Pod", want, got)
			stops(t, pod, data, map[string]func(*corev1.Pod){
				"another Pod of that name": func(p *corev1.Pod) { p.UID = "later" },
				"another label":            func(p *corev1.Pod) { p.Labels["app"] = "db" },
				"another owner":            func(p *corev1.Pod) { p.OwnerReferences[0].UID = "third" },
				"a deletion":               func(p *corev1.Pod) { p.DeletionTimestamp = deletedNow() },
			})
		})
	}
}
