// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	usher "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry/memory"
	"github.com/usher-dev/usher/test/model"
)

// takeWeights makes the simulation's Registration take weights from Pods.
func (s *simulation) takeWeights() {
	edit(s, namespace, "nginx", func(r *usher.Registration) { r.Spec.Instance.WeightFrom = fromAnnotation() })
}

func TestAChangedAnnotationIsRepairedAtOnce(t *testing.T) {
	s := newSimulation(t)
	s.takeWeights()
	s.populate(3)
	s.passes(2)
	before := s.stores["discovery"].Calls()
	s.passes(1)
	if have := s.calls("discovery", before); have != (memory.Calls{}) {
		t.Fatalf("a pass with nothing to do cost %+v", have)
	}
	pod := s.pods()[1]
	for _, c := range []struct {
		text string
		want int32
	}{{"30", 30}, {"", 10}, {"40", 40}, {"heavy", 10}} {
		s.weigh(pod, c.text)
		s.passes(1)
		for _, e := range s.stores["discovery"].Entries(service) {
			if e.Owner.PodUID == string(pod.UID) && e.Weight != c.want {
				t.Errorf("with the annotation %q the weight is %d, want %d", c.text, e.Weight, c.want)
			}
		}
		pod = s.pod(pod.Name)
		if model.Condition(pod, usher.ConditionRegistered).Status != corev1.ConditionTrue {
			t.Errorf("with the annotation %q the Pod says that it is not registered", c.text)
		}
	}
}
