// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
)

// passOver makes a pass over a new set of one Pod with more revisions than it keeps, on
// an API server that fails as configured.
func passOver(t *testing.T, failing interceptor.Funcs) (*apps.CloneSet, []string, error) {
	t.Helper()
	set := web()
	set.Generation, set.Spec.Replicas, set.Spec.RevisionHistoryLimit = 1, new(int32(1)), new(int32(0))
	c := server(t, set, revisionObject(set, "web-old", `{"spec":{"template":{"spec":{"x":1}}}}`))
	r, events := reconcilerOn(interceptor.NewClient(c, failing))
	_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: keyOf(set)})
	return read(t, c, set), events.reasons, err
}

// TestLateFailures: a failure after the Pods were written prevents neither the status nor
// the events.
func TestLateFailures(t *testing.T) {
	broken := errors.New("broken for good")
	for name, test := range map[string]struct {
		failing interceptor.Funcs
		status  bool
	}{
		"a revision cannot be pruned": {interceptor.Funcs{
			Delete: func(_ context.Context, _ client.WithWatch, object client.Object, _ ...client.DeleteOption) error {
				return fmt.Errorf("delete %s: %w", object.GetName(), broken)
			},
		}, true},
		"the status cannot be written": {interceptor.Funcs{
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, object client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
				if _, ok := object.(*apps.CloneSet); ok {
					return broken
				}
				return c.SubResource(sub).Patch(ctx, object, patch, options...)
			},
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			set, reasons, err := passOver(t, test.failing)
			if !errors.Is(err, broken) {
				t.Errorf("error %v: it is not tried again", err)
			}
			if written := set.Status.Replicas == 1; written != test.status {
				t.Errorf("status %+v", set.Status)
			}
			if !slices.Contains(reasons, "Normal SuccessfulCreate") {
				t.Errorf("events %q", reasons)
			}
		})
	}
}

// TestTerminatingNamespace: nothing can be created in a terminating namespace, and that
// is no error.
func TestTerminatingNamespace(t *testing.T) {
	going := apierrors.NewForbidden(corev1.Resource("pods"), "x", errors.New("the namespace is being terminated"))
	going.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for name, refused := range map[string]func(client.Object) bool{
		"no revision": func(object client.Object) bool { _, ok := object.(*appsv1.ControllerRevision); return ok },
		"no Pod":      func(object client.Object) bool { _, ok := object.(*appsv1.ControllerRevision); return !ok },
	} {
		t.Run(name, func(t *testing.T) {
			_, reasons, err := passOver(t, interceptor.Funcs{
				Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
					if refused(object) {
						return going
					}
					return c.Create(ctx, object, options...)
				},
			})
			if err != nil || slices.Contains(reasons, "Warning FailedCreate") {
				t.Errorf("error %v, events %q", err, reasons)
			}
		})
	}
}

// memories counts the sets of which something is known.
func memories(r *Reconciler) (count int) {
	r.memories.Range(func(any, any) bool { count++; return true })
	return count
}

// TestForget: nothing is kept about a deleted set, whatever a pass has seen of its end.
func TestForget(t *testing.T) {
	set := web()
	r, _ := reconcilerOn(server(t))
	r.memory(keyOf(set)).uid = set.UID
	r.revisions.noteCreated(set, revisionObject(set, "web-6f", `{}`), now)
	r.pods.noteDeleted(set, podWithSecret("web-a"), now)
	r.claims.noteCreated(set, claimOf(set, "data-web-x", "x"), now)
	r.forget(keyOf(set))
	if left := memories(r) + len(r.pods.sets) + len(r.claims.sets) + len(r.revisions.sets); left > 0 {
		t.Errorf("%d things left: %+v", left, r)
	}
}

// TestAfterwards: answers count; a failure leaves a Pod as it was.
func TestAfterwards(t *testing.T) {
	at := func(name, version string) *corev1.Pod { return podOf(nil, name, at(version)) }
	failure := errors.New("no")
	a, b, c, d, e := at("a", "1"), at("b", "1"), at("c", "1"), at("d", "1"), at("e", "1")
	s := &plan.Snapshot{Set: "web", Pods: []*corev1.Pod{a, b, c, d, e}}
	left := afterwards(s, []outcome{
		{action: plan.Action{Verb: plan.Move, Pod: a}, pod: at("a", "2")},
		{action: plan.Action{Verb: plan.Update, Pod: b}, pod: b, err: failure},
		{action: plan.Action{Verb: plan.Delete, Pod: c}, pod: c},
		{action: plan.Action{Verb: plan.Delete, Pod: d}, pod: d, err: failure},
		{action: plan.Action{Verb: plan.Create}, pod: at("f", "1")},
		{action: plan.Action{Verb: plan.Create}, err: failure},
	})
	if got := shown(left.Pods); got != "a 2, b 1, d 1, e 1, f 1" {
		t.Errorf("Pods = %s", got)
	}
	if left.Set != "web" || len(s.Pods) != 5 || s.Pods[0] != a {
		t.Error("the rest of the snapshot is to stay, and the snapshot itself")
	}
}

// TestPodInfosOfAnIdleSet: what was read of the Pods is kept only while there is something
// to do.
func TestPodInfosOfAnIdleSet(t *testing.T) {
	set := web()
	set.Spec.Replicas = new(int32(1))
	c := server(t, set)
	r, _ := reconcilerOn(c)
	for pass, want := range []int{1, 0} {
		if pass == 1 {
			pods, err := r.ListPods(t.Context(), set.Namespace, string(set.UID))
			if err != nil || len(pods) != 1 {
				t.Fatalf("Pods %v: %v", pods, err)
			}
			pods[0].Labels[apps.LabelLifecycleState] = string(apps.StateNormal)
			if err := c.Update(t.Context(), pods[0]); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := r.pass(t.Context(), read(t, c, set)); err != nil {
			t.Fatal(err)
		}
		if got := len(r.memory(keyOf(set)).podInfos); got != want {
			t.Errorf("after pass %d: %d Pods, want %d", pass+1, got, want)
		}
	}
}

// TestGoneSet: a set that the API server no longer has is left alone for as long as the cache
// shows it.
func TestGoneSet(t *testing.T) {
	set := web()
	set.Spec.Replicas = new(int32(1))
	cache, live := server(t, set), server(t)
	r, events := reconcilerOn(live)
	r.Client = reading{live, cache}
	for range 3 {
		if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: keyOf(set)}); err != nil {
			t.Fatal(err)
		}
		// The garbage collector deletes what the first pass has created.
		if err := live.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace(set.Namespace)); err != nil {
			t.Fatal(err)
		}
	}
	if created := slices.DeleteFunc(events.reasons, func(reason string) bool { return reason != "Normal SuccessfulCreate" }); len(created) != 1 {
		t.Errorf("Pods were created %d times", len(created))
	}
	if err := cache.Delete(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: keyOf(set)}); err != nil || memories(r) > 0 {
		t.Errorf("something is kept: %v", err)
	}
}

// reading is a client that reads CloneSets from a cache.
type reading struct {
	client.Client
	cache client.Client
}

func (c reading) Get(ctx context.Context, at client.ObjectKey, object client.Object, options ...client.GetOption) error {
	if _, ok := object.(*apps.CloneSet); ok {
		return c.cache.Get(ctx, at, object, options...)
	}
	return c.Client.Get(ctx, at, object, options...)
}
