// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"math"
)

// The requirements for Usher.
const (
	// writesInPlace is the number of writes that the yardstick grants an in-place
	// update: out of service, the new image, in service, done.
	writesInPlace = 4
	// ceilingShare is the required share of what the API server allows.
	ceilingShare = 0.80
	// rejectedLimit limits the share of rejected writes, in each phase.
	rejectedLimit = 0.01
	// outLimit is how many times longer a Pod may be out of service in the largest size
	// than in the smallest, by p99.
	outLimit = 3.0
	// linearLimit is how many times longer per Pod a phase may take in the largest size
	// than in the smallest. It leaves a tenth for chance.
	linearLimit = 1.1
	// memoryLimit limits Usher's memory, in MiB.
	memoryLimit = 100
	// maxUnavailable is the share of Pods that updates may take out of service; the
	// CloneSet has it too.
	maxUnavailable = 0.20
)

// Verdict is whether a requirement is met.
type Verdict struct {
	// OK reports whether it is met.
	OK bool `json:"ok"`
	// What is the requirement.
	What string `json:"what"`
	// Found is what was measured.
	Found string `json:"found"`
}

// judge returns the verdicts. A requirement without measurements (a comparison of two
// sizes with only one) has none.
func judge(sizes []Size) []Verdict {
	if len(sizes) == 0 {
		return nil
	}
	small, large := extremes(sizes)
	verdicts := judgeRate(large)
	verdicts = append(verdicts, judgeRejected(sizes)...)
	verdicts = append(verdicts, judgeBudget(sizes)...)
	if small.Pods < large.Pods {
		verdicts = append(verdicts, judgeOutOfService(small, large)...)
		verdicts = append(verdicts, judgeLinear(small, large)...)
	}
	return append(verdicts, judgeMemory(sizes)...)
}

func extremes(sizes []Size) (small, large *Size) {
	small, large = &sizes[0], &sizes[0]
	for i := range sizes {
		if sizes[i].Pods < small.Pods {
			small = &sizes[i]
		}
		if sizes[i].Pods > large.Pods {
			large = &sizes[i]
		}
	}
	return small, large
}

func judgeRate(size *Size) []Verdict {
	phase, ceiling := size.phase(phaseInPlace), size.ceiling(ceilingImage)
	if phase == nil || ceiling == nil {
		return nil
	}
	limit := ceiling.PerSecond / writesInPlace
	share := phase.PodsPerSecond / limit
	// The nodes write too, for every update as often as Usher does. How much of that
	// falls into the time of the ceiling is chance, so the rate that they keep up with
	// is also reported.
	kept := float64(size.Pods) / ceiling.SettledSeconds
	return []Verdict{{
		OK:   share >= ceilingShare,
		What: fmt.Sprintf("in place, at least %.0f %% of the raw patch ceiling ÷ %d", 100*ceilingShare, writesInPlace),
		Found: fmt.Sprintf("%.0f %% at %s Pods: %.1f Pods/s of %.0f ÷ %d = %.1f; of the %.0f/s that the nodes keep up with, ÷ %d: %.0f %%%s",
			100*share, group(size.Pods), phase.PodsPerSecond, ceiling.PerSecond, writesInPlace, limit,
			kept, writesInPlace, 100*phase.PodsPerSecond*writesInPlace/kept, besideByHand(size, phase)),
	}}
}

// besideByHand reports a plain client's result with the same protocol.
func besideByHand(size *Size, phase *Phase) string {
	hand := size.ceiling(ceilingByHand)
	if hand == nil {
		return ""
	}
	return fmt.Sprintf("; by hand %.1f Pods/s, of which Usher has %.0f %%", hand.PerSecond, 100*phase.PodsPerSecond/hand.PerSecond)
}

// worst finds the phase with the largest value.
func worst(sizes []Size, value func(size *Size, phase *Phase) float64) (*Size, *Phase, float64) {
	var (
		atSize  *Size
		atPhase *Phase
		most    = math.Inf(-1)
	)
	for i := range sizes {
		for j := range sizes[i].Phases {
			if v := value(&sizes[i], &sizes[i].Phases[j]); v > most {
				atSize, atPhase, most = &sizes[i], &sizes[i].Phases[j], v
			}
		}
	}
	return atSize, atPhase, most
}

func judgeRejected(sizes []Size) []Verdict {
	size, phase, share := worst(sizes, func(_ *Size, p *Phase) float64 { return p.Usher.RejectedShare() })
	if phase == nil {
		return nil
	}
	return []Verdict{{
		OK:   share < rejectedLimit,
		What: fmt.Sprintf("rejected writes under %.0f %% in every phase", 100*rejectedLimit),
		Found: fmt.Sprintf("at most %.2f %%: %s of %s in %q at %s Pods", 100*share,
			group(sum(phase.Usher.Rejected)), group(phase.Usher.Total()), phase.Name, group(size.Pods)),
	}}
}

// judgeBudget compares the number of ready Pods with maxUnavailable.
func judgeBudget(sizes []Size) []Verdict {
	size, phase, over := worst(sizes, func(s *Size, p *Phase) float64 {
		if !p.Kind.updates() {
			return math.Inf(-1)
		}
		return float64(readyFloor(s.Pods)-p.LeastReady) / float64(s.Pods)
	})
	if phase == nil {
		return nil
	}
	return []Verdict{{
		OK:    over <= 0,
		What:  fmt.Sprintf("updates keep %.0f %% of the Pods ready", 100*(1-maxUnavailable)),
		Found: fmt.Sprintf("at least %s of %s were, in %q", group(phase.LeastReady), group(size.Pods), phase.Name),
	}}
}

// readyFloor is how many Pods must be ready; maxUnavailable rounds up.
func readyFloor(pods int) int { return pods - int(math.Ceil(maxUnavailable*float64(pods))) }

func judgeOutOfService(small, large *Size) []Verdict {
	var verdicts []Verdict
	for i := range large.Phases {
		after := &large.Phases[i]
		before := small.phase(after.Name)
		if after.OutOfService == nil || before == nil || before.OutOfService == nil {
			continue
		}
		times := after.OutOfService.P99 / before.OutOfService.P99
		verdicts = append(verdicts, Verdict{
			OK:   times <= outLimit,
			What: fmt.Sprintf("%s: p99 out of service at most %g × that at %s Pods", after.Name, outLimit, group(small.Pods)),
			Found: fmt.Sprintf("%.1f ×: %s at %s Pods, %s at %s", times, milliseconds(after.OutOfService.P99), group(large.Pods),
				milliseconds(before.OutOfService.P99), group(small.Pods)),
		})
	}
	return verdicts
}

func judgeLinear(small, large *Size) []Verdict {
	var verdicts []Verdict
	for i := range large.Phases {
		after := &large.Phases[i]
		before := small.phase(after.Name)
		if before == nil {
			continue
		}
		times := (after.Seconds / float64(large.Pods)) / (before.Seconds / float64(small.Pods))
		verdicts = append(verdicts, Verdict{
			OK:   times <= linearLimit,
			What: after.Name + ": no worse than linear",
			Found: fmt.Sprintf("%.2f × the time per Pod: %.1f s for %s Pods, %.2f s for %s%s", times,
				after.Seconds, group(large.Pods), before.Seconds, group(small.Pods), aloneGrows(small, large, after.Name)),
		})
	}
	return verdicts
}

// aloneGrows reports how the API server and nodes cope with the larger size without any
// controller, where a ceiling does what the phase does.
func aloneGrows(small, large *Size, phase string) string {
	alike := map[string]string{
		phaseInPlace: ceilingByHand, phaseScaleOut: ceilingCreate, phaseScaleIn: ceilingDelete, phaseScaleInHook: ceilingDelete,
	}
	before, after := small.ceiling(alike[phase]), large.ceiling(alike[phase])
	if before == nil || after == nil {
		return ""
	}
	times := (after.SettledSeconds / float64(large.Pods)) / (before.SettledSeconds / float64(small.Pods))
	return fmt.Sprintf("; without a controller %s takes %.2f ×", alike[phase], times)
}

func judgeMemory(sizes []Size) []Verdict {
	size, phase, most := worst(sizes, func(_ *Size, p *Phase) float64 { return p.PeakMiB })
	if phase == nil {
		return nil
	}
	return []Verdict{{
		OK:    most < memoryLimit,
		What:  fmt.Sprintf("Usher's memory under %d MiB", memoryLimit),
		Found: fmt.Sprintf("at most %.0f MiB, with %s Pods", most, group(size.Pods)),
	}}
}

// Missed reports whether a requirement is not met.
func (r *Report) Missed() bool {
	for _, v := range r.Verdicts {
		if !v.OK {
			return true
		}
	}
	return false
}
