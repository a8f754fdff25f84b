// SPDX-License-Identifier: Apache-2.0

package plan

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/usher-dev/usher/internal/cloneset/revision"
)

// scatter spreads the Pods with a label evenly over the rollout, from its first place to
// its last. Pods that are already updated have had its first places: without counting
// them, the next one with the label would come first in every pass.
func (s *Snapshot) scatter(pods []*podState, term ScatterTerm) []*podState {
	var matching, rest []*podState
	for _, p := range pods {
		if term.matches(p.pod) {
			matching = append(matching, p)
		} else {
			rest = append(rest, p)
		}
	}
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

func (t ScatterTerm) matches(pod *corev1.Pod) bool {
	value, ok := pod.Labels[t.Key]
	return ok && value == t.Value
}

// updated counts the Pods that have the update revision, and those of them that a term
// matches.
func (s *Snapshot) updated(term ScatterTerm) (all, matching int) {
	for _, pod := range s.Pods {
		if pod.DeletionTimestamp == nil && revision.Same(podRevision(pod), s.Update.Name) {
			all++
			matching += one(term.matches(pod))
		}
	}
	return all, matching
}
