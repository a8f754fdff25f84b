// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
)

// A pass that listed and planned for long is followed by a longer pause, and
// none comes before it is over.
func TestPause(t *testing.T) {
	for spent, want := range map[time.Duration]time.Duration{
		0: 0, batchDelay / restFactor: 0, 100 * time.Millisecond: 300 * time.Millisecond, time.Minute: maxPause,
	} {
		clock := clocktesting.NewFakePassiveClock(epoch)
		r := &Reconciler{clock: clock, notes: map[string]*notes{}}
		p := &pass{Reconciler: r, notes: r.notesOf(namespace)}
		for range 2 {
			p.timed(func() { clock.SetTime(clock.Now().Add(spent / 2)) })
		}
		p.pause()
		if have := max(r.pauseLeft(namespace), 0); have != want {
			t.Errorf("after %s of work the next pass is put off by %s, want %s", spent, have, want)
		}
		if have := max(r.pauseLeft("another"), 0); have != 0 {
			t.Errorf("another namespace waits for %s", have)
		}
		if want == 0 {
			continue
		}
		// Without a client, a pass that does anything panics.
		result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: namespace}})
		if err != nil || result.RequeueAfter != want {
			t.Errorf("a pass within the pause returned %v, %v", result, err)
		}
		clock.SetTime(clock.Now().Add(want))
		if have := r.pauseLeft(namespace); have > 0 {
			t.Errorf("after the pause the next pass is put off by %s more", have)
		}
	}
}

// A cache that lags shows what is before our writes, and then what is after them. It
// may lag behind what we wrote to, which the API server has shown.
func TestOverlayCoversALaggingCache(t *testing.T) {
	at := func(version string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "a", ResourceVersion: version}}
	}
	a := overlay[*corev1.Pod]{}
	a.wrote(at("2"))
	a.wrote(at("5"))
	for cached, want := range map[string]string{"1": "5", "2": "5", "3": "5", "5": "5", "7": "7", "10": "10"} {
		pods := []*corev1.Pod{at(cached), {ObjectMeta: metav1.ObjectMeta{UID: "b", ResourceVersion: "1"}}}
		left := a.cover(pods)
		if have := pods[0].ResourceVersion; have != want || pods[1].UID != "b" {
			t.Errorf("a cache at version %s shows %s, want %s", cached, have, want)
		}
		if kept := len(left) == 1; kept != (want != cached) {
			t.Errorf("a cache at version %s: %d answers are kept", cached, len(left))
		}
	}
}
