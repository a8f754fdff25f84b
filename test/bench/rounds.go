// SPDX-License-Identifier: Apache-2.0

package bench

import "slices"

// maxRounds bounds how often a size is measured.
const maxRounds = 10

// rounds is how often a size is measured, relative to the largest: until as many Pods
// have moved, up to a limit. Rare long events (a garbage collection of the API server
// takes as long as a hundred Pods) should have the same share in all sizes; a single
// round of a half-second phase gets all of one or nothing.
func rounds(pods, largest int) int { return min(max(largest/pods, 1), maxRounds) }

// turn is one round of one size.
type turn struct {
	// size is its index in Options.Sizes.
	size int
	// round is its number, from 0, out of of.
	round, of int
}

// schedule orders the rounds of all sizes: half of those of each smaller size, then the
// largest, then the other halves. A machine that gets faster or slower meanwhile then
// affects all sizes alike.
func schedule(sizes []int) []turn {
	largest := slices.Max(sizes)
	var first, middle, last []turn
	for i, n := range sizes {
		times := rounds(n, largest)
		for round := range times {
			t := turn{size: i, round: round, of: times}
			switch {
			case n == largest:
				middle = append(middle, t)
			case 2*round < times:
				first = append(first, t)
			default:
				last = append(last, t)
			}
		}
	}
	return slices.Concat(first, middle, last)
}

// inTurn measures one round after the other, and combines the sizes of which all rounds
// are done.
func inTurn(sizes []int, measure func(n int, t turn) (Size, error)) ([]Size, error) {
	done := make([][]Size, len(sizes))
	var failure error
	for _, t := range schedule(sizes) {
		size, err := measure(sizes[t.size], t)
		if err != nil {
			failure = err
			break
		}
		done[t.size] = append(done[t.size], size)
	}
	var all []Size
	for i, n := range sizes {
		if len(done[i]) == rounds(n, slices.Max(sizes)) {
			all = append(all, together(done[i]))
		}
	}
	return all, failure
}

// together combines the rounds of one size: a time is the mean of all rounds, a count
// their sum, a distribution covers all samples, and what must hold in every round is
// the worst one.
func together(rounds []Size) Size {
	all := Size{Pods: rounds[0].Pods, Rounds: len(rounds)}
	for i := range rounds[0].Ceilings {
		var of []Ceiling
		for _, round := range rounds {
			of = append(of, round.Ceilings[i])
		}
		all.Ceilings = append(all.Ceilings, meanCeiling(of, all.Pods))
	}
	for i := range rounds[0].Phases {
		var of []Phase
		for _, round := range rounds {
			of = append(of, round.Phases[i])
		}
		all.Phases = append(all.Phases, meanPhase(of, all.Pods))
	}
	return all
}

func meanCeiling(rounds []Ceiling, pods int) Ceiling {
	all := Ceiling{Name: rounds[0].Name}
	for _, c := range rounds {
		all.Seconds += c.Seconds
		all.SettledSeconds += c.SettledSeconds
		all.CPU = all.CPU.plus(c.CPU)
		all.Latency = all.Latency.with(c.Latency)
	}
	share := 1 / float64(len(rounds))
	all.Seconds *= share
	all.SettledSeconds *= share
	all.CPU = all.CPU.times(share)
	all.PerSecond = float64(pods) / all.Seconds
	return all
}

func meanPhase(rounds []Phase, pods int) Phase {
	all := Phase{Name: rounds[0].Name, Kind: rounds[0].Kind, Usher: newRequests(), LeastReady: rounds[0].LeastReady}
	for i := range rounds {
		p := &rounds[i]
		all.Seconds += p.Seconds
		all.StatusSeconds += p.StatusSeconds
		all.CPU = all.CPU.plus(p.CPU)
		all.Usher.plus(p.Usher)
		all.OtherWrites += p.OtherWrites
		all.HookAnswers += p.HookAnswers
		all.OutOfService = all.OutOfService.with(p.OutOfService)
		all.Startup = all.Startup.with(p.Startup)
		all.LeastReady = min(all.LeastReady, p.LeastReady)
		all.PeakMiB = max(all.PeakMiB, p.PeakMiB)
	}
	share := 1 / float64(len(rounds))
	all.Seconds *= share
	all.StatusSeconds *= share
	all.CPU = all.CPU.times(share)
	all.PodsPerSecond = float64(pods) / all.Seconds
	all.WritesPerPod = float64(all.Usher.Total()) / float64(pods*len(rounds))
	return all
}

// plus adds requests.
func (r *Requests) plus(other *Requests) {
	if other == nil {
		return
	}
	for _, counts := range []struct{ of, more map[string]int }{{r.Writes, other.Writes}, {r.Rejected, other.Rejected}} {
		for what, count := range counts.more {
			counts.of[what] += count
		}
	}
	r.Reads += other.Reads
}

func (c CPU) plus(other CPU) CPU {
	return CPU{
		Usher: c.Usher + other.Usher, APIServer: c.APIServer + other.APIServer, Etcd: c.Etcd + other.Etcd,
		Others: c.Others + other.Others, Harness: c.Harness + other.Harness,
		Registry: c.Registry + other.Registry, Elsewhere: c.Elsewhere + other.Elsewhere,
	}
}

func (c CPU) times(factor float64) CPU {
	return CPU{
		Usher: c.Usher * factor, APIServer: c.APIServer * factor, Etcd: c.Etcd * factor,
		Others: c.Others * factor, Harness: c.Harness * factor,
		Registry: c.Registry * factor, Elsewhere: c.Elsewhere * factor,
	}
}
