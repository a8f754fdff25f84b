// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/scenariotest"
)

// TestPercentages: a percentage of more than all Pods is read as such, however many digits it has. Text
// that is no percentage is an error that names the field, and never 0.
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
		checktest.Same(t, "partition "+text, Count{Value: want, Percent: true}, checktest.Must(read(text))(t))
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
	set := &apps.CloneSet{}
	checktest.Same(t, "without a type", apps.UpdateReCreate, checktest.Must(SpecOf(set))(t).Method)
	set.Spec.UpdateStrategy.Type = apps.UpdateOnDelete
	checktest.Same(t, "with a type", apps.UpdateOnDelete, checktest.Must(SpecOf(set))(t).Method)
}

// TestGates: an annotation asks for each of them, by the value "true" or "false" alone.
func TestGates(t *testing.T) {
	set := &apps.CloneSet{}
	read := func(annotation, value string) string {
		set.Annotations = map[string]string{annotation: value}
		spec := checktest.Must(SpecOf(set))(t)
		return fmt.Sprint(spec.NoSurgeInPlace, spec.PartitionRollback, spec.PreparingAsUpdated, spec.RecreateForClaims)
	}
	for _, one := range []struct{ annotation, value, want string }{
		{apps.AnnotationSurgeInPlace, "false", "true false false false"},
		{apps.AnnotationSurgeInPlace, "no", "false false false false"},
		{apps.AnnotationPartitionRollback, "true", "false true false false"},
		{apps.AnnotationPartitionRollback, "1", "false false false false"},
		{apps.AnnotationPreparingUpdateAsUpdated, "true", "false false true false"},
		{apps.AnnotationRecreateForClaims, "true", "false false false true"},
	} {
		checktest.Same(t, one.annotation+"="+one.value, one.want, read(one.annotation, one.value))
	}
	checktest.NoError(t, json.Unmarshal([]byte(`[{"metadata":{"name":"data"},"spec":{"accessModes":1}}]`), &set.Spec.VolumeClaimTemplates))
	if _, err := SpecOf(set); err == nil || !strings.HasPrefix(err.Error(), "spec.volumeClaimTemplates data: ") {
		t.Errorf("an unreadable claim template: %v", err)
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
	got := list.Map(readSpread(&template), func(term SpreadTerm) string {
		return fmt.Sprintf("%s %v %v", term.TopologyKey, term.Selector, term.MatchLabelKeys)
	})
	checktest.Same(t, "constraints", []string{zoneKey + " app=web [pod-template-hash]", corev1.LabelHostname + " app=web []"}, got)
	plain := apps.NewPodTemplate(corev1.PodTemplateSpec{})
	var unreadable apps.PodTemplate
	checktest.NoError(t, unreadable.UnmarshalJSON([]byte(`{"spec":{"topologySpreadConstraints":"none"}}`)))
	for name, template := range map[string]*apps.PodTemplate{"without": &plain, "unreadable": &unreadable} {
		checktest.Same(t, "constraints of "+name, 0, len(readSpread(template)))
	}
}

// TestBudgets: how many Pods of a set an update may affect.
func TestBudgets(t *testing.T) {
	observe(t, "testdata/budgets.txt", func(_ *testing.T, s *Snapshot) []string {
		b := s.Spec.Budget()
		return []string{fmt.Sprintf("partition %d, unavailable %d, surge %d", b.Partition, b.MaxUnavailable, b.MaxSurge)}
	})
}

// TestDeletionOf: what becomes of the Pods depends on the hook, and on how the set is deleted.
func TestDeletionOf(t *testing.T) {
	scenariotest.Table(t, "testdata/deletion-of.txt", func(_ *testing.T, set apps.CloneSet) string {
		how, hold := DeletionOf(&set)
		return cmp.Or(string(how), "not deleted") + map[bool]string{true: ", and the finalizer holds it"}[hold]
	})
}

// TestReadPods: a PodInfo is reused only for the version of the Pod that was read, whichever other Pods
// were added or removed.
func TestReadPods(t *testing.T) {
	a, b, c, d := pod("a", 1), pod("b", 1), pod("c", 1), pod("d", 1)
	changed := said(podWords, b.DeepCopy(), "state PreparingDelete")
	before := ReadPods([]*corev1.Pod{a, b, d}, nil)
	for name, test := range map[string]struct {
		pods   []*corev1.Pod
		before []*PodInfo
		kept   int
	}{
		"nothing changed":     {[]*corev1.Pod{a, b, d}, before, 3},
		"nothing known":       {[]*corev1.Pod{a, b, d}, nil, 0},
		"one changed":         {[]*corev1.Pod{a, changed, d}, before, 2},
		"one gone":            {[]*corev1.Pod{a, d}, before, 2},
		"one new":             {[]*corev1.Pod{a, b, c, d}, before, 3},
		"new ones at the end": {[]*corev1.Pod{b, d, a, c}, before, 2},
		"all gone":            {nil, before, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got, kept := ReadPods(test.pods, test.before), 0
			for i, r := range got {
				if want := newPodInfo(test.pods[i]); r.pod != test.pods[i] || r.State() != want.State() || r.Revision() != want.Revision() {
					t.Errorf("%s is read as %s in state %s", test.pods[i].Name, r.pod.Name, r.State())
				}
				kept += one(slices.Contains(before, r))
			}
			if len(got) != len(test.pods) || kept != test.kept {
				t.Errorf("%d Pods read, %d of them from before; want %d and %d", len(got), kept, len(test.pods), test.kept)
			}
		})
	}
}

// TestPodInfosOfOthers: a snapshot's PodInfos count for its own Pods only.
func TestPodInfosOfOthers(t *testing.T) {
	s := snap("", pod("a", 1), pod("b", 1))
	s.PodInfos = ReadPods([]*corev1.Pod{pod("a", 1, "unready"), s.Pods[1]}, nil)
	checktest.Same(t, "Pods that are ready", 2, tally(s).Ready)
}

// TestAlike: two versions of a Pod differ only in fields that the planner reads, of the Pod or of its
// claims. Reasons that a kubelet alternates between are no difference.
func TestAlike(t *testing.T) {
	scenariotest.Table(t, "testdata/alike.txt", func(t *testing.T, test struct {
		// When describes a Pod; each of the other words is applied to it in addition.
		When          string
		Matters, Idle []string
	}) string {
		for changes, edits := range map[bool][]string{true: test.Matters, false: test.Idle} {
			for _, edit := range edits {
				alike := Alike(pod("a", 1, test.When), pod("a", 1, test.When, edit))
				checktest.Same(t, edit+": matters", changes, !alike)
			}
		}
		return fmt.Sprintf("%d matter, %d do not", len(test.Matters), len(test.Idle))
	})
}
