// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/stage"
)

const (
	// writesInPlace is the number of writes that the yardstick grants an in-place
	// update: out of service, the new image, in service, done.
	writesInPlace = 4
	// ceilingShare is the required share of what the API server allows.
	ceilingShare = 0.80
	// timedShare is the required share of the speed that the API server, at ceilingShare, and the
	// budget allow if containers take long to restart.
	timedShare = 0.90
	// rejectedLimit limits the share of rejected writes, in each step.
	rejectedLimit = 0.01
	// outLimit is how many times longer a Pod may be out of service in the largest size
	// than in the smallest, by p99.
	outLimit = 3.0
	// roundTrips is how many round trips a Pod takes while it uses the budget: out of service, the new
	// image, and back in service, during which the next Pod leaves.
	roundTrips = 3
	// setsShare is the required share of one set's speed if many sets are updated. It leaves a tenth
	// for chance.
	setsShare = 0.90
	// smallSetLimit is how much longer a small set may take while a large one is updated.
	smallSetLimit = 2 * time.Second
	// outBeyond is how much longer than its restart a Pod may be out of service, by p99.
	outBeyond = time.Second
	// linearLimit is how many times longer per Pod a step may take in the largest size
	// than in the smallest. It leaves a tenth for chance.
	linearLimit = 1.1
	// memoryLimit limits Usher's memory, in MiB, and memoryLimitBig with more than memoryPods.
	memoryLimit, memoryLimitBig, memoryPods = 100, 250, 2000
	// operatorMemoryLimit limits that of both halves.
	operatorMemoryLimit = 120
	// goneLimit is how long after a Pod's deletion its entry may still exist, by p99.
	goneLimit = time.Second
	// chance is the allowed share of writes beyond the minimum, and fewRepeated their allowed number if
	// there are few Pods: some writes are refused, because a kubelet was faster, and repeated.
	chance, fewRepeated = 0.02, 10
	// growthLimit is how many times more CPU time a Pod may cost Usher in the largest
	// size than in the smallest.
	growthLimit = 1.5
	// maxUnavailable is the share of Pods that updates may take out of service, as in
	// the CloneSet.
	maxUnavailable = 0.20
)

// goal is a requirement, and whether it is met.
type goal struct {
	met         bool
	what, found string
	time        bool // it is about how long something takes
	ranged      bool // it is a range of ranges.yaml, and no promise
}

// judge compares the results with the goals. A goal without measurements (a comparison
// of two sizes with only one) is left out.
func judge(results []*result) []goal {
	steps := list.Only(results, func(r *result) bool { return !r.alone })
	switch {
	case len(steps) == 0:
		return append(judgeGuard(results), judgeDeployments(results)...)
	case steps[0].server != "":
		return judgeOperator(steps)
	case steps[0].name == stepManyCreate:
		return judgeMany(steps)
	}
	return slices.Concat(judgeRate(steps), judgeSets(steps), judgeWorst(steps), judgeSizes(steps))
}

// judgeRate compares the rate of updates in place with what the API server allows: where containers
// or images take long or Usher is far away in all sizes, otherwise in the largest one.
func judgeRate(steps []*result) (goals []goal) {
	step := largest(steps, stepInPlace)
	for _, r := range steps {
		if r.timed && r.bounded && r.name != stepSets {
			goals = append(goals, judgeTimed(r)...)
		}
	}
	if len(goals) > 0 {
		return goals
	}
	limit, share := step.around.perSecond()/writesInPlace, ceilingShare
	return []goal{{
		met:  step.perSecond() >= share*limit,
		what: fmt.Sprintf("in place, at least %.0f %% of the raw patch ceiling ÷ %d", 100*share, writesInPlace),
		found: fmt.Sprintf("%.0f %% at %s Pods: %.1f Pods/s of %.0f ÷ %d = %.1f", 100*step.perSecond()/limit,
			stage.Thousands(step.size), step.perSecond(), step.around.perSecond(), writesInPlace, limit),
	}}
}

// largest returns the result with that name in the largest size; nil if there is none.
func largest(results []*result, name string) (found *result) {
	for _, r := range results {
		if r.name == name && (found == nil || r.size > found.size) {
			found = r
		}
	}
	return found
}

// judgeSets judges updates of many CloneSets, and of a small one during the update of a large one;
// other measurements have none of these.
func judgeSets(steps []*result) []goal {
	one, many, small := largest(steps, stepInPlace), largest(steps, stepSets), largest(steps, stepSmall)
	if many == nil || small == nil {
		return nil
	}
	faster, machines := machines(one, many)
	share := many.perSecond() / one.perSecond() * faster
	return []goal{{
		met:  share >= setsShare,
		what: fmt.Sprintf("many sets of %d Pods, in place: at least %.0f %% of the Pods/s of one set", PodsPerSet, 100*setsShare),
		found: fmt.Sprintf("%.0f %% with %s sets: %.1f of %.1f Pods/s%s", 100*share, stage.Thousands(many.size/PodsPerSet),
			many.perSecond(), one.perSecond(), machines),
	}, {
		met:   one.smallSet <= small.wall+smallSetLimit,
		what:  fmt.Sprintf("a set of %d Pods beside one of %s, in place: at most %s longer than alone", smallPods, stage.Thousands(one.size), smallSetLimit),
		found: fmt.Sprintf("%s; alone %s", stage.Seconds(one.smallSet), stage.Seconds(small.wall)),
	}}
}

// machines returns how many times faster the machine was around one result than around another, and a
// text about it. It is 1 if that was not measured.
func machines(one, than *result) (faster float64, text string) {
	if one.around.requests == 0 {
		return 1, ""
	}
	a, b := one.around.perSecond(), than.around.perSecond()
	return a / b, fmt.Sprintf("; the API server took %.0f and %.0f requests a second around that", a, b)
}

// judgeTimed judges an update of containers or images that take long, or by an Usher that is far from
// the API server. If those times bound the update, the last Pods begin one restart before its end. If
// maxUnavailable bounds it, Pods leave in waves: each wave begins when the one before it is back, and
// in addition the API server needs the time of the work for one wave. The first Pods begin when their
// nodes have the image. Each round is such an update, of its share of the Pods.
func judgeTimed(step *result) []goal {
	server := ceilingShare * step.around.perSecond() / writesInPlace
	pods, out := float64(step.pods)/float64(step.rounds), (step.restart + roundTrips*step.distance).Seconds()
	unavailable := float64(step.size - readyFloor(step.size))
	budget := unavailable / out
	each := max(pods/server+out, pods/budget+min(unavailable, pods)/server)
	possible := float64(step.pods) / (step.pull.Seconds() + float64(step.rounds)*each)
	p99 := step.out.Percentile(99)
	return []goal{{
		met:  step.perSecond() >= timedShare*possible,
		what: fmt.Sprintf("%s: at least %.0f %% of what is possible", step.name, 100*timedShare),
		found: fmt.Sprintf("%.0f %% at %s Pods: %.1f of %.1f Pods/s; the API server took %.1f around that, maxUnavailable allows %.1f",
			100*step.perSecond()/possible, stage.Thousands(step.size), step.perSecond(), possible, server, budget),
	}, {
		met:   p99 <= step.restart+outBeyond,
		what:  fmt.Sprintf("%s: p99 out of service at most %s more than the restart", step.name, outBeyond),
		found: stage.Milliseconds(p99),
	}}
}

// worst returns the result with the largest value.
func worst(steps []*result, value func(*result) float64) (*result, float64) {
	most := slices.MaxFunc(steps, func(a, b *result) int { return cmp.Compare(value(a), value(b)) })
	return most, value(most)
}

// judgeWorst judges what must hold in every step.
func judgeWorst(steps []*result) []goal {
	rejected, share := worst(steps, func(r *result) float64 { return r.own.rejectedShare() })
	budget, over := worst(steps, func(r *result) float64 {
		if !r.bounded {
			return math.Inf(-1)
		}
		return float64(readyFloor(r.size)-r.least) / float64(r.size)
	})
	memory, most := worst(steps, func(r *result) float64 { return r.peak })
	limit := memoryLimit
	if memory.size+memory.others > memoryPods {
		limit = memoryLimitBig
	}
	return []goal{{
		met: share < rejectedLimit, what: fmt.Sprintf("rejected writes under %.0f %% in every phase", 100*rejectedLimit),
		found: fmt.Sprintf("at most %.2f %%: %s of %s in %q at %s Pods", 100*share, stage.Thousands(sum(rejected.own.rejected)),
			stage.Thousands(sum(rejected.own.writes)), rejected.name, stage.Thousands(rejected.size)),
	}, {
		met: over <= 0, what: fmt.Sprintf("updates keep %.0f %% of the Pods ready", 100*(1-maxUnavailable)),
		found: fmt.Sprintf("at least %s of %s were, in %q", stage.Thousands(budget.least), stage.Thousands(budget.size), budget.name),
	}, {
		met: most < float64(limit), what: fmt.Sprintf("Usher's memory under %d MiB", limit),
		found: fmt.Sprintf("at most %.0f MiB, with %s Pods", most, stage.Thousands(memory.size)),
	}}
}

// readyFloor returns how many Pods must be ready; maxUnavailable rounds up.
func readyFloor(pods int) int { return pods - int(math.Ceil(maxUnavailable*float64(pods))) }

// pairs returns the results of each step in the smallest and in the largest size; none if there is one
// size.
func pairs(steps []*result) (pairs [][2]*result) {
	bySize := func(a, b *result) int { return a.size - b.size }
	small, large := slices.MinFunc(steps, bySize).size, slices.MaxFunc(steps, bySize).size
	for _, after := range steps {
		i := slices.IndexFunc(steps, func(r *result) bool {
			return r.size == small && r.name == after.name && r.server == after.server
		})
		if after.size == large && small < large && i >= 0 {
			pairs = append(pairs, [2]*result{steps[i], after})
		}
	}
	return pairs
}

// judgeSizes compares the smallest with the largest size.
func judgeSizes(steps []*result) (goals []goal) {
	for _, pair := range pairs(steps) {
		outLimit := outLimit
		if pair[1].timed {
			outLimit = linearLimit
			goals = append(goals, compare(pair, "Usher's CPU time a Pod", linearLimit, (*result).cpuPerPod))
		}
		if len(pair[0].out) > 0 && len(pair[1].out) > 0 {
			goals = append(goals, compare(pair, "p99 out of service", outLimit, func(r *result) time.Duration { return r.out.Percentile(99) }))
		}
		goals = append(goals, compare(pair, "time a Pod", linearLimit, func(r *result) time.Duration { return r.wall / time.Duration(r.pods) }))
	}
	return goals
}

// compare judges the time per Pod in the larger of two sizes, as if both machines had the same speed.
func compare(pair [2]*result, what string, limit float64, of func(*result) time.Duration) goal {
	small, large := pair[0], pair[1]
	faster, machines := machines(large, small)
	where := strings.TrimPrefix(large.server+", "+large.name, ", ") // without a registry, the name alone
	times := of(large).Seconds() / of(small).Seconds() * faster
	return goal{
		met: times <= limit, what: fmt.Sprintf("%s: %s at most %g × that at %s Pods", where, what, limit, stage.Thousands(small.size)),
		found: fmt.Sprintf("%.2f ×: %s at %s Pods, %s at %s%s", times, stage.Milliseconds(of(large)), stage.Thousands(large.size),
			stage.Milliseconds(of(small)), stage.Thousands(small.size), machines),
	}
}

// judgeOperator judges both halves of Usher with registries.
func judgeOperator(steps []*result) []goal {
	goals := slices.Concat(judgeEntries(steps), judgeCost(steps))
	for _, pair := range pairs(steps) {
		small, large := pair[0], pair[1]
		// The steps in which Usher is killed cost more by chance.
		if large.pods != large.size || large.name == stepIdle || small.cpu[usher] == 0 {
			continue
		}
		goals = append(goals, compare(pair, "Usher's CPU time a Pod", growthLimit, (*result).cpuPerPod))
	}
	return goals
}

// podWrites is the number of writes that a Pod needs, by step.
var podWrites = map[string]float64{stepRegister: 5, stepFailOver: 8, stepDeregister: 4}

// judgeCost judges what Pods cost in the largest size.
func judgeCost(steps []*result) (goals []goal) {
	memory, most := worst(steps, func(r *result) float64 { return r.peak })
	size, _ := worst(steps, func(r *result) float64 { return float64(r.size) })
	for _, r := range steps {
		limit, ok := podWrites[r.name]
		if !ok || r.size != size.size {
			continue
		}
		writes := 0
		for kind, n := range r.own.writes {
			if strings.HasPrefix(kind, "create pods") || strings.HasPrefix(kind, "patch pods") || kind == "delete pods" {
				writes += n
			}
		}
		pods := float64(r.pods + len(r.gone)) // Deleted Pods are replaced.
		goals = append(goals, goal{
			met:   float64(writes) <= limit*pods+max(limit*pods*chance, fewRepeated),
			what:  fmt.Sprintf("%s, %s: at most %g writes a Pod, and %.0f %% for what is repeated", r.server, r.name, limit, 100*chance),
			found: fmt.Sprintf("%.2f with %s Pods", float64(writes)/pods, stage.Thousands(r.size)),
		})
		if len(r.gone) > 0 {
			p99 := r.gone.Percentile(99)
			goals = append(goals, goal{
				time:  true,
				met:   p99 <= goneLimit,
				what:  fmt.Sprintf("%s, %s: from a Pod's deletion to its entry's removal at most %s, by p99", r.server, r.name, goneLimit),
				found: fmt.Sprintf("%s of %d Pods, while %s failed over", stage.Milliseconds(p99), len(r.gone), stage.Thousands(r.size)),
			})
		}
	}
	return append(goals, goal{
		met: most <= operatorMemoryLimit, what: fmt.Sprintf("Usher's memory at most %d MiB", operatorMemoryLimit),
		found: fmt.Sprintf("%.0f MiB, with %s Pods", most, stage.Thousands(memory.size)),
	})
}

// judgeEntries judges the changes of entries, for each registry and size.
func judgeEntries(steps []*result) (goals []goal) {
	for len(steps) > 0 {
		first := steps[0]
		end := slices.IndexFunc(steps, func(r *result) bool { return r.server != first.server || r.size != first.size })
		if end < 0 {
			end = len(steps)
		}
		var wrong []string
		left, noticed, written := 0, 0, 0
		for _, r := range steps[:end] {
			switch r.name {
			case stepControl:
				noticed = len(r.wrong)
				continue
			case stepIdle:
				written = r.calls.Writes() + r.joined + r.left
			}
			wrong, left = append(wrong, r.wrong...), left+r.left
		}
		where := fmt.Sprintf("%s, %s Pods: ", first.server, stage.Thousands(first.size))
		found := fmt.Sprintf("%s of %s entries that left", stage.Thousands(len(wrong)), stage.Thousands(left))
		if len(wrong) > 0 {
			found += ": " + strings.Join(wrong[:min(len(wrong), 3)], ", ")
		}
		goals = append(goals,
			goal{met: len(wrong) == 0, what: where + "no wrong deregistration, also when Usher is killed", found: found},
			goal{met: noticed == 1, what: where + "the watch notices an entry that is taken out by hand", found: fmt.Sprintf("%d noticed", noticed)},
			goal{met: written == 0, what: where + "a restart of an idle Usher writes nothing to the registry", found: fmt.Sprintf("%d writes", written)})
		steps = steps[end:]
	}
	return goals
}
