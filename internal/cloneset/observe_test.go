// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/cloneset/revision"
)

// TestStaleCacheIsVerified: if the cache has lagged for too long, a pass looks the entry
// up and decides on what it finds, not on the entry.
func TestStaleCacheIsVerified(t *testing.T) {
	set := web()
	set.Spec.Selector.MatchLabels = map[string]apps.LabelValue{"app": "web"}
	pod := func(version, phase string, owned bool) *corev1.Pod {
		out := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: "web-a", UID: "pod", ResourceVersion: version, Labels: map[string]string{"app": "web"},
			},
			Status: corev1.PodStatus{Phase: corev1.PodPhase(phase)},
		}
		if owned {
			out.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, apps.KindCloneSet)}
		}
		return out
	}
	for _, test := range []struct {
		name string
		live []client.Object
		want []string
	}{
		{"it is as it was answered", []client.Object{pod("3", "Pending", true)}, []string{"3 Pending"}},
		{"it has changed since", []client.Object{pod("4", "Running", true)}, []string{"4 Running"}},
		{"it belongs to nobody any more", []client.Object{pod("4", "Running", false)}, nil},
		{"it is gone", nil, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := New(indexed(t, pod("2", "Pending", true)), indexed(t, test.live...), events.NewFakeRecorder(10),
				Options{Clock: testclock.NewFakePassiveClock(now)})
			r.pods.note(set.UID, podEntry{object: pod("3", "Pending", true), at: now.Add(-verifyAfter - time.Second)})
			pods, err := r.ownPods(t.Context(), set, now)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, pod := range pods {
				got = append(got, pod.ResourceVersion+" "+string(pod.Status.Phase))
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("the pass sees %v, want %v", got, test.want)
			}
		})
	}
}

// TestDrainCountsFromItsReading: what a pass reads along the way may be younger than the
// pass, so a drain that it finds there does not date from the pass's start.
func TestDrainCountsFromItsReading(t *testing.T) {
	set := web()
	if err := set.Spec.Template.UnmarshalJSON([]byte(`{"spec": {"containers": [{"name": "main"}]}}`)); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web-a", UID: "pod",
			Labels:          map[string]string{"app": "web"},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, apps.KindCloneSet)},
		},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{
			Type: apps.ConditionInPlaceUpdateReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(now),
		}}},
	}
	server, read := indexed(t, set, pod), now.Add(3*time.Second)
	r := New(server, server, events.NewFakeRecorder(10), Options{Clock: testclock.NewFakePassiveClock(read)})
	snapshot, _, err := r.prepare(t.Context(), set, now)
	if err != nil {
		t.Fatal(err)
	}
	if got := snapshot.Drained[pod.UID]; !got.Equal(read) {
		t.Errorf("drained since %s, want %s", got, read)
	}
}

// indexed is an API server, or a cache, that has these objects.
func indexed(t testing.TB, objects ...client.Object) client.Client {
	t.Helper()
	known := runtime.NewScheme()
	if err := scheme.AddToScheme(known); err != nil {
		t.Fatal(err)
	}
	if err := apps.AddToScheme(known); err != nil {
		t.Fatal(err)
	}
	builder := fake.NewClientBuilder().WithScheme(known).WithStatusSubresource(&apps.CloneSet{}).WithObjects(objects...)
	for _, owned := range []client.Object{&corev1.Pod{}, &appsv1.ControllerRevision{}, &corev1.PersistentVolumeClaim{}} {
		builder.WithIndex(owned, indexOwner, ownerOf)
	}
	return builder.Build()
}

// TestPodTakenAwayMidAction: a Pod that someone releases while an action on it is under
// way is left alone from then on, in this pass and the next.
func TestPodTakenAwayMidAction(t *testing.T) {
	set := web()
	set.Spec.Selector.MatchLabels = map[string]apps.LabelValue{"app": "web"}
	seen := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "web-a", UID: "pod", Labels: map[string]string{"app": "web"},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, apps.KindCloneSet)},
	}}
	free := seen.DeepCopy()
	free.OwnerReferences = nil
	server := indexed(t, free)
	r := New(server, server, events.NewFakeRecorder(10), Options{Clock: testclock.NewFakePassiveClock(now)})
	done := r.perform(t.Context(), set, plan.Action{
		Verb: plan.Update, Pod: seen, To: apps.StateUpdating, Revision: &revision.Revision{Name: "web-2"}, Change: &inplace.Change{},
		Conditions: []plan.Condition{{Type: apps.ConditionInPlaceUpdateReady, Status: corev1.ConditionTrue, Reason: plan.ReasonInService}},
	})
	if !done.conflicted() {
		t.Errorf("the action ends with %v, want it to be decided anew", done.err)
	}
	live := &corev1.Pod{}
	if err := server.Get(t.Context(), client.ObjectKeyFromObject(seen), live); err != nil {
		t.Fatal(err)
	}
	if state := live.Labels[apps.LabelLifecycleState]; state != "" {
		t.Errorf("it moved to %s", state)
	}
	if pods, _ := r.pods.merge(set.UID, []*corev1.Pod{seen}, now); len(pods) > 0 {
		t.Error("the next pass, with a cache that lags, takes it for the set's")
	}
}

// TestNobodysPodIsTested: a patch of an ownerless Pod tests that too: by now it may have
// an owner.
func TestNobodysPodIsTested(t *testing.T) {
	other := web()
	other.UID = "other"
	free := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-a", UID: "pod"}}
	theirs := free.DeepCopy()
	theirs.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(other, apps.KindCloneSet)}
	for _, test := range []struct {
		name string
		live *corev1.Pod
		want bool
	}{{"still nobody's", free, true}, {"somebody's by now", theirs, false}} {
		t.Run(test.name, func(t *testing.T) {
			server := indexed(t, test.live.DeepCopy())
			r := New(server, server, events.NewFakeRecorder(10), Options{Clock: testclock.NewFakePassiveClock(now)})
			_, err := r.patchPod(t.Context(), web(), free, plan.Action{To: apps.StateNormal})
			if (err == nil) != test.want {
				t.Errorf("the patch is carried out: %t, want %t (%v)", err == nil, test.want, err)
			}
		})
	}
}
