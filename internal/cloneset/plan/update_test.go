// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
)

// five Pods of r1, in a set that rolls out r2 one at a time.
func five(options ...option) *Snapshot {
	all := []option{toRevision(rev(2)), maxUnavailable(1), with(pods(1, "a", "b", "c", "d", "e")...)}
	return snap(5, append(all, options...)...)
}

func TestUpdateOrder(t *testing.T) {
	order := func(s *Snapshot) []string {
		toRevision(rev(2))(s)
		var out []string
		for _, v := range s.orderForUpdate(slices.DeleteFunc(newPass(s).pods, func(v *podState) bool { return v.isUpdated })) {
			out = append(out, v.pod.Name)
		}
		return out
	}
	weights := func(s *Snapshot) {
		for value, weight := range map[string]int{"gold": 10, "silver": 5} {
			s.Spec.Priority.Weights = append(s.Spec.Priority.Weights, WeightTerm{Weight: weight, Selector: labels.SelectorFromSet(labels.Set{"class": value})})
		}
		s.Spec.Priority.Weights = append(s.Spec.Priority.Weights, WeightTerm{Weight: 6, Selector: labels.SelectorFromSet(labels.Set{"zone": "z"})})
	}
	keys := func(s *Snapshot) { s.Spec.Priority.OrderKeys = []string{"order", "second"} }
	scattered := func(s *Snapshot) { s.Spec.Scatter = []ScatterTerm{{Key: "app", Value: "db"}} }
	class := func(value string) podOption { return label("class", value) }
	ten := func(s *Snapshot) {
		for i := range 10 {
			p := pod(fmt.Sprintf("p%d", i), 1)
			if i < 3 {
				label("app", "db")(p)
			}
			with(p)(s)
		}
	}
	for _, test := range []struct {
		name string
		s    *Snapshot
		want string
	}{
		{"least useful first", snap(5, with(pod("a", 1), pod("b", 1, unready), pod("c", 1, phase(corev1.PodUnknown), unready),
			pod("d", 1, phase(corev1.PodPending), unready), pod("e", 1, pending))), "e d c b a"},
		{"ties by name", snap(3, with(pods(1, "c", "a", "b")...)), "a b c"},
		{"weights add up", snap(4, weights, with(pod("a", 1), pod("b", 1, class("silver")), pod("c", 1, class("gold")), pod("d", 1, class("silver"), label("zone", "z")))), "d c b a"},
		{"readiness before weights", snap(2, weights, with(pod("a", 1, class("gold")), pod("b", 1, unready))), "b a"},
		{"trailing number, larger first", snap(4, keys, with(pod("a", 1, label("order", "x-9")), pod("b", 1, label("order", "x-10")), pod("c", 1), pod("d", 1, label("order", "none")))), "b a d c"},
		{"first listed key wins", snap(3, keys, with(pod("a", 1, label("second", "99")), pod("b", 1, label("order", "1")), pod("c", 1, label("second", "100")))), "b c a"},
		{"scatter: 3 of 10", snap(10, ten, scattered), "p0 p3 p4 p5 p6 p1 p7 p8 p9 p2"},
		{"scatter on: the first is updated", snap(10, ten, scattered, func(s *Snapshot) { s.Pods[0] = pod("p0", 2, label("app", "db")) }), "p3 p4 p5 p6 p1 p7 p8 p9 p2"},
		{"scatter on: ahead of its place", snap(10, ten, scattered, func(s *Snapshot) {
			s.Pods[0], s.Pods[1] = pod("p0", 2, label("app", "db")), pod("p1", 2, label("app", "db"))
		}), "p3 p4 p5 p6 p7 p8 p9 p2"},
		{"scatter on: behind its place", snap(4, scattered, with(pod("a", 2), pod("b", 2), pod("c", 1), pod("d", 1, label("app", "db")))), "d c"},
		{"scatter nothing", snap(2, scattered, with(pods(1, "a", "b")...)), "a b"},
		{"scatter all", snap(2, scattered, with(pod("a", 1, label("app", "db")), pod("b", 1, label("app", "db")))), "a b"},
		{"scatter one", snap(3, scattered, with(pod("a", 1), pod("b", 1, label("app", "db")), pod("c", 1))), "b a c"},
		{"begun ones stay first", snap(3, weights, with(pod("a", 1, class("gold")), pod("b", 1, unready), pod("c", 1, state(apps.StatePreparingUpdate)))), "c b a"},
	} {
		t.Run(test.name, func(t *testing.T) {
			for range 3 { // the order does not matter
				if got := strings.Join(order(test.s), " "); got != test.want {
					t.Errorf("order = %s, want %s", got, test.want)
				}
				slices.Reverse(test.s.Pods)
			}
		})
	}
}

// TestNotTooManyAtOnce: Pods that have just left service for an update are waited for, at
// most a second, before others follow.
func TestNotTooManyAtOnce(t *testing.T) {
	leaving := func(name string) *corev1.Pod { return pod(name, 1, out(2, time.Second), updating(2)) }
	for _, test := range []struct {
		name string
		out  []time.Duration
		want int
		wake time.Duration
	}{
		{"nobody is out", nil, 1, 0},
		{"one has just left", []time.Duration{400 * time.Millisecond}, 1, 600 * time.Millisecond},
		{"two have just left", []time.Duration{400 * time.Millisecond, 700 * time.Millisecond}, 0, 300 * time.Millisecond},
		{"two are slow", []time.Duration{time.Second, 3 * time.Second}, 1, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := snap(8, method(InPlaceIfPossible), toRevision(rev(2)), maxUnavailable(8), starts(2))
			s.Drained = map[types.UID]time.Time{}
			for i, since := range test.out {
				p := leaving(fmt.Sprintf("u%d", i))
				s.Drained[p.UID] = now.Add(-since)
				with(p)(s)
			}
			for i := range 8 - len(test.out) {
				with(pod(fmt.Sprintf("v%d", i), 1))(s)
			}
			p := Make(s)
			if started := count(p, func(a Action) bool { return a.Verb == Update }); started != test.want {
				t.Errorf("%d Pods leave, want %d: %v", started, test.want, p.Actions)
			}
			expectRequeue(t, p, test.wake)
		})
	}
}

// TestChangeIsWorkedOutOnce for all Pods of a revision.
func TestChangeIsWorkedOutOnce(t *testing.T) {
	p := newPass(five(method(InPlaceIfPossible)))
	first, err := p.change(p.pods[0])
	second, _ := p.change(p.pods[1])
	if err != nil || first != second {
		t.Errorf("two changes for one revision: %p %p %v", first, second, err)
	}
	p = newPass(five(method(InPlaceIfPossible), toRevision(rev(2, newEnv))))
	var refusal *inplace.Refusal
	if _, err := p.change(p.pods[0]); !errors.As(err, &refusal) {
		t.Errorf("err = %v, want a refusal", err)
	}
}

// TestRemovedCondition: a condition that is put back names the revision of the update.
func TestRemovedCondition(t *testing.T) {
	s := snap(1, toRevision(rev(2)), with(pod("a", 1, updating(2), withoutInPlaceCondition)))
	if c := Make(s).Actions[0].Conditions[0]; c.Message != "web-r2" {
		t.Errorf("the condition names %q", c.Message)
	}
}
