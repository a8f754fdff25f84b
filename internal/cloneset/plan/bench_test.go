// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// busySet is a set with everything happening at once: a rollout with priorities and
// scattering, Pods at every gate, and some to be replaced.
func busySet(n int, options ...option) *Snapshot {
	list := make([]*corev1.Pod, n)
	for i := range list {
		name := fmt.Sprintf("web-%05d", i)
		options := []podOption{registered, on(fmt.Sprintf("node-%d", i%500)), label("zone", fmt.Sprintf("z-%d", i%3))}
		revision := 1 + i%2
		switch i % 20 {
		case 1:
			options = append(options, state(apps.StatePreparingNormal), unready)
		case 2:
			options = append(options, state(apps.StatePreparingUpdate))
			revision = 1
		case 3:
			options = append(options, updating(2))
			revision = 1
		case 4:
			options = append(options, state(apps.StatePreparingDelete))
		case 5:
			options = append(options, label(apps.LabelSpecifiedDelete, "true"))
		}
		list[i] = pod(name, revision, options...)
	}
	all := append([]option{
		method(InPlaceIfPossible), toRevision(rev(2)), hooks(gates(true)), with(list...), func(s *Snapshot) {
			s.Spec.Priority.Weights = []WeightTerm{{Weight: 5, Selector: labels.SelectorFromSet(labels.Set{"zone": "z-1"})}}
			s.Spec.Scatter = []ScatterTerm{{Key: "zone", Value: "z-2"}}
		},
	}, options...)
	s := snap(n, all...)
	s.PodInfos = ReadPods(s.Pods, nil)
	return s
}

var sizes = []int{100, 1_000, 5_000, 20_000}

// BenchmarkRead reads all Pods, as the first pass over a set does; later passes read
// those that have changed.
func BenchmarkRead(b *testing.B) {
	s := busySet(5_000)
	b.ReportAllocs()
	for b.Loop() {
		ReadPods(s.Pods, nil)
	}
}

// BenchmarkMake plans one pass of a set in the middle of a rollout.
func BenchmarkMake(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprintf("pods=%d", n), func(b *testing.B) {
			s := busySet(n, starts(32))
			b.ReportAllocs()
			for b.Loop() {
				Make(s)
			}
		})
	}
}

// BenchmarkMakeUnbounded starts as much as the budgets allow, and scales in half.
func BenchmarkMakeUnbounded(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprintf("pods=%d", n), func(b *testing.B) {
			s := busySet(n, func(s *Snapshot) { s.Spec.Replicas = n / 2 })
			b.ReportAllocs()
			for b.Loop() {
				Make(s)
			}
		})
	}
}

// BenchmarkReview is what the status is made from.
func BenchmarkReview(b *testing.B) {
	s := busySet(5_000)
	b.ReportAllocs()
	for b.Loop() {
		Review(s)
	}
}

// BenchmarkDigest is what every Pod event costs.
func BenchmarkDigest(b *testing.B) {
	p := pod("a", 1, registered)
	b.ReportAllocs()
	for b.Loop() {
		Digest(p)
	}
}
