// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/cluster/node"
)

const fewPods = 10

func options(t *testing.T) Options {
	t.Helper()
	t.Setenv("TMPDIR", t.TempDir())
	out := checktest.Must(os.Create(filepath.Join(t.TempDir(), "out")))(t)
	t.Cleanup(func() { _ = out.Close() })
	return Options{Sizes: []int{fewPods}, Out: out}
}

func TestMeasure(t *testing.T) {
	report := measure(t, options(t))
	type counts struct{ patches, creates, deletes, out, startup int }
	want := map[string]counts{
		"scale out":      {patches: 1, creates: 1, startup: 1},
		stepInPlace:      {patches: 1, out: 1},
		"in place, hook": {patches: 3, out: 1},
		"recreate":       {patches: 1, creates: 1, deletes: 1, startup: 1},
		"scale in, hook": {patches: 1, deletes: 1},
		"scale in":       {deletes: 1},
	}
	requests := 0
	for _, r := range report.results {
		if r.alone {
			requests++
			continue
		}
		if r.theirs <= 0 || r.cpu[apiServer] <= 0 {
			t.Errorf("%s lacks something: %+v", r.name, r)
		}
		w, want := r.own.writes, want[r.name]
		for what, count := range map[string][2]int{
			"patches of Pods": {w["patch pods"], want.patches}, "creates": {w["create pods"], want.creates},
			"deletes": {w["delete pods"], want.deletes}, "times out of service": {len(r.out), want.out}, "startups": {len(r.startup), want.startup},
		} {
			once(t, r.name+", "+what, count[0], fewPods*count[1])
		}
	}
	if requests != 2 || len(report.results) != requests+len(want) || len(report.goals) == 0 {
		t.Errorf("%d results, %d of them without a controller, and %d goals", len(report.results), requests, len(report.goals))
	}
}

// Usher is 100 ms away: a Pod that leaves service gets its image a round trip later, and is back
// another one after that.
func TestSetsFarAway(t *testing.T) {
	const distance = 100 * time.Millisecond
	o := options(t)
	o.Sets, o.Latencies = fewPods/PodsPerSet, []time.Duration{distance}
	report := measure(t, o)
	got := []string{}
	for _, r := range report.results {
		if r.alone {
			continue
		}
		got = append(got, r.name)
		once(t, r.name+", times out of service", len(r.out), r.pods)
		if least := containerDelay + 2*distance; r.out.Percentile(50) < least {
			t.Errorf("%s: half of the Pods were out of service for at most %s, less than %s", r.name, r.out.Percentile(50), least)
		}
	}
	checktest.Same(t, "measured", []string{stepSmall, stepInPlace, stepSets}, got)
	if one := largest(report.results, stepInPlace); one.smallSet <= 0 {
		t.Error("no small set was updated beside the large one")
	}
}

// TestMany: small CloneSets are created, survive an Usher that is killed, and some of them are updated.
func TestMany(t *testing.T) {
	const sets = 20
	o := options(t)
	o.Sizes, o.Many = []int{sets * PodsPerSmallSet}, sets
	changed := map[string]int{}
	for _, r := range measure(t, o).results {
		changed[r.name] = r.pods
		if written := sum(r.own.writes) > 0; written == (r.name == stepManyIdle) {
			t.Errorf("%s: %d writes", r.name, sum(r.own.writes))
		}
	}
	checktest.Same(t, "Pods that changed", map[string]int{
		stepManyCreate: sets * PodsPerSmallSet, stepManyIdle: PodsPerSmallSet, stepManyStart: PodsPerSmallSet,
		stepManyUpdate: PodsPerSmallSet, stepManyRoll: 2 * PodsPerSmallSet,
	}, changed)
}

// Each pair of restart and latency is measured with both sizes and the same number of Pods in all.
// Images come first: their pull keeps no Pod out of service. The median is compared, since the watch
// may lag less for a Pod's return than for its leaving.
func TestTimed(t *testing.T) {
	const pull, restart, distance, each = 2 * time.Second, 300 * time.Millisecond, 50 * time.Millisecond, fewPods/2 + fewPods
	o := options(t)
	o.Sizes, o.Restarts, o.Latencies, o.Pull = []int{fewPods / 2, fewPods}, []time.Duration{containerDelay, restart}, []time.Duration{0, distance}, pull
	got := map[string]int{}
	for _, r := range measure(t, o).results {
		if r.alone {
			continue
		}
		once(t, r.name+", times out of service", len(r.out), fewPods)
		if r.pods != fewPods || r.wall < pull || r.out.Percentile(50) < r.restart+2*r.distance || r.out.Percentile(100) > r.restart+pull {
			t.Errorf("%s of %d Pods: it took %s, and Pods were out of service for %s (p50) and at most %s", r.name, r.pods, r.wall, r.out.Percentile(50), r.out.Percentile(100))
		}
		got[r.restart.String()+" "+r.distance.String()] += r.size
	}
	checktest.Same(t, "the sizes that were measured, together", map[string]int{"50ms 0s": each, "300ms 0s": each, "50ms 50ms": each, "300ms 50ms": each}, got)
}

// TestTurns: the order alternates, and each turn updates the same number of Pods of each set. Nodes
// pull new images, except Usher's own.
func TestTurns(t *testing.T) {
	parts := timedScenario([]int{30, 10, 30}, []time.Duration{0}, []time.Duration{0}, time.Second)[2].parts
	checktest.Same(t, "turns", []string{
		"of-10: 10 to v1, 0 left, pull 1s", "of-30: 10 to v1, 20 left, pull 1s", "of-30: 10 to v1, 10 left, pull 0s",
		"of-10: 10 to v2, 0 left, pull 1s", "of-10: 10 to v3, 0 left, pull 1s", "of-30: 10 to v1, 0 left, pull 0s",
	}, list.Map(parts, func(p step) string {
		return fmt.Sprintf("%s: %d to v%d, %d left, pull %s", p.set, p.pods, p.version%versions, p.old, p.pull)
	}))
	n := &nodes{Runtime: node.NewSimulatedRuntime(node.Traits{}), pull: time.Hour, pulled: map[[2]string]time.Time{}}
	_, own := n.Pull("node", usherImage)
	_, other := n.Pull("node", image(1))
	checktest.Same(t, "whether nodes wait for Usher's image, and for another one", [2]bool{false, true}, [2]bool{own != nil, other != nil})
}

// measure measures successfully, and checks what every measurement has.
func measure(t *testing.T, o Options) *Report {
	t.Helper()
	report := checktest.Must(Run(t.Context(), o))(t)
	if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) > 0 {
		t.Errorf("files are left: %v, %v", left, err)
	}
	for _, r := range report.results {
		if r.wall <= 0 || r.done < r.wall || r.alone != (len(r.latency) > 0) || r.alone == (r.peak > 0) {
			t.Errorf("%s lacks something: %+v", r.name, r)
		}
	}
	return report
}

// once checks a count of something that may be repeated: a write after a conflict, an
// update that was undone when Usher was killed.
func once(t *testing.T, what string, got, want int) {
	t.Helper()
	if got < want || got > 2*want {
		t.Errorf("%s: %d, want %d", what, got, want)
	}
}

func TestRegistries(t *testing.T) {
	o := options(t)
	o.Registries, o.Repair = []string{"etcd"}, 2*time.Second
	report := measure(t, o)
	for _, g := range report.goals {
		if !g.met && !g.time { // On a busy machine everything may take longer.
			t.Errorf("%s: %s", g.what, g.found)
		}
	}
	// How many entries are added and removed, by step.
	want := [][2]int{{fewPods, 0}, {}, {fewPods, fewPods}, {0, 2}, {2, 0}, {2, 2}, {1, 1}, {0, fewPods}}
	if len(report.results) != 2+len(want) {
		t.Fatalf("%d results, want %d", len(report.results), 2+len(want))
	}
	for i, r := range report.results[2:] {
		if sum(r.calls) == 0 {
			t.Errorf("%s: no calls", r.name)
		}
		again := 0
		if r.name == stepFailOver && r.joined > fewPods {
			again = 1 // The Pod that was deleted had failed over before.
		}
		once(t, r.name+", entries that came", r.joined-again, want[i][0])
		once(t, r.name+", entries that left", r.left-again, want[i][1])
	}
}
