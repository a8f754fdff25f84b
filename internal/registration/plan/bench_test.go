// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// BenchmarkPlan plans for namespaces of many Pods: all settled, as between
// rollouts, and all draining, as in the middle of the largest one.
func BenchmarkPlan(b *testing.B) {
	for _, pods := range []int{1_000, 5_000, 20_000} {
		settled, draining := crowd(pods), newFixture()
		for n := range pods {
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

// crowd are registered Pods, with weights of their own.
func crowd(pods int) *fixture {
	f := newFixture()
	f.Registrations[0].Spec.Instance.WeightFrom = weightFrom()
	for n := range pods {
		f.add(fmt.Sprintf("nginx-%05d", n), appsv1alpha1.StateNormal).annotate("10").registered("discovery")
	}
	return f
}

// BenchmarkPass asks all that a pass over 5,000 Pods asks, of which one has changed since the
// pass before.
func BenchmarkPass(b *testing.B) {
	for _, listed := range []bool{false, true} { // as in a rollout, or while nothing is to be done
		b.Run(fmt.Sprintf("one of 5000 changed, listed %t", listed), func(b *testing.B) {
			f := crowd(5_000)
			f.Memory = &Memory{}
			listing := f.Listings[target("discovery")]
			version := 1
			for b.Loop() {
				version++
				next := f.Pods[2_500].DeepCopy()
				next.ResourceVersion, next.Labels["track"] = fmt.Sprint(version), fmt.Sprint(version)
				f.Pods[2_500] = next
				f.Listings = map[Target]Listing{}
				Outdated(f.Snapshot)
				Targets(f.Snapshot)
				Needs(f.Snapshot)
				if listed {
					f.Listings[target("discovery")] = Listing{Entries: slices.Clone(listing.Entries)}
					Make(f.Snapshot)
				}
				Make(f.Snapshot)
			}
		})
	}
}
