// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// busySet is a set with everything happening at once: a rollout with priorities and
// scattering, Pods at every gate, and some to be replaced.
func busySet(n int, about string) *Snapshot {
	pods := make([]*corev1.Pod, n)
	for i := range pods {
		revision, at := 1, map[int]string{
			1: "state PreparingNormal; unready", 2: "state PreparingUpdate", 3: "updating r2", 4: "state PreparingDelete", 5: "specified",
		}[i%20]
		if i%20 > 3 || i%20 < 2 {
			revision = 1 + i%2
		}
		pods[i] = pod(fmt.Sprintf("web-%05d", i), revision, fmt.Sprintf("registered; on node-%d; label zone=z-%d", i%500, i%3), at)
	}
	s := snap("InPlaceIfPossible; r2; hooks all, marking; weights zone=z-1 5; scatter zone=z-2; "+about, pods...)
	s.PodInfos = ReadPods(s.Pods, nil)
	return s
}

// BenchmarkMake plans one pass of a set in the middle of a rollout: with a limit of starts, and
// as much as the budgets allow, with half of the Pods to go.
func BenchmarkMake(b *testing.B) {
	for _, n := range []int{100, 1_000, 5_000, 20_000} {
		for _, about := range []string{"starts 32", fmt.Sprint("replicas ", n/2)} {
			s := busySet(n, about)
			measure(b, fmt.Sprintf("pods=%d %s", n, about), func() { Make(s) })
		}
	}
}

// BenchmarkReading is what the first pass over a set does (later ones read what has changed),
// what the status is made from, and what every Pod event costs.
func BenchmarkReading(b *testing.B) {
	s := busySet(5_000, "")
	measure(b, "all Pods", func() { ReadPods(s.Pods, nil) })
	measure(b, "review", func() { Review(s) })
	measure(b, "digest", func() { Digest(s.Pods[0]) })
}

func measure(b *testing.B, name string, do func()) {
	b.Run(name, func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			do()
		}
	})
}
