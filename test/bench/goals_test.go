// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/servers"
	"github.com/usher-dev/usher/test/traffic"
)

func times(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }

// cloneSetResults meet all goals: 100 Pods take 10 s. They are a request, an update and a
// scale-in.
func cloneSetResults(pods int, changes ...func(patch, update, scaleIn *result)) []*result {
	n := float64(pods)
	patch := &result{step: step{name: "patch image", pods: pods, size: pods}, rounds: 1, alone: true, wall: times(n / 40), done: times(n / 32)}
	patch.latency = traffic.Latencies{times(0.1), times(0.2)}
	update := &result{step: step{name: stepInPlace, pods: pods, bounded: true, size: pods}, rounds: 1, wall: times(n / 10), done: times(n / 10), peak: 50, theirs: 8 * pods}
	update.around = pace{pods, patch.wall}
	update.tally = tally{least: pods * 80 / 100, out: traffic.Latencies{times(0.1), times(0.3)}}
	update.own = apiRequests{writes: map[string]int{"patch pods": 2 * pods, "patch pods/status": 2 * pods, "create events": pods / 10}, rejected: map[string]int{}}
	scaleIn := &result{step: step{name: "scale in", pods: pods, size: pods}, rounds: 1, wall: times(n / 100), done: times(n / 100), peak: 60}
	scaleIn.own = apiRequests{writes: map[string]int{"delete pods": pods}, rejected: map[string]int{}}
	for _, change := range changes {
		change(patch, update, scaleIn)
	}
	return []*result{patch, update, scaleIn}
}

// operatorResults meet all goals.
func operatorResults(pods int, changes ...func([]*result)) []*result {
	all := []*result{{step: step{name: "put", pods: pods, size: pods}, server: "etcd 3", rounds: 1, alone: true, wall: time.Second}}
	for _, s := range operatorScenario(pods) {
		n := pods
		if s.pods > 0 {
			n = s.pods
		}
		r := &result{step: step{name: s.name, pods: n, size: pods}, server: "etcd 3", rounds: 1, wall: times(float64(n) / 10), peak: 70,
			calls: servers.Calls{"Range": 2 * n, "Txn": n}, own: apiRequests{writes: map[string]int{"patch pods": 4 * n}},
			cpu: cpu{usher: time.Duration(n) * 10 * time.Millisecond}, moves: moves{left: n}}
		switch s.name {
		case stepIdle:
			r.calls, r.left = servers.Calls{"Range": 4}, 0
		case stepFailOver:
			r.gone = traffic.Latencies{times(0.1), times(0.9)}
		case stepControl:
			r.wrong = []string{"web-a"}
		}
		all = append(all, r)
	}
	for _, change := range changes {
		change(all[1:])
	}
	return all
}

// setsResults meet all goals: 2,000 Pods take 200 s in one set, and in 400.
func setsResults(change func(one, small, many *result)) []*result {
	all := cloneSetResults(2000)
	one, small, many := *all[1], *all[1], *all[1]
	small.name, small.pods, small.bounded, small.wall, one.smallSet = stepSmall, smallPods, false, times(3), times(4)
	many.name, one.around, many.around = stepSets, pace{2000, times(50)}, pace{2000, times(50)}
	change(&one, &small, &many)
	return []*result{all[0], &one, &small, &many}
}

// guardResults meet the goal.
func guardResults(p99 float64) []*result {
	one := func(name string, p99 float64) *result {
		return &result{step: step{name: name, pods: 400, size: 200}, rounds: 2, alone: true, wall: times(2), done: times(2),
			latency: traffic.Latencies{times(0.01), times(p99)}, cpu: cpu{apiServer: times(1)}}
	}
	return []*result{one(deleteGuarded, p99), one(deleteUnguarded, 0.1)}
}

// deploymentResults meet the goals if those of Usher take no longer than 6 s and 12 s.
func deploymentResults(in, out float64) []*result {
	one := func(w way, name string, seconds float64) *result {
		return &result{step: step{name: name, pods: 90, size: 100}, way: w.name, rounds: 1, alone: true, wall: times(seconds), done: times(seconds)}
	}
	return append(guardResults(0.11), one(withUsher, scaledIn, in), one(withUsher, rolledOut, out), one(withSleep, scaledIn, 5), one(withSleep, rolledOut, 7))
}

func missed(goals []goal) string {
	left := list.Only(goals, func(g goal) bool { return !g.met })
	return strings.Join(list.Map(left, func(g goal) string { return g.found }), ", ")
}

func TestGoals(t *testing.T) {
	slow := func(change func(patch, update, scaleIn *result)) []*result {
		// The order of the sizes does not matter.
		return slices.Concat(cloneSetResults(2000, change), cloneSetResults(100))
	}
	operator := func(change func([]*result)) []*result {
		return slices.Concat(operatorResults(100), operatorResults(1000, change))
	}
	large := func(change func(update *result)) []*result {
		timed := func(_, u, _ *result) { u.timed, u.cpu[usher] = true, time.Duration(u.pods)*time.Millisecond }
		return slices.Concat(cloneSetResults(2000, timed)[:2], cloneSetResults(20000, timed, func(_, u, _ *result) { change(u) })[:2])
	}
	for name, c := range map[string]struct {
		results []*result
		want    string // findings of the missed goals
	}{
		"nothing":  {nil, ""},
		"all met":  {slow(func(_, _, _ *result) {}), ""},
		"one size": {cloneSetResults(2000, func(_, _, s *result) { s.wall = times(1000) }), ""},
		"slow": {slow(func(_, u, _ *result) { u.around.wall = times(39.5) }), "79 % at 2,000 Pods: 10.0 Pods/s of 51 ÷ 4 = 12.7, " +
			"1.27 ×: 100 ms at 2,000 Pods, 100 ms at 100; the API server took 51 and 40 requests a second around that"},
		"rejected":        {slow(func(_, _, s *result) { s.own.rejected["delete pods 409"] = 20 }), `at most 1.00 %: 20 of 2,000 in "scale in" at 2,000 Pods`},
		"over budget":     {slow(func(_, u, _ *result) { u.least = 1599 }), `at least 1,599 of 2,000 were, in "in place"`},
		"long out":        {slow(func(_, u, _ *result) { u.out[1] = times(0.91) }), "3.03 ×: 910 ms at 2,000 Pods, 300 ms at 100; the API server took 40 and 40 requests a second around that"},
		"quadratic":       {slow(func(_, _, s *result) { s.wall = times(22.2) }), "1.11 ×: 11 ms at 2,000 Pods, 10 ms at 100"},
		"memory":          {slow(func(_, _, s *result) { s.peak = 100 }), "at most 100 MiB, with 2,000 Pods"},
		"operator, met":   {operator(func([]*result) {}), ""},
		"left wrongly":    {operator(func(r []*result) { r[3].wrong = []string{"web-b"} }), "1 of 3,600 entries that left: web-b"},
		"watch blind":     {operator(func(r []*result) { r[6].wrong = nil }), "0 noticed"},
		"restart writes":  {operator(func(r []*result) { r[1].calls["Txn"] = 1 }), "1 writes"},
		"restart takes":   {operator(func(r []*result) { r[1].left = 2 }), "2 writes"},
		"cost grows":      {operator(func(r []*result) { r[2].cpu[usher] = times(20) }), "2.00 ×: 20 ms at 1,000 Pods, 10 ms at 100"},
		"needless writes": {operator(func(r []*result) { r[0].own.writes["patch pods/status"] = 1101 }), "5.10 with 1,000 Pods"},
		"entry gone late": {operator(func(r []*result) { r[2].gone[1] = times(1.1) }), "1100 ms of 2 Pods, while 1,000 failed over"},
		"operator grows":  {operator(func(r []*result) { r[7].peak = 121 }), "121 MiB, with 1,000 Pods"},
		"guard, met":      {guardResults(0.11), ""},
		"guard, slow": {guardResults(0.112), "1.12 ×: p99 112 ms, p50 10 ms, and 2.5 ms of the API server's CPU each; " +
			"without it p99 100 ms, p50 10 ms, and 2.5 ms of the API server's CPU each"},
		"Deployment, met":               {deploymentResults(6, 12), ""},
		"Deployment, slow":              {deploymentResults(6.1, 12.1), "1.22 ×: 6.10 s; with the sleep 5.00 s, 12.1 s of 12.0 s; with the sleep 7.00 s"},
		"restarts, met":                 {cloneSetResults(2000, func(_, u, _ *result) { u.timed, u.restart = true, 5*time.Second }), ""},
		"slices, each with its restart": {cloneSetResults(2000, func(_, u, _ *result) { u.timed, u.restart, u.rounds, u.wall = true, 10*time.Second, 10, times(380) }), ""},
		"restarts, budget not used": {cloneSetResults(2000, func(_, u, _ *result) { u.timed, u.restart, u.wall = true, time.Minute, times(500) }),
			"70 % at 2,000 Pods: 4.0 of 5.7 Pods/s; the API server took 8.0 around that, maxUnavailable allows 6.7"},
		"far away, budget not used": {cloneSetResults(2000, func(_, u, _ *result) {
			u.timed, u.restart, u.distance, u.wall = true, 59700*time.Millisecond, 100*time.Millisecond, times(500)
		}), "70 % at 2,000 Pods: 4.0 of 5.7 Pods/s; the API server took 8.0 around that, maxUnavailable allows 6.7"},
		"large, timed, met": {large(func(*result) {}), ""},
		"large, on a machine that became slow": {large(func(u *result) {
			u.wall, u.around, u.cpu[usher], u.out[1] = times(4000), pace{1, times(0.05)}, times(40), times(0.6)
		}), ""},
		"large, dear":  {large(func(u *result) { u.cpu[usher] = times(23) }), "1.15 ×: 1.1 ms at 20,000 Pods, 1.0 ms at 2,000; the API server took 40 and 40 requests a second around that"},
		"large, out":   {large(func(u *result) { u.out[1] = times(0.34) }), "1.13 ×: 340 ms at 20,000 Pods, 300 ms at 2,000; the API server took 40 and 40 requests a second around that"},
		"large, grown": {large(func(u *result) { u.peak = 250 }), "at most 250 MiB, with 20,000 Pods"},
		"images, late": {cloneSetResults(2000, func(_, u, _ *result) { u.timed, u.pull, u.wall = true, 50*time.Second, times(334) }),
			"90 % at 2,000 Pods: 6.0 of 6.7 Pods/s; the API server took 8.0 around that, maxUnavailable allows +Inf"},
		"sets, met": {setsResults(func(_, _, _ *result) {}), ""},
		"sets, slow": {setsResults(func(_, _, m *result) { m.wall = times(223) }),
			"90 % with 400 sets: 9.0 of 10.0 Pods/s; the API server took 40 and 40 requests a second around that"},
		"sets, on a machine that became slow": {setsResults(func(_, _, m *result) { m.wall, m.around = times(440), pace{2000, times(100)} }), ""},
		"sets, on a machine that became fast": {setsResults(func(_, _, m *result) { m.around = pace{2000, times(25)} }),
			"50 % with 400 sets: 10.0 of 10.0 Pods/s; the API server took 40 and 80 requests a second around that"},
		"a small set waits":           {setsResults(func(o, _, _ *result) { o.smallSet = times(5.1) }), "5.10 s; alone 3.00 s"},
		"restarts, back late":         {cloneSetResults(2000, func(_, u, _ *result) { u.timed, u.restart, u.out[1] = true, 5*time.Second, times(6.1) }), "6100 ms"},
		"a fifth, killed, costs more": {operator(func(r []*result) { r[3].cpu[usher] = times(20) }), ""},
	} {
		goals := judge(c.results)
		checktest.Same(t, name+": missed", c.want, missed(goals))
		checktest.Same(t, name+": Missed", c.want != "", (&Report{goals: goals}).Missed())
	}
	for pods, want := range map[int]int{1: 0, 4: 3, 5: 4, 6: 4, 100: 80, 2000: 1600} {
		checktest.Same(t, fmt.Sprintf("of %d Pods that must be ready", pods), want, readyFloor(pods))
	}
}

// Times are means, counts are sums, latencies cover all rounds, and values that must hold in every
// round are the worst ones.
func TestMerge(t *testing.T) {
	round := func(seconds, peak float64, least, patches int, out ...time.Duration) []*result {
		r := &result{step: step{name: stepInPlace, pods: 100, size: 100}, rounds: 1, wall: times(seconds), cpu: cpu{usher: times(seconds)}, peak: peak}
		r.own, r.tally = apiRequests{writes: map[string]int{"patch pods": patches}}, tally{least: least, out: out}
		return []*result{r}
	}
	all := merge(nil, round(3, 50, 80, 300, time.Second, 5*time.Second))
	all = merge(all, round(1, 70, 81, 301, 2*time.Second))
	all = merge(merge(all, round(2, 60, 79, 302)), cloneSetResults(2000))
	if len(all) != 4 {
		t.Fatalf("%d results, want 4", len(all))
	}
	r := all[0]
	got := fmt.Sprint(r.rounds, r.perRound(r.wall), r.perSecond(), r.perRound(r.cpu[usher]), r.peak, r.least,
		r.perPod(float64(sum(r.own.writes))), r.out.Percentile(50), len(r.out))
	checktest.Same(t, "result", "3 2s 50 2s 70 79 3.01 2s 3", got)
}

// Each column shows what its title says.
func TestReport(t *testing.T) {
	for _, c := range []struct {
		results []*result
		want    []string
	}{
		{slices.Concat(cloneSetResults(100), cloneSetResults(2000, func(_, u, _ *result) { u.own.rejected = map[string]int{"patch pods 422": 3, "patch pods 409": 7} })), []string{
			"| 2,000 | patch image | 50.0 s | 40 | 100 ms | 200 ms | 62.5 s |",
			"| 2,000 | in place | 200.0 s | 10.0 | 4.10 | 0.12 % | 100 ms | 300 ms | 1,600 | 0.00 s | 50 |",
			"| 2,000 | in place | - | 2.00 | 2.00 | - | - | 0.10 | 4.10 | - | 8.00 | 7 × patch pods 409, 3 × patch pods 422 |",
			"| ok | in place, at least 80 %",
		}},
		{operatorResults(1000), []string{
			"| etcd 3 | 1,000 | put | 1.00 s | 1000 |",
			"| etcd 3 | 1,000 | fail over | 100.0 s | 1,000 | 10.0 | 3.00 | 4.00 | 0.00 % | 0 | 1,000 | 0 | 900 ms | 10 ms | 70 |",
			"| etcd 3 | 1,000 | killed while idle | 4 | 4 × Range |",
		}},
	} {
		text := (&Report{results: c.results, goals: judge(c.results)}).Markdown()
		checktest.Says(t, "the report", text, c.want...)
	}
}
