// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/registration/finishing"
	"github.com/usher-dev/usher/internal/registration/plan"
)

// claiming is a Pod that has drained and names an owner, as whoever creates Pods can write it.
func claiming(name string, ref *metav1.OwnerReference) *corev1.Pod {
	at := metav1.NewMicroTime(epoch.Add(-time.Minute))
	request := usherv1alpha1.DeletionRequest{Since: at, At: at, By: "somebody", Controller: true}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: types.UID(name), OwnerReferences: []metav1.OwnerReference{*ref},
			Labels:      map[string]string{appsv1.DefaultDaemonSetUniqueLabelKey: "old"},
			Annotations: map[string]string{usherv1alpha1.AnnotationDeletionRequest: string(encode.JSON(request))},
		},
		Spec: corev1.PodSpec{NodeName: "n"},
	}
}

func ownerRef(kind, name, uid string) *metav1.OwnerReference {
	return &metav1.OwnerReference{APIVersion: "apps/v1", Kind: kind, Name: name, UID: types.UID(uid), Controller: new(true)}
}

func replicaSet(replicas int32) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "set", UID: "set"}, Spec: appsv1.ReplicaSetSpec{Replicas: &replicas}}
}

// finishes is an operator that deletes what has drained.
func finishes(t *testing.T, first *corev1.Pod, more ...client.Object) *attacked {
	t.Helper()
	a := attack(t, first)
	a.options.Finish, a.owners = true, a.client
	live := a.reader.(client.Client)
	checktest.NoError(t, appsv1.AddToScheme(live.Scheme()))
	checktest.NoError(t, batchv1.AddToScheme(live.Scheme()))
	for _, object := range more {
		checktest.NoError(t, live.Create(t.Context(), object))
	}
	return a
}

// there reports whether there is a Pod, and whether it carries a request.
func (a *attacked) there(name string) (there, asked bool) {
	pod := &corev1.Pod{}
	err := a.client.Get(a.Context(), types.NamespacedName{Namespace: namespace, Name: name}, pod)
	_, asked = pod.Annotations[usherv1alpha1.AnnotationDeletionRequest]
	return err == nil, asked
}

// TestOwnersThatPodsClaim: what one Pod says of its owner decides about no other Pod.
func TestOwnersThatPodsClaim(t *testing.T) {
	for name, claim := range map[string]*metav1.OwnerReference{
		"nobody":                         nil,
		"a ReplicaSet that is not it":    ownerRef("ReplicaSet", "nowhere", "set"),
		"an unknown kind":                ownerRef("Unknown", "set", "set"),
		"a name that no object can have": ownerRef("ReplicaSet", "a/b", "other"),
	} {
		for _, replicas := range []int32{0, 5} {
			t.Run(fmt.Sprintf("%s, %d Pods are wanted", name, replicas), func(t *testing.T) {
				more := []client.Object{replicaSet(replicas)}
				if claim != nil {
					more = append(more, claiming("aaa", claim))
				}
				a := finishes(t, claiming("drained", ownerRef("ReplicaSet", "set", "set")), more...)
				for range 2 {
					_, _, err := a.pass()
					checktest.NoError(t, err)
				}
				there, asked := a.there("drained")
				checktest.Same(t, "it is there", replicas == 5, there)
				checktest.Same(t, "it is asked to go", false, asked)
			})
		}
	}
}

// TestOldCachesTakeNothingBack: an owner that seems to want its Pod again, and does not, gets no Pod back that
// its controller may never ask for again.
func TestOldCachesTakeNothingBack(t *testing.T) {
	a := finishes(t, claiming("drained", ownerRef("ReplicaSet", "set", "set")), replicaSet(0))
	a.owners = fake.NewClientBuilder().WithScheme(a.client.Scheme()).WithObjects(replicaSet(5)).Build()
	_, _, err := a.pass()
	checktest.NoError(t, err)
	there, _ := a.there("drained")
	checktest.Same(t, "it is there", false, there)
}

// TestOldCachesShowSiblings: a ReplicaSet that wants one Pod of two, of which its controller has just deleted one, keeps
// the other, although a cache shows both.
func TestOldCachesShowSiblings(t *testing.T) {
	ref := ownerRef("ReplicaSet", "set", "set")
	for _, gone := range []bool{true, false} {
		a := finishes(t, claiming("drained", ref), replicaSet(1), claiming("sibling", ref))
		a.reader = interceptor.NewClient(a.reader.(client.WithWatch), interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
				if gone && key.Name == "sibling" {
					return apierrors.NewNotFound(corev1.Resource("pods"), key.Name)
				}
				return c.Get(ctx, key, o, options...)
			},
		})
		_, _, err := a.pass()
		checktest.NoError(t, err)
		there, _ := a.there("drained")
		checktest.Same(t, fmt.Sprintf("the other one is gone: %t; it is there", gone), gone, there)
	}
}

// TestOwnersAreReadOnce: however many Pods name an owner, a pass reads it, and its revisions, once from
// the caches and once from the API server.
func TestOwnersAreReadOnce(t *testing.T) {
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "ds", UID: "ds"}}
	more := []client.Object{set, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: "r1", UID: "r1", OwnerReferences: []metav1.OwnerReference{*ownerRef("DaemonSet", "ds", "ds")},
			Labels: map[string]string{appsv1.DefaultDaemonSetUniqueLabelKey: "new"},
		},
		Revision: 1,
	}}
	for i := range 50 {
		pod := claiming(fmt.Sprintf("p%d", i), ownerRef("DaemonSet", "ds", "ds"))
		pod.Finalizers = []string{"example.com/held"}
		more = append(more, pod)
	}
	a := finishes(t, claiming("first", ownerRef("DaemonSet", "ds", "ds")), more...)
	go func() {
		for range a.events.Events { // nobody else reads them
		}
	}()
	reads, _, err := a.pass()
	checktest.NoError(t, err)
	if len(reads) > 10 {
		t.Errorf("the pass reads %d times: %v", len(reads), reads[:10])
	}
}

// TestWants: what the objects of each kind say of their Pods.
func TestWants(t *testing.T) {
	meta := metav1.ObjectMeta{Namespace: namespace, Name: "set", UID: "set", Generation: 2}
	two, three := new(int32(2)), new(int32(3))
	rolling := appsv1.StatefulSetUpdateStrategy{RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: two}}
	ends := []batchv1.JobCondition{{Type: batchv1.JobFailureTarget, Status: corev1.ConditionTrue}}
	going := meta
	going.DeletionTimestamp, going.Finalizers = new(metav1.Now()), []string{metav1.FinalizerDeleteDependents}
	orphaning := going
	orphaning.Finalizers = []string{metav1.FinalizerOrphanDependents}
	revision := func(name string, n int64, hash string) *appsv1.ControllerRevision {
		return &appsv1.ControllerRevision{Revision: n, ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, OwnerReferences: []metav1.OwnerReference{*ownerRef("DaemonSet", "set", "set")},
			Labels: map[string]string{appsv1.DefaultDaemonSetUniqueLabelKey: hash},
		}}
	}
	foreign := revision("foreign", 9, "foreign")
	foreign.OwnerReferences[0].UID = "another"
	zero, one := new(int32(0)), new(int32(1))
	for name, test := range map[string]struct {
		object client.Object
		want   plan.Owner
	}{
		"ReplicaSet":              {&appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Replicas: three}}, plan.Owner{Replicas: three}},
		"ReplicaSet by default":   {&appsv1.ReplicaSet{ObjectMeta: meta}, plan.Owner{Replicas: one}},
		"that goes with its Pods": {&appsv1.ReplicaSet{ObjectMeta: going}, plan.Owner{Replicas: one, Gone: true}},
		"that leaves its Pods":    {&appsv1.ReplicaSet{ObjectMeta: orphaning}, plan.Owner{Replicas: one}},
		"ReplicationController":   {&corev1.ReplicationController{ObjectMeta: meta, Spec: corev1.ReplicationControllerSpec{Replicas: three}}, plan.Owner{Replicas: three}},
		"Job":                     {&batchv1.Job{ObjectMeta: meta, Spec: batchv1.JobSpec{Parallelism: three}}, plan.Owner{Replicas: three}},
		"Job that is suspended":   {&batchv1.Job{ObjectMeta: meta, Spec: batchv1.JobSpec{Suspend: new(true), Parallelism: three}}, plan.Owner{Replicas: zero}},
		"Job that fails":          {&batchv1.Job{ObjectMeta: meta, Spec: batchv1.JobSpec{Parallelism: three}, Status: batchv1.JobStatus{Conditions: ends}}, plan.Owner{Replicas: zero}},
		"StatefulSet": {&appsv1.StatefulSet{
			ObjectMeta: meta, Status: appsv1.StatefulSetStatus{ObservedGeneration: 2, UpdateRevision: "new"},
			Spec: appsv1.StatefulSetSpec{Replicas: three, Ordinals: &appsv1.StatefulSetOrdinals{Start: 5}, UpdateStrategy: rolling},
		}, plan.Owner{Replicas: three, Ordinals: true, First: 5, Partition: 7, Revision: "new"}},
		"StatefulSet that updates no Pod": {&appsv1.StatefulSet{
			ObjectMeta: meta, Status: appsv1.StatefulSetStatus{ObservedGeneration: 2, UpdateRevision: "new"},
			Spec: appsv1.StatefulSetSpec{UpdateStrategy: appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType}},
		}, plan.Owner{Replicas: one, Ordinals: true}},
		"StatefulSet that nobody has looked at": {&appsv1.StatefulSet{
			ObjectMeta: meta, Status: appsv1.StatefulSetStatus{ObservedGeneration: 1, UpdateRevision: "old"},
		}, plan.Owner{Replicas: one, Ordinals: true, Revision: "old", Unknown: true}},
		"StatefulSet that goes, and nobody looks at it": {&appsv1.StatefulSet{ObjectMeta: going}, plan.Owner{Replicas: one, Ordinals: true, Gone: true}},
		"DaemonSet": {&appsv1.DaemonSet{ObjectMeta: meta, Status: appsv1.DaemonSetStatus{ObservedGeneration: 2}}, plan.Owner{Revision: "newer"}},
		"CloneSet": {&appsv1alpha1.CloneSet{
			ObjectMeta: meta, Status: appsv1alpha1.CloneSetStatus{ObservedGeneration: 2, UpdateRevision: "new"},
			Spec: appsv1alpha1.CloneSetSpec{Replicas: three, ScaleStrategy: appsv1alpha1.CloneSetScaleStrategy{PodsToDelete: []string{"a"}}},
		}, plan.Owner{Replicas: three, Acts: true, Revision: "new", Named: map[string]bool{"a": true}}},
	} {
		t.Run(name, func(t *testing.T) {
			live := fake.NewClientBuilder().WithScheme(ownersScheme(t)).WithStatusSubresource().
				WithObjects(test.object, revision("older", 1, "older"), revision("newer", 2, "newer"), foreign).Build()
			kind := checktest.Must(live.GroupVersionKindFor(test.object))(t)
			ref := &plan.OwnerRef{APIVersion: kind.GroupVersion().String(), Kind: kind.Kind, Name: "set", UID: "set"}
			for _, isLive := range []bool{true, false} {
				one, err := wantsOf(t.Context(), ownerSource{live, isLive}, namespace, ref)
				checktest.NoError(t, err)
				checktest.Same(t, "what it wants", test.want, one.wants)
			}
		})
	}
}

func ownersScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	all := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{appsv1.AddToScheme, batchv1.AddToScheme, corev1.AddToScheme, appsv1alpha1.AddToScheme} {
		checktest.NoError(t, add(all))
	}
	return all
}

// TestGiantOwners: of owners the cache keeps a bound of bytes, whatever somebody writes into them.
func TestGiantOwners(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	meta := metav1.ObjectMeta{
		Namespace: namespace, Name: "giant", Annotations: map[string]string{"a": long}, Labels: map[string]string{"l": long},
		Finalizers: []string{long}, OwnerReferences: []metav1.OwnerReference{{Name: long}, *ownerRef("DaemonSet", "ds", "ds")},
	}
	pods := corev1.PodTemplateSpec{Spec: corev1.PodSpec{NodeSelector: map[string]string{"n": long}, Containers: []corev1.Container{{Image: long}}}}
	for _, object := range []client.Object{
		&appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Template: pods}},
		&appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Template: pods}},
		&appsv1.DaemonSet{ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{Template: pods}},
		&batchv1.Job{ObjectMeta: meta, Spec: batchv1.JobSpec{Template: pods}, Status: batchv1.JobStatus{Conditions: []batchv1.JobCondition{{Message: long}}}},
		&corev1.ReplicationController{ObjectMeta: meta, Spec: corev1.ReplicationControllerSpec{Template: &pods}},
	} {
		kept := checktest.Must(onlyWants(object))(t)
		if size := len(encode.JSON(kept)); size > 4<<10 {
			t.Errorf("%T keeps %d bytes", kept, size)
		}
	}
}

// TestPastBudget: an eviction that a budget refuses is carried out only where Usher's gate alone makes
// the Pod unready, and no Pod is deleted without its grace period.
func TestPastBudget(t *testing.T) {
	for name, past := range map[string]bool{"past the budget": true, "within the budget": false} {
		t.Run(name, func(t *testing.T) {
			pod := claiming("web", ownerRef("ReplicaSet", "set", "set"))
			var graces []*int64
			c := fake.NewClientBuilder().WithObjects(pod).WithInterceptorFuncs(interceptor.Funcs{
				SubResourceCreate: func(context.Context, client.Client, string, client.Object, client.Object, ...client.SubResourceCreateOption) error {
					err := apierrors.NewTooManyRequests("the budget", 0)
					err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause}}
					return err
				},
				Delete: func(_ context.Context, _ client.WithWatch, _ client.Object, options ...client.DeleteOption) error {
					graces = append(graces, (&client.DeleteOptions{}).ApplyOptions(options).GracePeriodSeconds)
					return nil
				},
			}).Build()
			err := finishing.Delete(t.Context(), c, pod, &usherv1alpha1.DeletionRequest{Eviction: true, GracePeriodSeconds: new(int64(0))}, past)
			checktest.Same(t, "it is refused", !past, apierrors.IsTooManyRequests(err))
			checktest.Same(t, "deletions", map[bool][]*int64{true: {nil}}[past], graces)
		})
	}
}
