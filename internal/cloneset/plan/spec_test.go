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

// TestPercentages: more than all Pods is read as more than all, however many digits it has.
// What is no percentage is an error that names the field, and never 0.
func TestPercentages(t *testing.T) {
	set := &apps.CloneSet{}
	read := func(text string) (Count, error) {
		set.Spec.UpdateStrategy.Partition = (*apps.Count)(&intstr.IntOrString{Type: intstr.String, StrVal: text})
		spec, err := SpecOf(set)
		return spec.Partition, err
	}
	for text, want := range map[string]int{
		"0%": 0, "20%": 20, "100%": 100, "007%": 7, "150%": 150, "9999%": 9999, "10000%": 9999,
		"99999999999999999999%": 9999, "0000000%": 0, "000020%": 20,
	} {
		if got, err := read(text); err != nil || got != (Count{Value: want, Percent: true}) {
			t.Errorf("partition %q is read as %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{
		"", "%", "5", "-1%", "+1%", "1.5%", "20 %", "20%%", "abc%", "９%", "10000", "-10000%", "10 000%",
	} {
		if got, err := read(text); err == nil || !strings.HasPrefix(err.Error(), "spec.updateStrategy.partition: ") {
			t.Errorf("partition %q is read as %+v, %v", text, got, err)
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

// TestBudgets: what an update may do to a set's Pods.
func TestBudgets(t *testing.T) {
	observe(t, "testdata/budgets.txt", func(_ *testing.T, s *Snapshot) []string {
		b := s.Spec.Budget()
		return []string{fmt.Sprintf("partition %d, unavailable %d, surge %d", b.Partition, b.MaxUnavailable, b.MaxSurge)}
	})
}

// TestDeletionOf: the hook, and how the set is deleted, decide.
func TestDeletionOf(t *testing.T) {
	const ours, other = apps.FinalizerPreDelete, "example.com/other"
	empty := &apps.Lifecycle{PreDelete: &apps.LifecycleHook{MarkPodNotReady: true}}
	hooked := &apps.Lifecycle{PreDelete: &apps.LifecycleHook{LabelsHandler: map[string]string{keyDelete: "true"}}}
	for _, test := range []struct {
		name       string
		hooks      *apps.Lifecycle
		deleted    bool
		finalizers []string
		how        Deletion
		hold       bool
	}{
		{name: "no hook"},
		{name: "no hook any more", finalizers: []string{ours}},
		{name: "a hook without keys", hooks: empty},
		{name: "a hook", hooks: hooked, hold: true},
		{name: "in background", hooks: hooked, deleted: true, finalizers: []string{other, ours}, how: Drain, hold: true},
		{name: "in background, without a hook", deleted: true, finalizers: []string{ours}, how: LetGo},
		{name: "in background, the finalizer taken off", hooks: hooked, deleted: true, finalizers: []string{other}, how: LetGo},
		{name: "in foreground", hooks: hooked, deleted: true, finalizers: []string{ours, metav1.FinalizerDeleteDependents}, how: Drain},
		{name: "in foreground, without a hook", deleted: true, finalizers: []string{metav1.FinalizerDeleteDependents}, how: LetGo},
		{name: "without its Pods", hooks: hooked, deleted: true, finalizers: []string{ours, metav1.FinalizerOrphanDependents}, how: LetGo},
	} {
		t.Run(test.name, func(t *testing.T) {
			set := &apps.CloneSet{ObjectMeta: metav1.ObjectMeta{Finalizers: test.finalizers}}
			set.Spec.Lifecycle = test.hooks
			if test.deleted {
				set.DeletionTimestamp = &metav1.Time{Time: now}
			}
			if how, hold := DeletionOf(set); how != test.how || hold != test.hold {
				t.Errorf("%q, holds %t; want %q, %t", how, hold, test.how, test.hold)
			}
		})
	}
}
