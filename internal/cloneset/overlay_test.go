// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/cloneset/revision"
)

type podEntry = overlayEntry[*corev1.Pod]

// shown lists Pods as "name version".
func shown(pods []*corev1.Pod) string {
	var out []string
	for _, pod := range pods {
		out = append(out, pod.Name+" "+pod.ResourceVersion)
	}
	return strings.Join(out, ", ")
}

// TestMerge: what a pass sees of answers that the cache does not show, and which of them
// it verifies at once.
func TestMerge(t *testing.T) {
	pod := func(name, version string) *corev1.Pod { return podOf(web(), name, at(version)) }
	created := func(object *corev1.Pod) podEntry { return podEntry{object: object, created: true, at: now} }
	deleted := func(object *corev1.Pod) podEntry { return podEntry{object: object, deleted: true, at: now} }
	foundGone := []podEntry{created(pod("new", "7")), deleted(pod("new", "3"))}
	for name, test := range map[string]struct {
		entries []podEntry
		cached  []*corev1.Pod
		want    string
		verify  bool
	}{
		// A new Pod counts until the cache can have it. A Pod that is missing although later
		// versions are there was deleted before the cache reached it, and no event will ever
		// report that.
		"created, the cache is empty":         {[]podEntry{created(pod("new", "5"))}, nil, "new 5", false},
		"created, the cache is older":         {[]podEntry{created(pod("new", "5"))}, []*corev1.Pod{pod("old", "4")}, "new 5, old 4", false},
		"created, the cache is later":         {[]podEntry{created(pod("new", "5"))}, []*corev1.Pod{pod("old", "6")}, "new 5, old 6", true},
		"created, the cache is later, has it": {[]podEntry{created(pod("new", "5"))}, []*corev1.Pod{pod("new", "3"), pod("old", "6")}, "new 5, old 6", false},
		"the version is no number":            {[]podEntry{created(pod("new", "5"))}, []*corev1.Pod{pod("old", "x")}, "new 5, old x", false},
		// The last answer stays known, so that no cache between the two versions brings the
		// Pod back.
		"found gone by an older version":                  {foundGone, nil, "", false},
		"found gone, the cache is between":                {foundGone, []*corev1.Pod{pod("old", "6")}, "old 6", false},
		"found gone, the cache has it":                    {foundGone, []*corev1.Pod{pod("new", "7"), pod("old", "7")}, "old 7", false},
		"released, the version before":                    {[]podEntry{deleted(podOf(nil, "a", at("7")))}, []*corev1.Pod{pod("a", "6")}, "", false},
		"released, and a later one of the set's":          {[]podEntry{deleted(podOf(nil, "a", at("7")))}, []*corev1.Pod{pod("a", "8")}, "a 8", false},
		"deleted: a later version does not bring it back": {[]podEntry{deleted(pod("a", "7"))}, []*corev1.Pod{pod("a", "8")}, "", false},
	} {
		o := newOverlay[*corev1.Pod]()
		for _, entry := range test.entries {
			o.note("set", entry)
		}
		pods, unverified := o.merge("set", test.cached, now.Add(time.Second))
		if got := shown(pods); got != test.want || (len(unverified) > 0) != test.verify {
			t.Errorf("%s: the pass sees %q, want %q; verifies %v", name, got, test.want, unverified)
		}
	}
}

// TestVerificationIsDue: an answer that the cache has not confirmed triggers a pass, since
// no event may.
func TestVerificationIsDue(t *testing.T) {
	entry := func(name string, age time.Duration, created, deleted bool) podEntry {
		return podEntry{object: podOf(nil, name, at("5")), created: created, deleted: deleted, at: now.Add(-age)}
	}
	for name, test := range map[string]struct {
		entries []podEntry
		want    time.Time
	}{
		"nothing":              {},
		"the oldest one":       {[]podEntry{entry("a", time.Second, true, false), entry("b", 3*time.Second, true, false)}, now.Add(verifyAfter - 3*time.Second)},
		"one that goes":        {[]podEntry{entry("a", 0, false, true)}, now.Add(verifyAfter)},
		"made, and gone again": {[]podEntry{entry("a", 0, true, true)}, time.Time{}},
	} {
		o := newOverlay[*corev1.Pod]()
		for _, e := range test.entries {
			o.note("set", e)
		}
		o.note("another", entry("c", time.Hour, true, false))
		if got := o.verifyAt("set"); !got.Equal(test.want) {
			t.Errorf("%s: due at %v, want %v", name, got, test.want)
		}
		if _, unverified := o.merge("set", nil, o.verifyAt("set")); len(unverified) != 0 != (name == "the oldest one") {
			t.Errorf("%s: to be verified then: %v", name, unverified)
		}
	}
}

// TestStaleCacheIsVerified: if the cache has lagged for too long, a pass verifies the
// entry and decides on what it finds, not on the entry.
func TestStaleCacheIsVerified(t *testing.T) {
	for name, test := range map[string]struct {
		live []client.Object
		want string
	}{
		"it is as it was answered":      {[]client.Object{podOf(web(), "web-a", at("3"))}, "web-a 3"},
		"it has changed since":          {[]client.Object{podOf(web(), "web-a", at("4"))}, "web-a 4"},
		"it belongs to nobody any more": {[]client.Object{podOf(nil, "web-a", at("4"))}, ""},
		"it is gone":                    {nil, ""},
	} {
		r, _ := reconcilerOn(server(t, podOf(web(), "web-a", at("2"))))
		r.Reader = server(t, test.live...)
		r.pods.note("set", podEntry{object: podOf(web(), "web-a", at("3")), at: now.Add(-verifyAfter - time.Second)})
		pods, err := r.ownPods(t.Context(), web(), now)
		if got := shown(pods); err != nil || got != test.want {
			t.Errorf("%s: the pass sees %q, want %q; %v", name, got, test.want, err)
		}
	}
}

// TestDrainCountsFromWhenItIsRead: what a pass reads along the way may be younger than the
// pass, so a drain that it finds there does not date from the pass's start.
func TestDrainCountsFromWhenItIsRead(t *testing.T) {
	r, _ := reconcilerOn(server(t, web(), podOf(web(), "web-a", inUpdate(corev1.ConditionFalse, now))))
	snapshot, _, err := r.prepare(t.Context(), web(), now.Add(-3*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if got := snapshot.Drained[types.UID("uid-web-a")]; !got.Equal(now) {
		t.Errorf("drained since %s, want %s", got, now)
	}
}

// TestNewPodGoneAtOnce: a Pod that is deleted before its gates are opened no longer
// counts, and the next pass follows at once.
func TestNewPodGoneAtOnce(t *testing.T) {
	r, _ := reconcilerOn(server(t))
	pod := podOf(web(), "web-a", at("5"))
	pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: apps.ConditionInPlaceUpdateReady}}
	r.pods.noteCreated(web(), pod, now)
	made, err := r.openGates(t.Context(), web(), pod)
	if made != nil || !(outcome{action: plan.Action{Verb: plan.Create}, err: err}).conflicted() {
		t.Errorf("made %v: %v", made, err)
	}
	if pods, _ := r.pods.merge("set", nil, now); len(pods) > 0 {
		t.Errorf("the next pass sees %s", shown(pods))
	}
}

// TestPodTakenAwayMidAction: a Pod that someone releases while an action on it is under
// way is left alone from then on, in this pass and the next.
func TestPodTakenAwayMidAction(t *testing.T) {
	seen, c := podOf(web(), "web-a"), server(t, podOf(nil, "web-a"))
	r, _ := reconcilerOn(c)
	done := r.perform(t.Context(), web(), plan.Action{
		Verb: plan.Update, Pod: seen, To: apps.StateUpdating, Revision: &revision.Revision{Name: "web-2"}, Change: &inplace.Change{},
		Conditions: []plan.Condition{{Type: apps.ConditionInPlaceUpdateReady, Status: corev1.ConditionTrue, Reason: plan.ReasonInService}},
	})
	if !done.conflicted() {
		t.Errorf("the action ends with %v, not with a conflict", done.err)
	}
	if state := read(t, c, seen).Labels[apps.LabelLifecycleState]; state != "" {
		t.Errorf("it moved to %s", state)
	}
	if pods, _ := r.pods.merge("set", []*corev1.Pod{seen}, now); len(pods) > 0 {
		t.Error("the next pass, with a cache that lags, takes it for the set's")
	}
}

// TestDrains: a drain counts from when it was known to be in effect, whatever time the
// write gives.
func TestDrains(t *testing.T) {
	pod := func(status corev1.ConditionStatus, at time.Time) *corev1.Pod {
		return podOf(nil, "a", inUpdate(status, at))
	}
	out, in := corev1.ConditionFalse, corev1.ConditionTrue
	type look struct {
		pod  *corev1.Pod
		at   time.Duration
		want time.Duration // -1: not drained
	}
	tests := map[string][]look{
		"in service":                                  {{pod(in, now), 0, -1}},
		"the answer came late":                        {{pod(out, now), 20 * time.Second, 20 * time.Second}, {pod(out, now), 30 * time.Second, 20 * time.Second}},
		"begun by another process":                    {{pod(out, now), 10 * time.Minute, maxFlight}},
		"back in service, and out again":              {{pod(out, now), time.Second, time.Second}, {pod(in, now), 2 * time.Second, -1}, {pod(out, now), 9 * time.Second, 9 * time.Second}},
		"a later drain, the one between was not seen": {{pod(out, now), time.Second, time.Second}, {pod(out, now.Add(40*time.Second)), 42 * time.Second, 42 * time.Second}},
	}
	for name, looks := range tests {
		t.Run(name, func(t *testing.T) {
			d := newDrains()
			for _, look := range looks {
				since, drained := d.of(plan.ReadPods([]*corev1.Pod{look.pod}, nil), now.Add(look.at))["uid-a"]
				if drained != (look.want >= 0) || drained && !since.Equal(now.Add(look.want)) {
					t.Errorf("after %s: drained %t since %s, want %s", look.at, drained, since.Sub(now), look.want)
				}
			}
			d.forget("uid-a")
			if len(d.known) > 0 {
				t.Errorf("a Pod that is gone is remembered: %v", d.known)
			}
		})
	}
}
