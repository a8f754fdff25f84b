// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func versioned(name, version string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: version}}
}

// TestMadeAndGoneWhileTheWatchHung: a new Pod counts until the cache can have it.
// One that is not there although later versions are was removed before the cache
// came to it, and nothing will ever tell of that.
func TestMadeAndGoneWhileTheWatchHung(t *testing.T) {
	for name, test := range map[string]struct {
		cached []*corev1.Pod
		want   []string
	}{
		"the cache is empty":         {nil, []string{"new 5"}},
		"the cache is older":         {[]*corev1.Pod{versioned("old", "4")}, []string{"new 5", "old 4"}},
		"the cache is later":         {[]*corev1.Pod{versioned("old", "6")}, []string{"old 6"}},
		"the cache is later, has it": {[]*corev1.Pod{versioned("new", "3"), versioned("old", "6")}, []string{"new 5", "old 6"}},
		"the version is no number":   {[]*corev1.Pod{versioned("old", "x")}, []string{"new 5", "old x"}},
	} {
		w := newOverlay[*corev1.Pod]()
		w.note("set", written{object: versioned("new", "5"), created: true, at: now})
		pods, _ := w.merge("set", test.cached, now.Add(time.Second))
		var got []string
		for _, pod := range pods {
			got = append(got, pod.Name+" "+pod.ResourceVersion)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: the pass sees %v, want %v", name, got, test.want)
		}
	}
}

// TestFoundGoneByAnOlderVersion: what an answer showed last stays known when the
// object is found gone by a version that the cache shows, so that no cache on its
// way from the one to the other brings it back.
func TestFoundGoneByAnOlderVersion(t *testing.T) {
	w := newOverlay[*corev1.Pod]()
	w.note("set", written{object: versioned("new", "7"), created: true, at: now})
	w.note("set", written{object: versioned("new", "3"), deleted: true, at: now})
	for _, cached := range [][]*corev1.Pod{nil, {versioned("old", "6")}, {versioned("new", "7"), versioned("old", "7")}} {
		pods, _ := w.merge("set", cached, now.Add(time.Second))
		if slices.ContainsFunc(pods, func(pod *corev1.Pod) bool { return pod.Name == "new" }) {
			t.Errorf("the cache shows %v, and the Pod is back", cached)
		}
	}
}
