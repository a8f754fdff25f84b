// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// BenchmarkPlan plans for namespaces of many Pods: all settled, as between
// rollouts, and all draining, as in the middle of the largest one.
func BenchmarkPlan(b *testing.B) {
	for _, pods := range []int{1_000, 5_000, 20_000} {
		settled, draining := newFixture(), newFixture()
		for n := range pods {
			settled.add(fmt.Sprintf("nginx-%05d", n), appsv1alpha1.StateNormal).registered("discovery")
			draining.add(fmt.Sprintf("nginx-%05d", n), appsv1alpha1.StatePreparingUpdate).finalizers(ours).
				condition(usherv1alpha1.ConditionRegistered, corev1.ConditionTrue)
		}
		b.Run(fmt.Sprintf("needs of %d settled", pods), func(b *testing.B) {
			for b.Loop() {
				Needs(settled.Snapshot)
			}
		})
		b.Run(fmt.Sprintf("%d settled", pods), func(b *testing.B) {
			for b.Loop() {
				Make(settled.Snapshot)
			}
		})
		b.Run(fmt.Sprintf("%d draining", pods), func(b *testing.B) {
			for b.Loop() {
				Make(draining.Snapshot)
			}
		})
	}
}
