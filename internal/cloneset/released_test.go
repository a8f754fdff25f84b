// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// TestReleasedInstances: the claims of a released Pod are in use while it exists; those of a
// deleted Pod are not, whatever the cache still shows.
func TestReleasedInstances(t *testing.T) {
	set := claimedSet(t, `{"metadata":{"name":"data"}}`)
	claims := []*corev1.PersistentVolumeClaim{claimOf(set, "data-web-x", "x"), claimOf(set, "log-web-x", "x"), claimOf(set, "data-web-y", "y")}
	at := func(version string, owners ...metav1.OwnerReference) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-x", UID: "pod", ResourceVersion: version, OwnerReferences: owners}}
	}
	ours := *metav1.NewControllerRef(set, apps.KindCloneSet)
	for name, c := range map[string]struct {
		own, cached, written *corev1.Pod
		want                 bool
	}{
		"the set has it":                     {own: at("5", ours), cached: at("5", ours)},
		"there is none":                      {},
		"released":                           {cached: at("7"), want: true},
		"another's":                          {cached: at("7", owner("other", true)), want: true},
		"released, and the cache is behind":  {cached: at("5", ours), written: at("7"), want: true},
		"deleted, and the cache is behind":   {cached: at("5", ours), written: at("5", ours)},
		"taken back, and the cache shows it": {own: at("9", ours), cached: at("9", ours), written: at("7")},
	} {
		t.Run(name, func(t *testing.T) {
			builder := fake.NewClientBuilder().WithScheme(scheme.Scheme)
			if c.cached != nil {
				builder = builder.WithObjects(c.cached)
			}
			r := &Reconciler{Client: builder.Build(), pods: newOverlay[*corev1.Pod]()}
			if c.written != nil {
				r.pods.note(set.UID, podEntry{object: c.written, deleted: true, at: now})
			}
			var own []*corev1.Pod
			if c.own != nil {
				own = append(own, c.own)
			}
			got, err := r.releasedInstances(t.Context(), set, own, claims)
			if err != nil || got["x"] != c.want || got["y"] {
				t.Errorf("released = %v, error %v, want %v", got, err, c.want)
			}
		})
	}
}

// TestFormerSetWakes: when a released Pod is gone, its former set learns that the claims
// are free.
func TestFormerSetWakes(t *testing.T) {
	mounting := func(claim string) *corev1.Pod {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-x"}}
		pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}}}
		return pod
	}
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want []reconcile.Request
	}{
		"it had a claim of its own":     {mounting("data-web-x"), []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: "ns", Name: "web"}}}},
		"it had a claim of others":      {mounting("shared"), nil},
		"it had no claim":               {&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-x"}}, nil},
		"its name cannot be of any set": {&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Spec: mounting("data-x").Spec}, nil},
	} {
		q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		enqueueFormer(c.pod, q)
		var got []reconcile.Request
		for q.Len() > 0 {
			request, _ := q.Get()
			got = append(got, request)
		}
		q.ShutDown()
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v", name, got)
		}
	}
}
