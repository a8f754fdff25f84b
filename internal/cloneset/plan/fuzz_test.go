// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
)

// anySnapshot builds a snapshot of anything that may occur in a cluster.
func anySnapshot(d *checktest.Dice) *Snapshot {
	s := snap(fmt.Sprint("replicas ", d.Roll(8)))
	say := func(about ...string) { said(setWords, s, about...) }
	say(checktest.Pick(d, "r1", "r2", "r2 env", "r2 label", "r3", "r2 cpu 200m", "r2 base 2"))
	if d.Roll(2) == 1 {
		say("exists r2")
	}
	if d.Roll(8) == 7 {
		s.Revisions["r1"].Template = nil
	}
	spec := &s.Spec
	spec.Method = checktest.Pick(d, apps.UpdateReCreate, apps.UpdateInPlaceIfPossible, apps.UpdateInPlaceOnly, apps.UpdateOnDelete)
	spec.Partition = Count{Value: d.Roll(9), Percent: d.Roll(2) == 1}
	spec.MaxUnavailable = Count{Value: d.Roll(9), Percent: false}
	spec.MaxSurge = Count{Value: d.Roll(5)}
	spec.Paused, s.ExcludePreparingDelete = d.Roll(5) == 4, d.Roll(4) == 3
	s.Deletion = map[int]Deletion{14: LetGo, 15: Drain}[d.Roll(16)]
	spec.Grace = checktest.Pick(d, 0, time.Minute)
	spec.MinReady = checktest.Pick(d, 0, time.Minute)
	say(checktest.Pick(d, "", "hooks all", "hooks all, marking", "hooks preDelete"))
	s.Starts = checktest.Pick(d, 0, 1, 2, 32)
	if d.Roll(4) == 3 {
		spec.ScaleMaxUnavailable = &Count{Value: d.Roll(4)}
	}
	if d.Roll(8) == 7 {
		say("refused")
	}
	for i := range d.Roll(9) {
		name := fmt.Sprintf("p%d", i)
		s.Pods = append(s.Pods, anyPod(d, name))
		if d.Roll(6) == 5 {
			say("named " + name)
		}
		if d.Roll(8) == 7 {
			say("deferred " + name)
		}
	}
	anyClaims(d, s, say)
	if d.Roll(3) == 2 {
		say(checktest.Pick(d, "cordoned n1", "cordoned n2"))
	}
	return counted(s)
}

// anyClaims gives the set claims with Pods, without, and with the wrong labels.
func anyClaims(d *checktest.Dice, s *Snapshot, say func(...string)) {
	if d.Roll(2) == 1 {
		say("templates data log")
	}
	s.Spec.DisableClaimReuse = d.Roll(4) == 3
	if d.Roll(8) == 7 {
		say("claimsRefused")
	}
	for i := range d.Roll(5) {
		id := fmt.Sprintf("i%d", i)
		c := claim(checktest.Pick(d, "data", "log", "other"), id)
		if d.Roll(4) == 3 {
			said(claimWords, c, "going")
		}
		if d.Roll(5) == 4 {
			said(claimWords, c, "of i0")
		}
		s.Claims = append(s.Claims, c)
		if d.Roll(6) == 5 {
			say("deleted " + id)
		}
		if d.Roll(2) == 1 {
			s.Pods = append(s.Pods, said(podWords, anyPod(d, "web-"+id), "instance "+checktest.Pick(d, id, id, "", "i0"), "mounts data "+id))
		}
	}
}

func anyPod(d *checktest.Dice, name string) *corev1.Pod {
	p := pod(name, 1+d.Roll(3))
	say := func(about ...string) { said(podWords, p, about...) }
	say(checktest.Pick(d, "", "cpu 100m", "base"))
	if len(p.Spec.Containers) > 1 && d.Roll(2) == 1 {
		say("inBatch")
	} else {
		say(checktest.Pick(d, "", "", "resizing", "resizing written"))
	}
	if d.Roll(3) == 2 {
		say(fmt.Sprint("updating r", 1+d.Roll(3)))
	}
	if d.Roll(2) == 1 {
		say("restarted")
	}
	say(
		checktest.Pick(d, "", "unready", "ready 1s", "pending", "fresh"),
		checktest.Pick(d, "", "state "+checktest.Pick(d, "", "Normal", "PreparingNormal", "PreparingUpdate", "Updating", "Updated", "PreparingDelete", "Nonsense")),
		checktest.Pick(d, "", "registered", "holds delete", "holds update", "holds registered; finalizer other/f"),
		checktest.Pick(d, "", "", "label "+apps.LabelSpecifiedDelete+"="+checktest.Pick(d, "true", "false")),
		checktest.Pick(d, "", "", "", "terminating", "failed", "phase Unknown"),
		checktest.Pick(d, "", "", fmt.Sprint("out r", 1+d.Roll(3), " ", checktest.Pick(d, time.Second, time.Hour))),
		checktest.Pick(d, "", "", "mark "+checktest.Pick(d, "", "[]", `[{"userAgent":"x"}]`)),
		checktest.Pick(d, "", "", "", "record "+checktest.Pick(d, "{", "{}", "null")),
		checktest.Pick(d, "", "", "cost "+checktest.Pick(d, "1", "-1", "x")),
		checktest.Pick(d, "", "", "on n2", "tolerates"),
		checktest.Pick(d, "", "", "label "+apps.LabelRevision+"="+checktest.Pick(d, "", "r2", "gone")),
	)
	return p
}

// check returns the promise to users that a plan breaks, before it is executed.
func check(s *Snapshot, p Plan) error {
	taken, made := 0, 0
	for _, a := range p.Actions {
		made += one(a.Verb == Create)
		if takesDown(a) {
			var v podState
			s.read(&v, newPodInfo(a.Pod))
			taken += one(v.available && v.active())
		}
	}
	// All Pods of a deleted set leave.
	if remaining := tally(s).Available - taken; s.Deletion != Drain && taken > 0 && remaining < s.Spec.Replicas-s.Spec.maxUnavailable() {
		return fmt.Errorf("%d Pods would serve, %d shall: %v", remaining, s.Spec.Replicas-s.Spec.maxUnavailable(), describe(p))
	}
	if c := tally(s); made > 0 && c.Replicas+made > s.Spec.Replicas+s.Spec.maxSurge() && !s.ExcludePreparingDelete {
		return fmt.Errorf("%d Pods, and %d more: %v", c.Replicas, made, describe(p))
	}
	return nil
}

func takesDown(a Action) bool {
	switch a.Verb {
	case Delete:
		return true
	case Update:
		return a.Change.Drains()
	}
	return a.Reason == ReasonPrepareUpdate || a.Reason == ReasonStartInPlace || a.LeavesService()
}

// FuzzMake: no snapshot makes the planner panic, act twice on a Pod, bypass a hook,
// change the snapshot, or decide differently the second time.
func FuzzMake(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("usher"))
	for i := range 64 {
		seed := make([]byte, 200)
		for j := range seed {
			seed[j] = byte(i*31 + j*j*(i+7) + j>>3)
		}
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, again := anySnapshot(&checktest.Dice{Data: data}), anySnapshot(&checktest.Dice{Data: data})
		p := decide(t, s)
		checktest.NoError(t, check(s, p))
		checktest.Same(t, "the snapshot, to which the planner may not write,", again.Pods, s.Pods)
		checktest.Same(t, "the plan of the same snapshot", describe(Make(again)), describe(p))
	})
}

// TestShortcuts: a pass reads less of Pods that serve, and does not sort them. That changes neither the
// plan nor the status.
func TestShortcuts(t *testing.T) {
	random := rand.NewChaCha8([32]byte{})
	quiet, waits := 0, 0
	for range 1_000 {
		data := make([]byte, 600)
		_, _ = random.Read(data) // never fails
		fast, slow := anySnapshot(&checktest.Dice{Data: data}), anySnapshot(&checktest.Dice{Data: data})
		fast.PodInfos, slow.PodInfos = ReadPods(fast.Pods, nil), ReadPods(slow.Pods, nil)
		for _, info := range slow.PodInfos {
			quiet += one(info.quiet)
			info.quiet = false
		}
		slow.Spec.Weights = []WeightTerm{{Selector: labels.Everything()}} // sorts all Pods
		planned, all := Make(fast), Make(slow)
		checktest.Same(t, "a plan that skips quiet Pods", []any{describe(all), all.More, all.RequeueAt, all.Problems}, []any{describe(planned), planned.More, planned.RequeueAt, planned.Problems})
		counts, blocked := Review(fast)
		allCounts, allBlocked := Review(slow)
		checktest.Same(t, "its status", []any{allCounts, allBlocked}, []any{counts, blocked})
		waits += len(blocked)
	}
	if quiet < 100 || waits < 100 {
		t.Errorf("only %d Pods were skipped, and %d waited", quiet, waits)
	}
}

// busySet returns a set with everything happening at once: a rollout with priorities and scattering,
// Pods at every gate, and some to be replaced.
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

// BenchmarkMake plans one pass of a set in the middle of a rollout: with half of the Pods updated, once
// with a limit of starts, and once as far as the budgets allow.
func BenchmarkMake(b *testing.B) {
	for _, n := range []int{100, 1_000, 5_000, 20_000} {
		for _, about := range []string{"starts 32", fmt.Sprint("replicas ", n/2)} {
			s := busySet(n, about)
			measure(b, fmt.Sprintf("pods=%d %s", n, about), func() { Make(s) })
		}
	}
}

// BenchmarkRollout plans the next step of a rollout in place that is half done, and counts for the
// status, as every pass of a large set does.
func BenchmarkRollout(b *testing.B) {
	for _, n := range []int{2_000, 20_000} {
		pods := make([]*corev1.Pod, n)
		for i := range pods {
			revision, state := 1, ""
			switch {
			case i < n/2-16:
				revision = 2
			case i < n/2:
				state = "updating r2"
			}
			pods[i] = pod(fmt.Sprintf("web-%05d", i), revision, fmt.Sprintf("on node-%d", i%500), state)
		}
		s := snap("InPlaceIfPossible; r2; starts 32; maxUnavailable 20%", pods...)
		s.PodInfos = ReadPods(s.Pods, nil)
		measure(b, fmt.Sprintf("pods=%d plan", n), func() { Make(s) })
		measure(b, fmt.Sprintf("pods=%d review", n), func() { Review(s) })
	}
}

// BenchmarkReading measures three readings of Pods: the first pass over a set (later passes read only
// changed Pods), the counts for the status, and the comparison at every Pod event.
func BenchmarkReading(b *testing.B) {
	s := busySet(5_000, "")
	changed := s.Pods[0].DeepCopy()
	measure(b, "all Pods", func() { ReadPods(s.Pods, nil) })
	measure(b, "review", func() { Review(s) })
	measure(b, "event", func() { Alike(s.Pods[0], changed) })
}

func measure(b *testing.B, name string, do func()) {
	b.Run(name, func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			do()
		}
	})
}
