// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/cloneset/revision"
)

// claimed is a set whose instances have a claim.
func claimed() *apps.CloneSet { return web(`{"metadata":{"name":"data"}}`) }

// emptyRevision is a revision whose Pods have no containers.
func emptyRevision() *revision.Revision {
	return &revision.Revision{Name: "web-r1", Template: map[string]any{"spec": map[string]any{"containers": []any{}}}}
}

// nextPod creates the Pod that takes over the claims of x.
func nextPod() plan.Action {
	return plan.Action{Verb: plan.Create, Instance: "x", Revision: emptyRevision()}
}

// TestClaimsOfTheNextPodStay: a process that has deleted a Pod deletes its claims,
// whatever has happened to them since, except those that another process has meanwhile
// given to the next Pod.
func TestClaimsOfTheNextPodStay(t *testing.T) {
	type event = func(*testing.T, *Reconciler)
	claim := claimOf(claimed(), "data-web-x", "x")
	bind := func(t *testing.T, r *Reconciler) {
		live := read(t, r.Client, claim)
		live.Spec.VolumeName = "volume"
		if err := r.Client.Update(t.Context(), live); err != nil {
			t.Fatal(err)
		}
	}
	next := func(t *testing.T, r *Reconciler) {
		if made := r.perform(t.Context(), claimed(), nextPod()); made.err != nil || made.pod.Name != "web-x" {
			t.Fatalf("made %v: %v", made.pod, made.err)
		}
	}
	for name, test := range map[string]struct {
		meanwhile []event
		stays     bool
	}{
		"nothing happens":                  {nil, false},
		"it is bound":                      {[]event{bind}, false},
		"the next Pod has it":              {[]event{next}, true},
		"it is bound for the next Pod":     {[]event{next, bind}, true},
		"it is bound, and then taken over": {[]event{bind, next}, true},
	} {
		t.Run(name, func(t *testing.T) {
			set := claimed()
			r, _ := reconcilerOn(server(t, claim))
			seen := []*corev1.PersistentVolumeClaim{read(t, r.Client, claim)}
			r.deletions.note(set.UID, "x", seen)
			for _, do := range test.meanwhile {
				do(t, r)
			}
			if err := r.deleteClaims(t.Context(), set, "x", seen); err != nil {
				t.Fatal(err)
			}
			if got := exists(t, r.Client, claim); got != test.stays {
				t.Errorf("the claim stays: %t", got)
			}
			if left := r.deletions.of(set, nil, seen); len(left) > 0 {
				t.Errorf("still to be deleted: %v", left)
			}
		})
	}
}

// TestTakenOverBeforeThePodIsMade: a claim records the takeover before the Pod exists,
// even if the claim changes meanwhile; one that changes all the time, or is terminating,
// is not taken over.
func TestTakenOverBeforeThePodIsMade(t *testing.T) {
	for name, test := range map[string]struct {
		conflicts int
		going     bool
		pod       string
		taken     bool
	}{
		"at once":              {pod: "web-x", taken: true},
		"it changes meanwhile": {conflicts: takeOverTries - 1, pod: "web-x", taken: true},
		"it always changes":    {conflicts: takeOverTries},
		"it is going":          {going: true, pod: "web-fresh"},
	} {
		t.Run(name, func(t *testing.T) {
			claim := claimOf(claimed(), "data-web-x", "x")
			if test.going {
				claim.DeletionTimestamp, claim.Finalizers = deletedNow(), []string{"kubernetes.io/pvc-protection"}
			}
			conflicts, taken := test.conflicts, false
			r, _ := reconcilerOn(interceptor.NewClient(server(t, claim), interceptor.Funcs{
				Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
					if _, ok := object.(*corev1.PersistentVolumeClaim); ok && conflicts > 0 {
						conflicts--
						return apierrors.NewConflict(corev1.Resource("persistentvolumeclaims"), object.GetName(), nil)
					}
					return c.Patch(ctx, object, patch, options...)
				},
				Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
					live := named(claim)
					err := c.Get(ctx, client.ObjectKeyFromObject(claim), live)
					taken = live.Annotations[annotationTakenOver] != ""
					return errors.Join(err, c.Create(ctx, object, options...))
				},
			}))
			r.NewID = func() string { return "fresh" }
			made := r.perform(t.Context(), claimed(), nextPod())
			if test.pod == "" {
				if !errors.Is(made.err, errClaimBusy) {
					t.Errorf("made %v: %v", made.pod, made.err)
				}
				return
			}
			if made.err != nil || made.pod.Name != test.pod || taken != test.taken {
				t.Errorf("made %v, taken over before: %t: %v", made.pod, taken, made.err)
			}
		})
	}
}
