// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// BenchmarkDraining plans from scratch in the middle of the largest rollout.
func BenchmarkDraining(b *testing.B) {
	f := newFixture()
	for n := range 5_000 {
		f.add(fmt.Sprintf("nginx-%05d", n), appsv1alpha1.StatePreparingUpdate).finalizers(usherv1alpha1.Finalizer).
			condition(usherv1alpha1.ConditionRegistered, corev1.ConditionTrue)
	}
	for b.Loop() {
		Make(f.Snapshot)
	}
}

// manyPods are registered Pods, with weights of their own.
func manyPods(pods int) *fixture {
	f := newFixture()
	f.Registrations[0].Spec.Instance.WeightFrom = weightFrom()
	for n := range pods {
		f.add(fmt.Sprintf("nginx-%05d", n), appsv1alpha1.StateNormal).annotate("10").registered("discovery")
	}
	return f
}

// BenchmarkPass asks all that a pass over 5,000 Pods asks, of which one has changed since the
// pass before: with and without a memory, with and without a listing, as in a rollout.
func BenchmarkPass(b *testing.B) {
	for _, memory := range []*Memory{nil, {}} {
		for _, listed := range []bool{false, true} {
			b.Run(fmt.Sprintf("memory %t, listed %t", memory != nil, listed), func(b *testing.B) {
				f := manyPods(5_000)
				f.Memory = memory
				listing := f.Listings[target("discovery")]
				for version := 2; b.Loop(); version++ {
					next := f.Pods[2_500].DeepCopy()
					next.ResourceVersion, next.Labels["track"] = fmt.Sprint(version), fmt.Sprint(version)
					f.Pods[2_500] = next
					f.pass(listed, listing.Entries)
				}
			})
		}
	}
}

// pass asks what a pass asks.
func (f *fixture) pass(listed bool, entries []registry.Entry) {
	f.Listings = map[Target]Listing{}
	Outdated(f.Snapshot)
	Targets(f.Snapshot)
	Needs(f.Snapshot)
	if listed {
		f.Listings[target("discovery")] = Listing{Entries: slices.Clone(entries)}
		Make(f.Snapshot)
	}
	Make(f.Snapshot)
	if f.Memory != nil {
		f.Memory.Release()
	}
}
