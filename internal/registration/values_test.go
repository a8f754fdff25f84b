// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry/memory"
)

// weigh changes what the weight is taken from.
func (s *simulation) weigh(pod *corev1.Pod, weight string) {
	s.Helper()
	s.change(pod, "has the weight "+weight, func(pod *corev1.Pod) {
		if pod.Annotations == nil {
			pod.Annotations = map[string]string{}
		}
		pod.Annotations["example.com/weight"] = weight
	})
}

// takeWeights makes the simulation's Registration take weights from Pods.
func (s *simulation) takeWeights() {
	s.Helper()
	var r usherv1alpha1.Registration
	if err := s.live.Get(s.Context(), client.ObjectKey{Namespace: namespace, Name: "nginx"}, &r); err != nil {
		s.Fatal(err)
	}
	r.Spec.Instance.WeightFrom = fromAnnotation()
	if err := s.live.Update(s.Context(), &r); err != nil {
		s.Fatal(err)
	}
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
		s.weigh(&pod, c.text)
		s.passes(1)
		for _, e := range s.stores["discovery"].Entries(service) {
			if e.Owner.PodUID == string(pod.UID) && e.Weight != c.want {
				t.Errorf("with the annotation %q the weight is %d, want %d", c.text, e.Weight, c.want)
			}
		}
		pod = *s.lookup(pod.Name)
		if registeredStatus(&pod) != corev1.ConditionTrue {
			t.Errorf("with the annotation %q the Pod says that it is not registered", c.text)
		}
	}
}
