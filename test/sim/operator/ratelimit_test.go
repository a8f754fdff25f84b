// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usher "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/test/model"
)

// limitRate gives Registry discovery a rate limit.
func (s *simulation) limitRate(limit *usher.RateLimit) {
	edit(s, "", "discovery", func(r *usher.Registry) { r.Spec.RateLimit = limit })
}

// lists counts our entries in both registries.
func (s *simulation) lists(discovery, backup int) {
	s.Helper()
	if s.listedIn("discovery") != discovery || s.listedIn("backup") != backup {
		s.Errorf("discovery lists %d and backup %d Pods, want %d and %d",
			s.listedIn("discovery"), s.listedIn("backup"), discovery, backup)
	}
}

func TestRateLimit(t *testing.T) {
	s := newSimulation(t)
	burst := int32(8)
	s.limitRate(&usher.RateLimit{ChangesPerSecond: 4, Burst: &burst})
	s.populate(18)
	s.passes(1)
	s.lists(8, 18)
	s.passes(3)
	s.lists(8, 18)
	if model.Condition(s.pod("nginx-017"), usher.ConditionRegistered).Status == corev1.ConditionTrue {
		t.Error("a Pod whose turn has not come says that it is registered")
	}
	s.wait(2 * time.Second)
	s.passes(1)
	s.lists(16, 18)

	// One that leaves goes before those that join.
	s.wait(time.Second / 4)
	pod := s.pod("nginx-000")
	s.enter(pod, apps.StatePreparingUpdate, "")
	s.passes(1)
	s.lists(15, 17)

	s.refresh()
	result, err := s.operator.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: namespace}})
	if err != nil || result.RequeueAfter != time.Second/2 {
		t.Errorf("two that wait are looked at again after %s, %v; want half a second", result.RequeueAfter, err)
	}
	s.limitRate(nil)
	s.passes(1)
	s.lists(17, 17)
}
