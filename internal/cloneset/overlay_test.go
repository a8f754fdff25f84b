// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
)

// podEntry is an entry of the overlay of Pods.
type podEntry = overlayEntry[*corev1.Pod]

func versioned(name, version string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: version}}
}

// TestMadeAndGoneWhileTheWatchHung: a new Pod counts until the cache can have it. A Pod
// that is missing although later versions are there was deleted before the cache reached
// it, and no event will ever report that: it is looked up at once.
func TestMadeAndGoneWhileTheWatchHung(t *testing.T) {
	for name, test := range map[string]struct {
		cached []*corev1.Pod
		verify bool
	}{
		"the cache is empty":         {nil, false},
		"the cache is older":         {[]*corev1.Pod{versioned("old", "4")}, false},
		"the cache is later":         {[]*corev1.Pod{versioned("old", "6")}, true},
		"the cache is later, has it": {[]*corev1.Pod{versioned("new", "3"), versioned("old", "6")}, false},
		"the version is no number":   {[]*corev1.Pod{versioned("old", "x")}, false},
	} {
		w := newOverlay[*corev1.Pod]()
		w.note("set", podEntry{object: versioned("new", "5"), created: true, at: now})
		pods, unverified := w.merge("set", test.cached, now.Add(time.Second))
		if pods[0].Name != "new" || pods[0].ResourceVersion != "5" || (len(unverified) > 0) != test.verify {
			t.Errorf("%s: the pass sees %s %s, to be verified: %v", name, pods[0].Name, pods[0].ResourceVersion, len(unverified) > 0)
		}
	}
}

// TestFoundGoneByAnOlderVersion: if an object is found gone through an older, cached
// version, the last answer stays known, so that no cache between the two versions brings
// it back.
func TestFoundGoneByAnOlderVersion(t *testing.T) {
	w := newOverlay[*corev1.Pod]()
	w.note("set", podEntry{object: versioned("new", "7"), created: true, at: now})
	w.note("set", podEntry{object: versioned("new", "3"), deleted: true, at: now})
	for _, cached := range [][]*corev1.Pod{nil, {versioned("old", "6")}, {versioned("new", "7"), versioned("old", "7")}} {
		pods, _ := w.merge("set", cached, now.Add(time.Second))
		if slices.ContainsFunc(pods, func(pod *corev1.Pod) bool { return pod.Name == "new" }) {
			t.Errorf("the cache shows %v, and the Pod is back", cached)
		}
	}
}

// TestNewPodGoneAtOnce: a Pod that is deleted before its gates are opened no longer
// counts, and the next pass follows at once.
func TestNewPodGoneAtOnce(t *testing.T) {
	set, r := web(), reconcilerOf()
	pod := versioned("web-a", "5")
	pod.Namespace, pod.Spec.ReadinessGates = set.Namespace, []corev1.PodReadinessGate{{ConditionType: apps.ConditionInPlaceUpdateReady}}
	r.pods.note(set.UID, podEntry{object: pod, created: true, at: now})
	made, err := r.openGates(t.Context(), set, pod)
	if made != nil || !(outcome{action: plan.Action{Verb: plan.Create}, err: err}).conflicted() {
		t.Errorf("made %v: %v", made, err)
	}
	if pods, _ := r.pods.merge(set.UID, nil, now); len(pods) > 0 {
		t.Errorf("the next pass sees %d Pods", len(pods))
	}
}
