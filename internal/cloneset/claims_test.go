// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"encoding/json"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// claimedSet is a set with these claim templates.
func claimedSet(t *testing.T, templates ...string) *apps.CloneSet {
	t.Helper()
	set := &apps.CloneSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "set"}}
	set.Spec.Selector.MatchLabels = map[string]apps.LabelValue{"app": "web"}
	for _, text := range templates {
		var template apps.ClaimTemplate
		if err := json.Unmarshal([]byte(text), &template); err != nil {
			t.Fatal(err)
		}
		set.Spec.VolumeClaimTemplates = append(set.Spec.VolumeClaimTemplates, template)
	}
	return set
}

func claimOf(set *apps.CloneSet, name, id string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": "web", apps.LabelInstanceID: id},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, apps.KindCloneSet)},
	}}
}

// TestClaimManifest: the template's own labels and annotations stay, the set's labels
// win, and fields that no library knows are preserved.
func TestClaimManifest(t *testing.T) {
	set := claimedSet(t, `{"metadata":{"name":"data","labels":{"tier":"storage","app":"other"},"annotations":{"note":"x"}},
		"spec":{"fieldOfTheFuture":7,"resources":{"requests":{"storage":"1Gi"}}},"status":{"phase":"Bound"}}`)
	claim, err := claimManifest(set, &set.Spec.VolumeClaimTemplates[0], "abcde")
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{"tier": "storage", "app": "web", apps.LabelInstanceID: "abcde"}
	if claim.GetName() != "data-web-abcde" || claim.GetNamespace() != "ns" || !maps.Equal(claim.GetLabels(), labels) ||
		claim.GetAnnotations()["note"] != "x" || !metav1.IsControlledBy(claim, set) {
		t.Errorf("metadata %v", claim.Object["metadata"])
	}
	spec, _ := claim.Object["spec"].(map[string]any)
	if _, status := claim.Object["status"]; spec["fieldOfTheFuture"] == nil || spec["resources"] == nil || status {
		t.Errorf("claim %v", claim.Object)
	}
}

func TestMountClaims(t *testing.T) {
	volume := func(name string) any {
		return map[string]any{"name": name, "persistentVolumeClaim": map[string]any{"claimName": name + "-web-abcde"}}
	}
	config := map[string]any{"name": "config", "configMap": map[string]any{"name": "c"}}
	set := claimedSet(t, `{"metadata":{"name":"data"}}`, `{"metadata":{"name":"log"}}`)
	spec := map[string]any{"volumes": []any{map[string]any{"name": "data", "emptyDir": map[string]any{}}, config}}
	mountClaims(spec, set, "abcde")
	if diff := cmp.Diff([]any{volume("data"), config, volume("log")}, spec["volumes"]); diff != "" {
		t.Errorf("volumes (-want +got):\n%s", diff)
	}
	none := map[string]any{}
	if mountClaims(none, claimedSet(t), "abcde"); len(none) > 0 {
		t.Errorf("a Pod without claims gets %v", none)
	}
}

// TestClaimChanged: a claim that gets bound, as every claim does, triggers no pass.
func TestClaimChanged(t *testing.T) {
	set := claimedSet(t)
	at := metav1.Now()
	for name, c := range map[string]struct {
		edit  func(*corev1.PersistentVolumeClaim)
		wakes bool
	}{
		"bound":          {func(c *corev1.PersistentVolumeClaim) { c.Status.Phase, c.Spec.VolumeName = corev1.ClaimBound, "v" }, false},
		"another label":  {func(c *corev1.PersistentVolumeClaim) { c.Labels["x"] = "y" }, false},
		"going":          {func(c *corev1.PersistentVolumeClaim) { c.DeletionTimestamp = &at }, true},
		"set free":       {func(c *corev1.PersistentVolumeClaim) { c.OwnerReferences = nil }, true},
		"made again":     {func(c *corev1.PersistentVolumeClaim) { c.UID = "other" }, true},
		"other instance": {func(c *corev1.PersistentVolumeClaim) { c.Labels[apps.LabelInstanceID] = "y" }, true},
	} {
		before := claimOf(set, "data-web-x", "x")
		after := before.DeepCopy()
		c.edit(after)
		if got := claimChanged(before, after); got != c.wakes {
			t.Errorf("%s: wakes the set = %v", name, got)
		}
	}
}

// TestInstanceDeletions: a deletion is forgotten when it is done, or was not done.
func TestInstanceDeletions(t *testing.T) {
	set := claimedSet(t)
	at := metav1.Now()
	pod := func(edit func(*corev1.Pod)) []*corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-x"}}
		edit(p)
		return []*corev1.Pod{p}
	}
	lives, ends := pod(func(*corev1.Pod) {}), pod(func(p *corev1.Pod) { p.DeletionTimestamp = &at })
	there := []*corev1.PersistentVolumeClaim{claimOf(set, "data-web-x", "x")}
	going, taken, again := claimOf(set, "data-web-x", "x"), claimOf(set, "data-web-x", "x"), claimOf(set, "data-web-x", "x")
	going.DeletionTimestamp = &at
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
		d := newInstanceDeletions()
		d.note(idOf(set), "x", there)
		if got := d.of(set, c.pods, c.claims)["x"]; got != c.want {
			t.Errorf("%s: deleted = %v", name, got)
		}
		if got := d.of(set, ends, there)["x"]; got != c.want {
			t.Errorf("%s: remembered = %v", name, got)
		}
		if d.forget(idOf(set), "x"); d.of(set, ends, there)["x"] {
			t.Errorf("%s: not forgotten", name)
		}
	}
}
