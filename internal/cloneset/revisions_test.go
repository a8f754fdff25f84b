// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/revision"
)

// revisionServer is an API server that has one CloneSet and its revisions.
type revisionServer struct {
	client.Client
	set     *apps.CloneSet
	objects map[string]*appsv1.ControllerRevision
	// alter is a webhook on revisions; nil if there is none.
	alter func(*appsv1.ControllerRevision)
	// made counts the revisions that were created, gets the requests for one.
	made, gets int
}

func newRevisionServer(set *apps.CloneSet) (*revisionServer, *Reconciler) {
	s := &revisionServer{set: set, objects: map[string]*appsv1.ControllerRevision{}}
	return s, New(s, s, events.NewFakeRecorder(100), Options{Clock: testclock.NewFakePassiveClock(now)})
}

func (s *revisionServer) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	revisions, ok := list.(*appsv1.ControllerRevisionList)
	if !ok {
		return nil
	}
	asked := client.ListOptions{}
	asked.ApplyOptions(options)
	for _, object := range s.objects {
		if asked.FieldSelector.String() == indexOwner+"="+ownerOf(object)[0] {
			revisions.Items = append(revisions.Items, *object)
		}
	}
	return nil
}

func (s *revisionServer) Get(_ context.Context, key client.ObjectKey, out client.Object, _ ...client.GetOption) error {
	if set, ok := out.(*apps.CloneSet); ok {
		s.set.DeepCopyInto(set)
		return nil
	}
	s.gets++
	object, there := s.objects[key.Name]
	if found, ok := out.(*appsv1.ControllerRevision); ok && there {
		object.DeepCopyInto(found)
		return nil
	}
	return apierrors.NewNotFound(appsv1.Resource("controllerrevisions"), key.Name)
}

func (s *revisionServer) Create(_ context.Context, object client.Object, _ ...client.CreateOption) error {
	made, ok := object.(*appsv1.ControllerRevision)
	if !ok {
		return nil
	}
	if s.objects[made.Name] != nil {
		return apierrors.NewAlreadyExists(appsv1.Resource("controllerrevisions"), made.Name)
	}
	s.made++
	if s.alter != nil {
		s.alter(made)
	}
	s.objects[made.Name] = made.DeepCopy()
	return nil
}

// Patch renumbers a revision, or writes the status of the set.
func (s *revisionServer) Patch(_ context.Context, object client.Object, _ client.Patch, _ ...client.PatchOption) error {
	if found := s.objects[object.GetName()]; found != nil {
		found.Revision += int64(len(s.objects))
	}
	return nil
}

func (s *revisionServer) SubResource(string) client.SubResourceClient { return statusOf{set: s.set} }

// statusOf is the set's subresource status.
type statusOf struct {
	client.SubResourceClient
	set *apps.CloneSet
}

func (s statusOf) Patch(_ context.Context, _ client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
	data, err := patch.Data(nil)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, s.set)
}

// retemplate gives the set another template; false if admission would refuse it.
func retemplate(set *apps.CloneSet, raw []byte) bool {
	set.Generation++
	return set.Spec.Template.UnmarshalJSON(raw) == nil
}

// FuzzOneRevision: whatever the template, and whatever a client merges from an old
// revision into it to undo a rollout, a generation gets at most one revision and every
// later pass finds it; or the user learns why there is none.
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
		server, r := newRevisionServer(set)
		for _, raw := range [][]byte{first, second} {
			if !retemplate(set, raw) {
				return
			}
			oneRevision(t, server, r)
		}
		for _, object := range server.objects {
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
			break
		}
	})
}

// oneRevision makes two passes and checks that the first created at most one revision,
// and that the second found it.
func oneRevision(t *testing.T, server *revisionServer, r *Reconciler) {
	t.Helper()
	before := server.made
	var name string
	for pass := range 2 {
		known, err := r.syncRevisions(t.Context(), server.set)
		var invalid *invalidError
		switch {
		case errors.As(err, &invalid):
			if server.made != before {
				t.Fatalf("a revision was made of %s, and then: %v", server.set.Spec.Template.Raw(), err)
			}
			return
		case err != nil:
			return // no template: not decoded
		}
		if server.made > before+1 || (pass == 1 && known.update.Name != name) {
			t.Fatalf("%d revisions of %s: %s, then %s", server.made-before, server.set.Spec.Template.Raw(), name, known.update.Name)
		}
		name, server.set.Status.CollisionCount = known.update.Name, &known.collisions
	}
}

// TestRevisionNameTaken: a name that another template rightly has counts as a collision
// and is answered with another name; a revision that holds this very template is used.
// One that holds what no template of its name can be is an error, not a collision.
func TestRevisionNameTaken(t *testing.T) {
	// The two hash to the same name.
	template, twin := podTemplate("app:b3c9ad2acdbe5245"), podTemplate("app:f43cbe7b186dce86")
	hash, err := revision.Hash(template, 0)
	if err != nil {
		t.Fatal(err)
	}
	named := func(template map[string]any, owner *apps.CloneSet) *appsv1.ControllerRevision {
		data, err := revision.Data(template)
		if err != nil {
			t.Fatal(err)
		}
		return &appsv1.ControllerRevision{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: "web-" + hash, OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, apps.KindCloneSet)},
			},
			Data: runtime.RawExtension{Raw: data},
		}
	}
	stranger := web()
	stranger.UID = "another"
	tests := []struct {
		name       string
		there      []client.Object
		collisions int32
		altered    bool
	}{
		{"free", nil, 0, false},
		{"ours, with this template", []client.Object{named(template, web())}, 0, false},
		{"ours, with another template of that name", []client.Object{named(twin, web())}, 1, false},
		{"ours, with a template of another name", []client.Object{named(podTemplate("app:1"), web())}, 0, true},
		{"of another set, with this template", []client.Object{named(template, stranger)}, 1, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			known := &revisions{byHash: map[string]*revision.Revision{}}
			err := reconcilerOf(test.there...).createRevision(t.Context(), web(), known, template, 1)
			if errors.Is(err, errAltered) != test.altered {
				t.Fatalf("error %v", err)
			}
			if test.altered {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want, err := revision.Hash(template, test.collisions)
			if err != nil || known.update.Name != "web-"+want || known.collisions != test.collisions {
				t.Errorf("revision %s with %d collisions: %v", known.update.Name, known.collisions, err)
			}
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
	set.Spec.Template = templateOf("app:1")
	set.Spec.Selector.MatchLabels = map[string]apps.LabelValue{"app": "web"}
	server, r := newRevisionServer(set)
	recorder := &countingRecorder{}
	r.Events = recorder
	server.alter = func(object *appsv1.ControllerRevision) {
		object.Data.Raw = []byte(`{"spec":{"template":{"spec":{"x":1}}}}`)
	}
	for range 5 {
		if _, err := r.pass(t.Context(), set.DeepCopy()); !errors.Is(err, errAltered) {
			t.Fatalf("error %v, so that it is not tried again", err)
		}
	}
	c := conditionOfType(&set.Status, apps.ConditionFailedUpdate)
	if c == nil || c.Status != corev1.ConditionTrue || c.Reason != ReasonRevisionUnusable {
		t.Errorf("FailedUpdate = %+v", c)
	}
	if server.made != 1 || recorder.events != 1 || set.Status.CollisionCount != nil {
		t.Errorf("%d revisions, %d events, %v collisions", server.made, recorder.events, set.Status.CollisionCount)
	}
}

// TestRevisionAnnotations: a revision carries the set's annotations, so that the rollout
// history shows the causes.
func TestRevisionAnnotations(t *testing.T) {
	set := web()
	set.Spec.Template = templateOf("app:1")
	set.Annotations = map[string]string{"kubernetes.io/change-cause": "first", corev1.LastAppliedConfigAnnotation: "{}"}
	server, r := newRevisionServer(set)
	known, err := r.syncRevisions(t.Context(), set)
	if err != nil {
		t.Fatal(err)
	}
	if got := server.objects[known.update.Name].Annotations; !maps.Equal(got, map[string]string{"kubernetes.io/change-cause": "first"}) {
		t.Errorf("annotations %v", got)
	}
	if len(set.Annotations) != 2 {
		t.Errorf("the set's own annotations changed: %v", set.Annotations)
	}
}

// TestLostRevisionIsAskedForOnce: a missing revision costs one request per pass, however
// many Pods have it.
func TestLostRevisionIsAskedForOnce(t *testing.T) {
	set := web()
	set.Spec.Template = templateOf("app:1")
	server, r := newRevisionServer(set)
	known, err := r.syncRevisions(t.Context(), set)
	if err != nil {
		t.Fatal(err)
	}
	server.gets = 0
	for range 100 {
		if err := r.findRevision(t.Context(), set, known, "web-gone"); err != nil {
			t.Fatal(err)
		}
	}
	if server.gets != 1 {
		t.Errorf("asked %d times", server.gets)
	}
}
