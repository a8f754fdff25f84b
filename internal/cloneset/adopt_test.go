// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// adopter is a client whose cache shows Pods without an owner and whose API server has
// another view of the set. It records which Pods are patched.
type adopter struct {
	client.Client
	orphans []corev1.Pod
	live    *apps.CloneSet
	patched []string
	// gone means that the API server no longer has the Pods.
	gone bool
}

func (c *adopter) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if pods, ok := list.(*corev1.PodList); ok {
		pods.Items = slices.Clone(c.orphans)
	}
	return nil
}

func (c *adopter) Get(_ context.Context, _ client.ObjectKey, out client.Object, _ ...client.GetOption) error {
	if set, ok := out.(*apps.CloneSet); ok {
		c.live.DeepCopyInto(set)
	}
	return nil
}

func (c *adopter) Patch(_ context.Context, object client.Object, _ client.Patch, _ ...client.PatchOption) error {
	if c.gone {
		return apierrors.NewNotFound(corev1.Resource("pods"), object.GetName())
	}
	c.patched = append(c.patched, object.GetName())
	return nil
}

// TestAdoption: a set adopts only Pods that match and are not terminating, and only if
// the API server has this very set, not terminating.
func TestAdoption(t *testing.T) {
	at := metav1.NewTime(now)
	orphan := func(name, app string, deleted *metav1.Time) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": app}, DeletionTimestamp: deleted}}
	}
	orphans := []corev1.Pod{orphan("leaving", "web", &at), orphan("matching", "web", nil), orphan("other", "db", nil)}
	for _, test := range []struct {
		name         string
		cached, live func(*apps.CloneSet)
		want         []string
	}{
		{"a set that stays", nil, nil, []string{"matching"}},
		{"a set on its way out", func(set *apps.CloneSet) { set.DeletionTimestamp = &at }, nil, nil},
		{"on its way out, as the cache does not show yet", nil, func(set *apps.CloneSet) { set.DeletionTimestamp = &at }, nil},
		{"another set of that name by now", nil, func(set *apps.CloneSet) { set.UID = "later" }, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			set := &apps.CloneSet{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "set"}}
			set.Spec.Selector.MatchLabels = map[string]apps.LabelValue{"app": "web"}
			c := &adopter{orphans: orphans, live: set.DeepCopy()}
			if test.cached != nil {
				test.cached(set)
			}
			if test.live != nil {
				test.live(c.live)
			}
			r := &Reconciler{Client: c, Reader: c, ListPods: byClient(c), Clock: testclock.NewFakePassiveClock(now), pods: newOverlay[*corev1.Pod](), sets: newSetOverlay()}
			if err := r.adoptOrphans(t.Context(), set); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(c.patched, test.want) {
				t.Errorf("adopted %v, want %v", c.patched, test.want)
			}
		})
	}
}

// TestAdoptedAndGone: an adopted Pod counts until it is found gone, although the cache
// still shows it without an owner, as one to adopt.
func TestAdoptedAndGone(t *testing.T) {
	set := &apps.CloneSet{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "set"}}
	set.Spec.Selector.MatchLabels = map[string]apps.LabelValue{"app": "web"}
	orphan := versioned("web-a", "5")
	orphan.Labels = map[string]string{"app": "web"}
	for _, gone := range []bool{false, true} {
		c := &adopter{orphans: []corev1.Pod{*orphan}, live: set.DeepCopy(), gone: gone}
		r := &Reconciler{Client: c, Reader: c, ListPods: byClient(c), Clock: testclock.NewFakePassiveClock(now), pods: newOverlay[*corev1.Pod](), sets: newSetOverlay()}
		r.pods.note(set.UID, podEntry{object: versioned("web-a", "6"), created: true, at: now})
		if err := r.adoptOrphans(t.Context(), set); err != nil {
			t.Fatal(err)
		}
		if pods, _ := r.pods.merge(set.UID, nil, now); slices.ContainsFunc(pods, func(pod *corev1.Pod) bool { return pod.Name == "web-a" }) == gone {
			t.Errorf("gone %v: the pass sees %d Pods", gone, len(pods))
		}
	}
}

// TestAdoptedClaimAndGone: the same for a claim.
func TestAdoptedClaimAndGone(t *testing.T) {
	set := claimedSet(t, `{"metadata":{"name":"data"}}`)
	orphan := claimOf(set, "data-web-x", "x")
	adopted := orphan.DeepCopy()
	orphan.OwnerReferences, orphan.ResourceVersion, adopted.ResourceVersion = nil, "5", "6"
	for _, gone := range []bool{false, true} {
		c := &adopter{live: set.DeepCopy(), gone: gone}
		r := &Reconciler{Client: c, Reader: c, ListPods: byClient(c), Clock: testclock.NewFakePassiveClock(now), claims: newOverlay[*corev1.PersistentVolumeClaim](), sets: newSetOverlay()}
		r.claims.noteCreated(set, adopted, now)
		if err := adopt(t.Context(), r, r.claims, set, orphan); err != nil {
			t.Fatal(err)
		}
		claims, _ := r.claims.merge(set.UID, nil, now)
		if slices.ContainsFunc(claims, func(c *corev1.PersistentVolumeClaim) bool { return c.Name == orphan.Name }) == gone {
			t.Errorf("gone %v: the pass sees %d claims", gone, len(claims))
		}
	}
}
