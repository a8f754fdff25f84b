// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// TestParsePercent: an illegal value is an error, and never 0.
func TestParsePercent(t *testing.T) {
	for text, want := range map[string]int{"0%": 0, "20%": 20, "100%": 100, "007%": 7, "9999%": 9999} {
		if got, err := ParsePercent(text); err != nil || got != (Count{Value: want, Percent: true}) {
			t.Errorf("ParsePercent(%q) = %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "%", "5", "-1%", "+1%", "1.5%", "20 %", "20%%", "abc%", "99999%", "９%"} {
		if got, err := ParsePercent(text); err == nil {
			t.Errorf("ParsePercent(%q) = %+v, want an error", text, got)
		}
	}
}

func percent(n int) Count { return Count{Value: n, Percent: true} }

// TestPartition: percentages round up, but leave one Pod to update.
func TestPartition(t *testing.T) {
	for _, test := range []struct {
		replicas int
		value    Count
		want     int
	}{
		{10, Count{}, 0}, {10, Count{Value: 3}, 3}, {10, Count{Value: 12}, 10}, {0, Count{Value: 3}, 0},
		{10, percent(0), 0}, {10, percent(30), 3}, {10, percent(31), 4}, {10, percent(91), 9}, {10, percent(99), 9}, {10, percent(100), 10},
		{10, percent(200), 10}, {3, percent(99), 2}, {2, percent(51), 1}, {1, percent(50), 1}, {1, percent(0), 0}, {0, percent(50), 0},
	} {
		spec := Spec{Replicas: test.replicas, Partition: test.value}
		if got := spec.partition(); got != test.want {
			t.Errorf("partition %+v of %d = %d, want %d", test.value, test.replicas, got, test.want)
		}
	}
}

// TestBudgets: maxSurge rounds up and does not count while paused; maxUnavailable rounds
// up without a surge and down with one.
func TestBudgets(t *testing.T) {
	for _, test := range []struct {
		name               string
		spec               Spec
		surge, unavailable int
	}{
		{"default", Spec{Replicas: 3, MaxUnavailable: percent(20)}, 0, 1},
		{"no replicas", Spec{MaxUnavailable: percent(20)}, 0, 0},
		{"numbers", Spec{Replicas: 10, MaxUnavailable: Count{Value: 2}, MaxSurge: Count{Value: 3}}, 3, 2},
		{"rounded down with a surge", Spec{Replicas: 9, MaxUnavailable: percent(20), MaxSurge: Count{Value: 1}}, 1, 1},
		{"rounded up without", Spec{Replicas: 9, MaxUnavailable: percent(20)}, 0, 2},
		{"surge rounded up", Spec{Replicas: 9, MaxUnavailable: percent(20), MaxSurge: percent(10)}, 1, 1},
		{"paused: no surge, so rounded up", Spec{Replicas: 9, MaxUnavailable: percent(20), MaxSurge: percent(10), Paused: true}, 0, 2},
		{"InPlaceOnly: no surge", Spec{Replicas: 9, MaxUnavailable: percent(20), MaxSurge: percent(10), Method: InPlaceOnly}, 0, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := test.spec.maxSurge(); got != test.surge {
				t.Errorf("maxSurge = %d, want %d", got, test.surge)
			}
			if got := test.spec.maxUnavailable(); got != test.unavailable {
				t.Errorf("maxUnavailable = %d, want %d", got, test.unavailable)
			}
		})
	}
}

// TestNamedPodsCountAsUnavailable: here the budget is stricter than OpenKruise's. A Pod
// that was named for deletion and does not serve is as missing as any other, and only a
// limited number of Pods that do not serve are removed at a time.
func TestNamedPodsCountAsUnavailable(t *testing.T) {
	marked := label(apps.LabelSpecifiedDelete, "true")
	broken := func(name string) *corev1.Pod { return pod(name, 1, marked, unready) }
	leaving := pod("a", 1, marked, state(apps.StatePreparingDelete), finalizers(keyDelete))
	goes := func(name string) string { return "delete " + name + " (SpecifiedDelete)" }
	expectEach(t, []planCase{
		{"one is not ready, and the other waits", snap(3, maxUnavailable(1), with(broken("a"), pod("b", 1, marked), pod("c", 1))), []string{goes("a")}},
		{"room for both", snap(3, maxUnavailable(2), with(broken("a"), pod("b", 1, marked), pod("c", 1))), []string{goes("a"), goes("b")}},
		{"one is at its gate, and the other waits", snap(3, maxUnavailable(1), hooks(preDelete()), with(leaving, pod("b", 1, marked), pod("c", 1))), nil},
		{"not ready ones go as far as replacements come", snap(4, maxUnavailable(1), with(broken("a"), broken("b"), broken("c"), pod("d", 1))), []string{goes("a")}},
		{"surplus ones that are not ready all go", snap(1, maxUnavailable(1), with(pod("a", 1, unready), pod("b", 1, unready), pod("d", 1))),
			[]string{"delete a (ScaleIn)", "delete b (ScaleIn)"}},
	})
}

// TestRecreateBesideNamedPods: a Pod whose in-place update has begun is paid for.
// Recreating it instead takes its place away for a time, and the removal of Pods named
// for deletion depends on that place; so it waits until they are replaced.
func TestRecreateBesideNamedPods(t *testing.T) {
	marked := pod("a", 1, label(apps.LabelSpecifiedDelete, "true"), unready)
	begun := func(options ...podOption) *corev1.Pod { return pod("b", 1, append(options, out(2, time.Minute))...) }
	set := func(n int, options ...option) *Snapshot {
		return snap(3, append(options, toRevision(rev(3, newEnv)), maxUnavailable(n), with(pod("c", 1, readyFor(0), unready)))...)
	}
	goes, made, back := "delete a (SpecifiedDelete)", "delete b (Recreate)", "move b (Conditions) InPlaceUpdateReady=True"
	for _, test := range []struct {
		name string
		s    *Snapshot
		want []string
		more bool
	}{
		{"nobody is named", set(1, with(begun(), pod("d", 1))), []string{made}, false},
		{"one of the same age", set(1, with(marked, begun())), []string{back, goes}, true},
		{"one of the same age, and room for both", set(2, with(marked, begun())), []string{made, goes}, false},
		{"an older one", set(1, with(marked, begun(created(time.Minute)))), []string{made}, false},
		{"at the gate before", set(1, hooks(preDelete()), with(
			pod("a", 1, label(apps.LabelSpecifiedDelete, "true"), unready, registered), begun(registered))),
			[]string{back, "move a (SpecifiedDelete) to PreparingDelete"}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			if p := expect(t, test.s, test.want...); p.More != test.more {
				t.Errorf("another pass at once: %v", p.More)
			}
		})
	}
}
