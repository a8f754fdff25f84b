// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

const weightPath = "metadata.annotations['example.com/weight']"

func weightFrom() *usherv1alpha1.PodSource {
	return &usherv1alpha1.PodSource{FieldRef: usherv1alpha1.FieldRef{FieldPath: weightPath}}
}

// annotate puts a value where weightPath reads it.
func (b *podBuilder) annotate(value string) *podBuilder {
	b.pod.Annotations = map[string]string{"example.com/weight": value}
	return b
}

// TestValues: what is taken from a Pod, and what cannot be. The Registration stays as it is.
func TestValues(t *testing.T) {
	observe(t, "testdata/values.txt", func(f *fixture) []string {
		given := f.Registrations[0].DeepCopy()
		v := valuesOf(&f.Registrations[0].Spec.Instance, f.Pods[0])
		if diff := cmp.Diff(given, f.Registrations[0]); diff != "" {
			t.Errorf("the Registration itself was changed: %s", diff)
		}
		lines := []string{fmt.Sprint("weight ", v.weight)}
		for _, key := range slices.Sorted(maps.Keys(v.metadata)) {
			lines = append(lines, key+"="+v.metadata[key])
		}
		return append(lines, v.bad...)
	})
}

// TestServiceMatters: the kubelet's answer to the gate makes a pass look again.
func TestServiceMatters(t *testing.T) {
	f := newFixture()
	b := f.add("a", "")
	b.gate("on")
	before := b.condition(usherv1alpha1.ConditionRegistered, corev1.ConditionFalse).pod.DeepCopy()
	if b.gate("off"); !Matters(before, b.pod) {
		t.Error("the kubelet has answered, and nobody looks")
	}
}
