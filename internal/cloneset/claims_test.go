// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/scenariotest"
)

// TestClaimChanged: a claim that gets bound, as every claim does, triggers no pass.
func TestClaimChanged(t *testing.T) {
	scenariotest.Table(t, "testdata/claim-changed.txt", func(t *testing.T, change json.RawMessage) string {
		before := claimOf(web(), "data-web-x", "x")
		after := before.DeepCopy()
		checktest.NoError(t, json.Unmarshal(change, after))
		return passOrNone(claimChanged(before, after))
	})
}

// TestInstanceDeletions: a deletion is forgotten when it is complete, and when the Pod turns out to
// live on.
func TestInstanceDeletions(t *testing.T) {
	set := web()
	lives, ends := []*corev1.Pod{podOf(set, "web-x")}, []*corev1.Pod{podOf(set, "web-x", func(p *corev1.Pod) { p.DeletionTimestamp = deletedNow() })}
	there := []*corev1.PersistentVolumeClaim{claimOf(set, "data-web-x", "x")}
	going, taken, again := claimOf(set, "data-web-x", "x"), claimOf(set, "data-web-x", "x"), claimOf(set, "data-web-x", "x")
	going.DeletionTimestamp = deletedNow()
	taken.Annotations = map[string]string{annotationTakenOver: "2026-01-02T03:04:05Z"}
	again.UID = "later"
	for name, c := range map[string]struct {
		pods   []*corev1.Pod
		claims []*corev1.PersistentVolumeClaim
		want   bool
	}{
		"the Pod ends":          {ends, there, true},
		"the Pod is gone":       {nil, there, true},
		"it lives on after all": {lives, there, false},
		"the claims are going":  {ends, []*corev1.PersistentVolumeClaim{going}, false},
		"the claims are gone":   {ends, nil, false},
		"the next Pod has them": {nil, []*corev1.PersistentVolumeClaim{taken}, false},
		"they were made again":  {nil, []*corev1.PersistentVolumeClaim{again}, false},
		"one is new":            {nil, []*corev1.PersistentVolumeClaim{there[0], claimOf(set, "log-web-x", "x")}, false},
	} {
		shared := (&Reconciler{}).shared(keyOf(set))
		shared.recordDeletion("x", there)
		deleted := shared.deletedInstances(set, c.pods, c.claims)
		checktest.Same(t, name+": deleted", c.want, deleted["x"])
		checktest.Same(t, name+": a query forgets nothing", true, shared.deletedInstances(set, ends, there)["x"])
		shared.forgetDeletionsExcept(deleted)
		checktest.Same(t, name+": remembered", c.want, shared.deletedInstances(set, ends, there)["x"])
		if shared.forgetDeletion("x"); shared.deletedInstances(set, ends, there)["x"] {
			t.Errorf("%s: not forgotten", name)
		}
	}
}

// TestReleasedInstances: the claims of a released Pod are in use while the Pod exists; those of a
// deleted Pod are not, even if the cache still shows it.
func TestReleasedInstances(t *testing.T) {
	set := claimed()
	claims := []*corev1.PersistentVolumeClaim{claimOf(set, "data-web-x", "x"), claimOf(set, "log-web-x", "x"), claimOf(set, "data-web-y", "y")}
	ours, free := podOf(set, "web-x", at("5")), podOf(nil, "web-x", at("7"))
	back := podOf(set, "web-x", at("9"))
	for name, c := range map[string]struct {
		own     []*corev1.Pod
		cached  []client.Object
		written *corev1.Pod
		want    bool
	}{
		"the set has it":                     {own: []*corev1.Pod{ours}, cached: []client.Object{ours}},
		"there is none":                      {},
		"released":                           {cached: []client.Object{free}, want: true},
		"another's":                          {cached: []client.Object{podOf(anotherSet(), "web-x", at("7"))}, want: true},
		"released, and the cache is behind":  {cached: []client.Object{ours}, written: free, want: true},
		"deleted, and the cache is behind":   {cached: []client.Object{ours}, written: ours},
		"taken back, and the cache shows it": {own: []*corev1.Pod{back}, cached: []client.Object{back}, written: free},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := reconcilerOn(server(t, c.cached...))
			if c.written != nil {
				r.pods.noteDeleted(set, c.written, now)
			}
			got, err := r.releasedInstances(t.Context(), set, c.own, claims)
			if err != nil || got["x"] != c.want || got["y"] {
				t.Errorf("released = %v, error %v, want %v", got, err, c.want)
			}
		})
	}
}

// TestFormerSetWakes: when a released Pod is gone, its former set gets a pass, because the claims are
// free.
func TestFormerSetWakes(t *testing.T) {
	webRequest := []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: "default", Name: "web"}}}
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want []reconcile.Request
	}{
		"it had a claim of its own":     {podOf(nil, "web-x", mounting("data-web-x")), webRequest},
		"it had a claim of others":      {podOf(nil, "web-x", mounting("shared")), nil},
		"it had no claim":               {podOf(nil, "web-x"), nil},
		"its name cannot be of any set": {podOf(nil, "x", mounting("data-x")), nil},
	} {
		q := &queued{}
		r, _ := reconcilerOn(server(t))
		r.podGone(t.Context(), event.DeleteEvent{Object: c.pod}, q)
		checktest.Same(t, name, c.want, q.requests)
	}
}

// mounting gives a Pod a volume of this claim.
func mounting(claim string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}}}
	}
}

// claimed returns a set whose instances have a claim.
func claimed() *apps.CloneSet { return web(`{"metadata":{"name":"data"}}`) }

// emptyRevision returns a revision whose Pods have no containers.
func emptyRevision() *revision.Revision {
	return &revision.Revision{Name: "web-r1", Template: map[string]any{"spec": map[string]any{"containers": []any{}}}}
}

// nextPod creates the Pod that takes over the claims of instance x.
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
		checktest.NoError(t, r.Client.Update(t.Context(), live))
	}
	next := func(t *testing.T, r *Reconciler) {
		if made := performed(t, r, claimed(), nextPod()); made.err != nil || made.pod.Name != "web-x" {
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
			r.shared(keyOf(set)).recordDeletion("x", seen)
			for _, do := range test.meanwhile {
				do(t, r)
			}
			checktest.NoError(t, r.deleteClaims(t.Context(), set, "x", seen))
			checktest.Same(t, "the claim stays", test.stays, exists(t, r.Client, claim))
			if left := r.shared(keyOf(set)).deletedInstances(set, nil, seen); left["x"] {
				t.Errorf("still to be deleted: %v", left)
			}
		})
	}
}

// TestTakenOverBeforeThePodIsMade: a claim records the takeover before the Pod exists, even if the
// claim changes meanwhile. A claim that keeps changing, or is terminating, is not taken over.
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
			made := performed(t, r, claimed(), nextPod())
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
