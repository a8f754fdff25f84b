// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/revision"
)

// byUse orders Pods for deletion, the least useful first. Ties are ordered by how full their domains
// are (see domainCounts), then byAge.
func byUse(a, b *podState) int {
	return cmp.Or(
		falseFirst(a.scheduled, b.scheduled),
		cmp.Compare(phaseRank(a.phase), phaseRank(b.phase)),
		falseFirst(a.available, b.available),
		falseFirst(a.ready, b.ready),
		cmp.Compare(a.cost, b.cost),
	)
}

// byAge orders equally useful victims: Pods that have served for the shortest time come first.
func byAge(a, b *podState) int {
	return cmp.Or(
		laterFirst(a.readySince, b.readySince),
		cmp.Compare(b.restarts, a.restarts),
		laterFirst(a.created, b.created),
		cmp.Compare(a.pod.Name, b.pod.Name),
	)
}

// byUpdate orders Pods for an update, the least useful first. Priorities and scattering
// come after it.
func byUpdate(a, b *podState) int {
	return cmp.Or(
		falseFirst(a.scheduled, b.scheduled),
		cmp.Compare(phaseRank(a.phase), phaseRank(b.phase)),
		falseFirst(a.ready, b.ready),
	)
}

func falseFirst(a, b bool) int { return cmp.Compare(one(a), one(b)) }

func laterFirst(a, b time.Time) int { return b.Compare(a) }

func phaseRank(phase corev1.PodPhase) int {
	switch phase {
	case corev1.PodPending, "":
		return 0
	case corev1.PodUnknown:
		return 1
	}
	return 2
}

// orderForUpdate sorts Pods as spec.updateStrategy asks. Pods whose update has begun stay
// first whatever else changes: they are already out of service.
func (s *Snapshot) orderForUpdate(pods []*podState) []*podState {
	var rest []*podState
	if len(s.Spec.Weights)+len(s.Spec.OrderKeys)+len(s.Spec.Scatter) == 0 {
		// Only Pods that come before a serving one need sorting: nearly all Pods of a large set serve,
		// and are in the order of their names already.
		serving := &podState{PodInfo: &PodInfo{scheduled: true, phase: corev1.PodRunning, ready: true}}
		pods, rest = split(pods, func(p *podState) bool { return p.begun() || byUpdate(p, serving) < 0 })
	}
	for _, p := range pods {
		p.weight = s.weight(p)
	}
	slices.SortStableFunc(pods, func(a, b *podState) int {
		return cmp.Or(
			byUpdate(a, b),
			cmp.Compare(b.weight, a.weight),
			s.compareOrderKeys(a, b),
			falseFirst(a.state != apps.StatePreparingUpdate, b.state != apps.StatePreparingUpdate),
			cmp.Compare(a.pod.Name, b.pod.Name),
		)
	})
	for _, term := range s.Spec.Scatter {
		pods = s.scatter(pods, term)
	}
	slices.SortStableFunc(pods, func(a, b *podState) int { return falseFirst(!a.begun(), !b.begun()) })
	return append(pods, rest...)
}

// split separates Pods, and keeps their order.
func split(pods []*podState, of func(*podState) bool) (are, others []*podState) {
	for _, v := range pods {
		if of(v) {
			are = append(are, v)
		} else {
			others = append(others, v)
		}
	}
	return are, others
}

// begun reports whether the Pod's update has begun.
func (p *podState) begun() bool {
	return p.state == apps.StatePreparingUpdate || p.state == apps.StateUpdating || p.out
}

func (s *Snapshot) weight(p *podState) int {
	sum := 0
	for _, term := range s.Spec.Weights {
		if term.Selector.Matches(labels.Set(p.labels)) {
			sum += term.Weight
		}
	}
	return sum
}

// compareOrderKeys compares the trailing numbers of the first listed label that either
// Pod carries; a Pod without it comes last.
func (s *Snapshot) compareOrderKeys(a, b *podState) int {
	for _, term := range s.Spec.OrderKeys {
		valueA, okA := a.labels[term.OrderedKey]
		valueB, okB := b.labels[term.OrderedKey]
		if !okA && !okB {
			continue
		}
		if okA != okB {
			return falseFirst(okB, okA)
		}
		return cmp.Compare(trailingNumber(valueB), trailingNumber(valueA))
	}
	return 0
}

func trailingNumber(text string) int {
	digits := text[len(strings.TrimRight(text, "0123456789")):]
	number, err := strconv.Atoi(digits)
	if err != nil {
		return -1
	}
	return number
}

// scatter spreads the Pods with a label evenly over the rollout, from its first place to its last. Pods
// that are already updated count as its first places: otherwise the next Pod with the label would come
// first in every pass.
func (s *Snapshot) scatter(pods []*podState, term apps.UpdateScatterTerm) []*podState {
	matching, rest := split(pods, func(p *podState) bool { return matches(term, p.pod) })
	if len(matching) == 0 || len(rest) == 0 {
		return pods
	}
	done, doneMatching := s.updated(term)
	out := make([]*podState, 0, len(pods))
	last, gaps := done+len(pods)-1, max(doneMatching+len(matching)-1, 1)
	for i := range matching {
		place := (2*(doneMatching+i)*last+gaps)/(2*gaps) - done // i·last/gaps, rounded half up
		for len(out) < place && len(rest) > 0 {
			out, rest = append(out, rest[0]), rest[1:]
		}
		out = append(out, matching[i])
	}
	return append(out, rest...)
}

func matches(term apps.UpdateScatterTerm, pod *corev1.Pod) bool {
	value, ok := pod.Labels[term.Key]
	return ok && value == term.Value
}

// updated counts the Pods that have the update revision, and those of them that a term
// matches.
func (s *Snapshot) updated(term apps.UpdateScatterTerm) (all, matching int) {
	for _, pod := range s.Pods {
		if pod.DeletionTimestamp == nil && revision.Same(RevisionOf(pod), s.Update.Name) {
			all++
			matching += one(matches(term, pod))
		}
	}
	return all, matching
}
