// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/cloneset/revision"
)

// oneClaim is a set whose instance x has a claim.
func oneClaim(t *testing.T) (*apps.CloneSet, *corev1.PersistentVolumeClaim) {
	t.Helper()
	set := claimedSet(t, `{"metadata":{"name":"data"}}`)
	claim := claimOf(set, "data-web-x", "x")
	claim.Namespace = set.Namespace
	return set, claim
}

// nextPod creates the Pod that takes over the claims of x.
func nextPod() plan.Action {
	return plan.Action{Verb: plan.Create, Instance: "x", Revision: &revision.Revision{
		Name: "web-r1", Template: map[string]any{"spec": map[string]any{"containers": []any{}}},
	}}
}

// TestClaimsOfTheNextPodStay: a process that has deleted a Pod deletes its claims,
// whatever has happened to them since, except those that another process has meanwhile
// given to the next Pod.
func TestClaimsOfTheNextPodStay(t *testing.T) {
	bind := func(t *testing.T, r *Reconciler, _ *apps.CloneSet) {
		claim := &corev1.PersistentVolumeClaim{}
		if err := r.Client.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "data-web-x"}, claim); err != nil {
			t.Fatal(err)
		}
		claim.Spec.VolumeName = "volume"
		if err := r.Client.Update(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
	}
	next := func(t *testing.T, r *Reconciler, set *apps.CloneSet) {
		if made := r.perform(t.Context(), set, nextPod()); made.err != nil || made.pod.Name != "web-x" {
			t.Fatalf("made %v: %v", made.pod, made.err)
		}
	}
	for name, test := range map[string]struct {
		meanwhile []func(*testing.T, *Reconciler, *apps.CloneSet)
		stays     bool
	}{
		"nothing happens":                  {nil, false},
		"it is bound":                      {[]func(*testing.T, *Reconciler, *apps.CloneSet){bind}, false},
		"the next Pod has it":              {[]func(*testing.T, *Reconciler, *apps.CloneSet){next}, true},
		"it is bound for the next Pod":     {[]func(*testing.T, *Reconciler, *apps.CloneSet){next, bind}, true},
		"it is bound, and then taken over": {[]func(*testing.T, *Reconciler, *apps.CloneSet){bind, next}, true},
	} {
		t.Run(name, func(t *testing.T) {
			set, claim := oneClaim(t)
			r := reconcilerOf(claim)
			seen := read(t, r.Client, claim)
			r.deletions.note(idOf(set), "x", []*corev1.PersistentVolumeClaim{seen})
			for _, do := range test.meanwhile {
				do(t, r, set)
			}
			if err := r.deleteClaims(t.Context(), set, "x", []*corev1.PersistentVolumeClaim{seen}); err != nil {
				t.Fatal(err)
			}
			err := r.Client.Get(t.Context(), client.ObjectKeyFromObject(claim), &corev1.PersistentVolumeClaim{})
			if client.IgnoreNotFound(err) != nil || apierrors.IsNotFound(err) == test.stays {
				t.Errorf("the claim stays: %v", err)
			}
			if left := r.deletions.of(set, nil, []*corev1.PersistentVolumeClaim{seen}); len(left) > 0 {
				t.Errorf("still to go: %v", left)
			}
		})
	}
}

// busyClaims is an API server whose claims change that many times, just before they are
// patched. It records which claims were taken over when a Pod is created.
type busyClaims struct {
	client.Client
	conflicts int
	taken     string
}

func (c *busyClaims) Patch(ctx context.Context, object client.Object, patch client.Patch, options ...client.PatchOption) error {
	if _, ok := object.(*corev1.PersistentVolumeClaim); ok && c.conflicts > 0 {
		c.conflicts--
		return apierrors.NewConflict(corev1.Resource("persistentvolumeclaims"), object.GetName(), nil)
	}
	return c.Client.Patch(ctx, object, patch, options...)
}

func (c *busyClaims) Create(ctx context.Context, object client.Object, options ...client.CreateOption) error {
	var claims corev1.PersistentVolumeClaimList
	if err := c.List(ctx, &claims); err != nil {
		return err
	}
	for i := range claims.Items {
		if claims.Items[i].Annotations[annotationTakenOver] != "" {
			c.taken = claims.Items[i].Name
		}
	}
	return c.Client.Create(ctx, object, options...)
}

// TestTakenOverBeforeThePodIsMade: a claim records the takeover before the Pod exists,
// even if the claim changes meanwhile; one that changes all the time, or is terminating,
// is not taken over.
func TestTakenOverBeforeThePodIsMade(t *testing.T) {
	at := metav1.NewTime(now)
	for name, test := range map[string]struct {
		conflicts  int
		going      *metav1.Time
		pod, taken string
	}{
		"at once":              {pod: "web-x", taken: "data-web-x"},
		"it changes meanwhile": {conflicts: takeOverTries - 1, pod: "web-x", taken: "data-web-x"},
		"it always changes":    {conflicts: takeOverTries},
		"it is going":          {going: &at, pod: "web-fresh"},
	} {
		t.Run(name, func(t *testing.T) {
			set, claim := oneClaim(t)
			claim.DeletionTimestamp, claim.Finalizers = test.going, []string{"kubernetes.io/pvc-protection"}
			r := reconcilerOf(claim)
			c := &busyClaims{Client: r.Client, conflicts: test.conflicts}
			r.Client, r.Strict, r.NewID = c, c, func() string { return "fresh" }
			made := r.perform(t.Context(), set, nextPod())
			if test.pod == "" {
				if !errors.Is(made.err, errClaimBusy) {
					t.Errorf("made %v: %v", made.pod, made.err)
				}
				return
			}
			if made.err != nil || made.pod.Name != test.pod || c.taken != test.taken {
				t.Errorf("made %v, taken over before: %q: %v", made.pod, c.taken, made.err)
			}
		})
	}
}
