// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/cloneset/plan"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// deletedNow returns a deletion timestamp.
func deletedNow() *metav1.Time { return &metav1.Time{Time: now} }

// web returns a set with these claim templates.
func web(claimTemplates ...string) *apps.CloneSet {
	set := &apps.CloneSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "set"}}
	set.Spec.Selector.MatchLabels = map[string]apps.LabelValue{"app": "web"}
	set.Spec.Template = templateOf("app:1")
	for _, text := range claimTemplates {
		var template apps.ClaimTemplate
		if err := json.Unmarshal([]byte(text), &template); err != nil {
			panic(err) // the tests' own text
		}
		set.Spec.VolumeClaimTemplates = append(set.Spec.VolumeClaimTemplates, template)
	}
	return set
}

// anotherSet returns a set with the same name and another UID.
func anotherSet() *apps.CloneSet {
	set := web()
	set.UID = "another"
	return set
}

func templateOf(image string) apps.PodTemplate {
	return apps.NewPodTemplate(corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: image}}},
	})
}

// meta returns the metadata of an object that a set controls; nil for no set.
func meta(name string, owner *apps.CloneSet) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": "web"}}
	if owner != nil {
		m.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, apps.KindCloneSet)}
	}
	return m
}

func podOf(owner *apps.CloneSet, name string, edits ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: meta(name, owner)}
	if owner == nil { // it was a set's
		pod.Labels = map[string]string{"app": "web", apps.LabelRevision: "web-6f", apps.LabelInstanceID: "x"}
	}
	for _, edit := range edits {
		edit(pod)
	}
	return pod
}

// at gives a Pod a resource version.
func at(version string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.ResourceVersion = version }
}

// inUpdate gives a Pod the condition InPlaceUpdateReady.
func inUpdate(status corev1.ConditionStatus, since time.Time) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Status.Conditions = []corev1.PodCondition{{
			Type: apps.ConditionInPlaceUpdateReady, Status: status, LastTransitionTime: metav1.NewTime(since),
		}}
	}
}

func claimOf(owner *apps.CloneSet, name, id string) *corev1.PersistentVolumeClaim {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: meta(name, owner)}
	claim.Labels[apps.LabelInstanceID] = id
	return claim
}

func revisionObject(owner *apps.CloneSet, name string, data string) *appsv1.ControllerRevision {
	return &appsv1.ControllerRevision{ObjectMeta: meta(name, owner), Data: runtime.RawExtension{Raw: []byte(data)}}
}

// secret is a value that no event and no patch may contain.
const secret = "value-of-an-env-variable"

func podWithSecret(name string) *corev1.Pod {
	return podOf(nil, name, func(pod *corev1.Pod) {
		pod.Spec.Containers = []corev1.Container{{Name: "main", Env: []corev1.EnvVar{{Name: "A", Value: secret}}}}
	})
}

// server returns an API server, or a cache, that has these objects.
func server(t testing.TB, objects ...client.Object) client.WithWatch {
	t.Helper()
	known := runtime.NewScheme()
	checktest.NoError(t, scheme.AddToScheme(known))
	checktest.NoError(t, apps.AddToScheme(known))
	builder := fake.NewClientBuilder().WithScheme(known).WithStatusSubresource(&apps.CloneSet{}, &corev1.Pod{}).WithObjects(objects...)
	for _, owned := range []client.Object{&corev1.Pod{}, &appsv1.ControllerRevision{}, &corev1.PersistentVolumeClaim{}} {
		builder.WithIndex(owned, indexOwner, ownerOf)
	}
	builder.WithIndex(&corev1.Node{}, indexGoing, Options{LeaveNodes: plan.LeaveCordoned}.goingKeys)
	return builder.Build()
}

// reconcilerOn returns a Reconciler that reads from and writes to an API server, without
// a cache.
func reconcilerOn(c client.Client) (*Reconciler, *recorder) {
	events := &recorder{}
	r := New(c, c, nil, Options{Clock: testclock.NewFakePassiveClock(now)})
	r.Events = events
	return r, events
}

// beforePatch calls the given functions, one before each of the first patches.
func beforePatch(c client.WithWatch, calls ...func() error) client.Client {
	return interceptor.NewClient(c, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			if len(calls) > 0 {
				next := calls[0]
				calls = calls[1:]
				if err := next(); err != nil {
					return err
				}
			}
			return c.Patch(ctx, object, patch, options...)
		},
	})
}

// recorder keeps the events, as "Normal SuccessfulCreate", and their notes.
type recorder struct{ reasons, notes []string }

func (r *recorder) Eventf(_, _ runtime.Object, kind, reason, _, note string, args ...any) {
	r.reasons, r.notes = append(r.reasons, kind+" "+reason), append(r.notes, fmt.Sprintf(note, args...))
}

// read returns an object as the API server has it.
func read[T client.Object](t testing.TB, c client.Reader, object T) T {
	t.Helper()
	out := named(object)
	checktest.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(object), out))
	return out
}

// exists reports whether the API server has an object.
func exists(t testing.TB, c client.Reader, object client.Object) bool {
	t.Helper()
	err := c.Get(t.Context(), client.ObjectKeyFromObject(object), object.DeepCopyObject().(client.Object))
	if client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	return err == nil
}

// patched applies a JSON patch to a Pod.
func patched(t *testing.T, pod *corev1.Pod, patch []byte) (*corev1.Pod, error) {
	t.Helper()
	operations := checktest.Must(jsonpatch.DecodePatch(patch))(t)
	before := checktest.Must(json.Marshal(pod))(t)
	data, err := operations.Apply(before)
	if err != nil {
		return nil, err
	}
	after := &corev1.Pod{}
	return after, json.Unmarshal(data, after)
}

// stops checks that a patch for a Pod does not apply after any of the given changes.
func stops(t *testing.T, pod *corev1.Pod, patch []byte, changes map[string]func(*corev1.Pod)) {
	t.Helper()
	for name, change := range changes {
		live := pod.DeepCopy()
		change(live)
		if _, err := patched(t, live, patch); err == nil {
			t.Errorf("%s does not stop the patch", name)
		}
	}
}
