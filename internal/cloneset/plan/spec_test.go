// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// TestLargePercentages: more than all Pods is read as more than all, however many digits
// it has. What is no percentage stays an error.
func TestLargePercentages(t *testing.T) {
	set := &apps.CloneSet{}
	for text, want := range map[string]int{
		"150%": 150, "9999%": 9999, "10000%": 9999, "99999999999999999999%": 9999, "0000000%": 0, "000020%": 20,
	} {
		set.Spec.UpdateStrategy.Partition = (*apps.Count)(&intstr.IntOrString{Type: intstr.String, StrVal: text})
		spec, err := SpecOf(set)
		if err != nil || spec.Partition != (Count{Value: want, Percent: true}) {
			t.Errorf("partition %q is read as %+v, %v", text, spec.Partition, err)
		}
	}
	for _, text := range []string{"1.5%", "10000", "-10000%", "10 000%", "10000%%"} {
		set.Spec.UpdateStrategy.Partition = (*apps.Count)(&intstr.IntOrString{Type: intstr.String, StrVal: text})
		if spec, err := SpecOf(set); err == nil || !strings.HasPrefix(err.Error(), "spec.updateStrategy.partition: ") {
			t.Errorf("partition %q is read as %+v, %v", text, spec.Partition, err)
		}
	}
}

// TestTypes: the empty type is ReCreate.
func TestTypes(t *testing.T) {
	for kind, want := range map[apps.UpdateStrategyType]Method{
		"": Recreate, apps.UpdateReCreate: Recreate, apps.UpdateInPlaceOnly: InPlaceOnly, apps.UpdateOnDelete: OnDelete,
	} {
		set := &apps.CloneSet{}
		set.Spec.UpdateStrategy.Type = kind
		if spec, err := SpecOf(set); err != nil || spec.Method != want {
			t.Errorf("type %q is read as %q, %v", kind, spec.Method, err)
		}
	}
}

// TestReadSpread: the template's constraints that count a Pod.
func TestReadSpread(t *testing.T) {
	web := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	template := apps.NewPodTemplate(corev1.PodTemplateSpec{Spec: corev1.PodSpec{TopologySpreadConstraints: []corev1.TopologySpreadConstraint{
		{TopologyKey: zoneKey, LabelSelector: web, MatchLabelKeys: []string{"pod-template-hash"}},
		{TopologyKey: "counts-nothing"},
		{TopologyKey: "illegal", LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"": "!"}}},
		{TopologyKey: corev1.LabelHostname, LabelSelector: web},
	}}})
	var got []string
	for _, term := range readSpread(&template) {
		got = append(got, fmt.Sprintf("%s %v %v", term.TopologyKey, term.Selector, term.MatchLabelKeys))
	}
	if diff := cmp.Diff([]string{zoneKey + " app=web [pod-template-hash]", corev1.LabelHostname + " app=web []"}, got); diff != "" {
		t.Errorf("constraints (-want +got):\n%s", diff)
	}
	plain := apps.NewPodTemplate(corev1.PodTemplateSpec{})
	var unreadable apps.PodTemplate
	if err := unreadable.UnmarshalJSON([]byte(`{"spec":{"topologySpreadConstraints":"none"}}`)); err != nil {
		t.Fatal(err)
	}
	for name, template := range map[string]*apps.PodTemplate{"without": &plain, "unreadable": &unreadable} {
		if got := readSpread(template); got != nil {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestParsePercent: an illegal value is an error, and never 0.
func TestParsePercent(t *testing.T) {
	for text, want := range map[string]int{"0%": 0, "20%": 20, "100%": 100, "007%": 7, "9999%": 9999} {
		if got, err := parsePercent(text); err != nil || got != (Count{Value: want, Percent: true}) {
			t.Errorf("parsePercent(%q) = %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "%", "5", "-1%", "+1%", "1.5%", "20 %", "20%%", "abc%", "９%"} {
		if got, err := parsePercent(text); err == nil {
			t.Errorf("parsePercent(%q) = %+v, want an error", text, got)
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
