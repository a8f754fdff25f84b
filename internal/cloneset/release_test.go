// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"encoding/json"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/google/go-cmp/cmp"
)

func owner(uid types.UID, controls bool) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Owner", Name: string(uid), UID: uid, Controller: &controls}
}

func ownedPod(owners ...metav1.OwnerReference) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "web-a", UID: "pod", ResourceVersion: "7", Labels: map[string]string{"app": "apart"}, Finalizers: []string{"example.com/f"},
		OwnerReferences: owners,
	}}
}

// patched applies a JSON patch to a Pod.
func patched(t *testing.T, pod *corev1.Pod, patch []byte) (*corev1.Pod, error) {
	t.Helper()
	operations, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		t.Fatal(err)
	}
	before, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	data, err := operations.Apply(before)
	if err != nil {
		return nil, err
	}
	after := &corev1.Pod{}
	return after, json.Unmarshal(data, after)
}

// TestReleasePatch: the set is removed from the Pod's owners, nothing else changes, and a
// Pod that has changed is left alone.
func TestReleasePatch(t *testing.T) {
	for name, owners := range map[string][]metav1.OwnerReference{
		"the only owner": {owner("set", true)},
		"one of two":     {owner("other", false), owner("set", true)},
	} {
		t.Run(name, func(t *testing.T) {
			pod := ownedPod(owners...)
			data, err := releasePatch(pod, "set")
			if err != nil {
				t.Fatal(err)
			}
			got, err := patched(t, pod, data)
			if err != nil {
				t.Fatal(err)
			}
			want := pod.DeepCopy()
			want.OwnerReferences = owners[:len(owners)-1]
			if len(want.OwnerReferences) == 0 {
				want.OwnerReferences = nil
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("Pod (-want +got):\n%s", diff)
			}
			for what, change := range map[string]func(*corev1.Pod){
				"another Pod of that name": func(p *corev1.Pod) { p.UID = "later" },
				"labels that match again":  func(p *corev1.Pod) { p.Labels["app"] = "web" },
				"another owner":            func(p *corev1.Pod) { p.OwnerReferences[0].UID = "third" },
				"a deletion":               func(p *corev1.Pod) { at := metav1.Now(); p.DeletionTimestamp = &at },
			} {
				live := pod.DeepCopy()
				change(live)
				if _, err := patched(t, live, data); err == nil {
					t.Errorf("%s does not stop the patch", what)
				}
			}
		})
	}
}

// TestLetGoAndBack: a released Pod stays hidden while the cache shows it as the set's,
// and returns with a later version that belongs to the set.
func TestLetGoAndBack(t *testing.T) {
	at := func(version string, owners ...metav1.OwnerReference) *corev1.Pod {
		pod := ownedPod(owners...)
		pod.ResourceVersion = version
		return pod
	}
	for _, test := range []struct {
		name   string
		cached *corev1.Pod
		shown  bool
	}{
		{"the version before", at("6", owner("set", true)), false},
		{"a later one of the set's", at("8", owner("set", true)), true},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newOverlay[*corev1.Pod]()
			w.note("set", podEntry{object: at("7"), deleted: true, at: now})
			pods, unverified := w.merge("set", []*corev1.Pod{test.cached}, now)
			if got := len(pods) == 1; got != test.shown || len(unverified) > 0 {
				t.Errorf("shown: %t, want %t; to be verified: %v", got, test.shown, unverified)
			}
		})
	}
	t.Run("one that was deleted never comes back", func(t *testing.T) {
		w := newOverlay[*corev1.Pod]()
		w.note("set", podEntry{object: at("7", owner("set", true)), deleted: true, at: now})
		if pods, _ := w.merge("set", []*corev1.Pod{at("8", owner("set", true))}, now); len(pods) != 0 {
			t.Errorf("shown: %v", pods)
		}
	})
}
