// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
)

// versioned is a Pod "name uid version".
func versioned(text string) *corev1.Pod {
	fields := strings.Fields(text)
	if len(fields) == 0 {
		return &corev1.Pod{}
	}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fields[0], UID: types.UID(fields[1]), ResourceVersion: fields[2]}}
}

func podTexts(pods []*corev1.Pod) []string {
	return list.Map(pods, func(p *corev1.Pod) string { return p.Name + " " + string(p.UID) + " " + p.ResourceVersion })
}

// TestWithPods: the API server's versions of Pods count, and a Pod that is gone or that another one has replaced is
// none of the namespace any more.
func TestWithPods(t *testing.T) {
	for name, test := range map[string]struct {
		of, live string
		want     []string
		changed  bool
	}{
		"as it was":                  {"b 1", "b 1 5", []string{"b 1 5", "d 2 5"}, false},
		"newer":                      {"b 1", "b 1 6", []string{"b 1 6", "d 2 5"}, true},
		"gone":                       {"b 1", "", []string{"d 2 5"}, true},
		"another one of its name":    {"b 1", "b 9 6", []string{"d 2 5"}, true},
		"not known, and there":       {"c 3", "c 3 7", []string{"b 1 5", "c 3 7", "d 2 5"}, true},
		"not known, the last one":    {"e 3", "e 3 7", []string{"b 1 5", "d 2 5", "e 3 7"}, true},
		"not known, and not there":   {"c 3", "", []string{"b 1 5", "d 2 5"}, false},
		"known by another UID, gone": {"b 9", "", []string{"b 1 5", "d 2 5"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			before := Snapshot{Pods: []*corev1.Pod{versioned("b 1 5"), versioned("d 2 5")}}
			pod, uid, _ := strings.Cut(test.of, " ")
			after, changed := before.WithPods([]ReadPod{{Name: pod, UID: types.UID(uid), Pod: versioned(test.live)}})
			checktest.Same(t, "the Pods", test.want, podTexts(after.Pods))
			checktest.Same(t, "something has changed", test.changed, changed)
			checktest.Same(t, "the Pods before", []string{"b 1 5", "d 2 5"}, podTexts(before.Pods))
		})
	}
}

// TestWithChangesNothing: what makes a snapshot from another one leaves that as it was, whatever it was.
func TestWithChangesNothing(t *testing.T) {
	a, b := Target{Registry: "a"}, Target{Registry: "b"}
	first := errors.New("first")
	filled := func() Snapshot {
		return Snapshot{
			Registrations: []*usherv1alpha1.Registration{{ObjectMeta: metav1.ObjectMeta{Name: "web"}}},
			Registries:    map[string]RegistryState{"a": {}}, Known: map[string]bool{"demo/web": true},
			Listings: map[Target]Listing{a: {}}, Followed: map[Target]Followed{a: {}}, Due: map[Target]bool{a: true},
			Failed: map[Target]map[string]error{a: {"x": first}},
		}
	}
	before, empty := filled(), Snapshot{}
	for _, s := range []Snapshot{before, empty} {
		s.At(time.Unix(1, 0)).WithKnown("demo/db").WithDue(b).WithSweeps(map[Target]bool{b: true}).WithSuspects(nil).
			WithListings(map[Target]Listing{b: {}}, map[Target]Followed{b: {}}).
			WithRegistrations([]*usherv1alpha1.Registration{{}}, "demo/new").WithOwners(map[OwnerRef]Owner{}, map[string]Node{}).
			WithFailed(map[Target]map[string]error{a: {"x": errors.New("second"), "y": first}, b: {"z": first}}).
			WithRegistries(func(_ string, state RegistryState) RegistryState { state.Denied = true; return state })
	}
	checktest.Same(t, "it is as it was", true, reflect.DeepEqual(filled(), before) && reflect.DeepEqual(Snapshot{}, empty))
	later := before.WithFailed(map[Target]map[string]error{a: {"x": errors.New("second"), "y": first}, b: {}})
	checktest.Same(t, "the first reason counts", "first", later.Failed[a]["x"].Error())
	checktest.Same(t, "reasons in addition to it", 2, len(later.Failed[a]))
	checktest.Same(t, "targets without a reason", 1, len(later.Failed))
}
