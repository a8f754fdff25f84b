// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"strings"
)

// instanceIDLength is the length of the random part of a Pod's name.
const instanceIDLength = 5

// prunePodsToDelete sorts the names in podsToDelete: some are finished, some wait, and some never
// named a Pod.
func (p *pass) prunePodsToDelete() {
	if len(p.named) == 0 {
		return
	}
	var unknown []string
	for _, name := range slices.Compact(slices.Sorted(slices.Values(p.Spec.PodsToDelete))) {
		switch v := p.byName(name); {
		case v != nil:
			if v.terminate || p.deletes(v) {
				p.plan.PrunePodsToDelete = append(p.plan.PrunePodsToDelete, name)
			}
		case p.madeHere(name):
			p.plan.PrunePodsToDelete = append(p.plan.PrunePodsToDelete, name)
		default:
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		p.problem(ProblemNoSuchPod, "scaleStrategy.podsToDelete names %s, which is not a Pod of this CloneSet: remove or correct the name",
			strings.Join(unknown, ", "))
	}
}

// byName finds a Pod of the snapshot, which is sorted by name; nil if there is none.
func (p *pass) byName(name string) *podState {
	i, found := slices.BinarySearchFunc(p.states, name, func(v podState, name string) int { return strings.Compare(v.pod.Name, name) })
	if !found {
		return nil
	}
	return &p.states[i]
}

func (p *pass) deletes(v *podState) bool {
	return v.acted && p.plan.Actions[v.action].Verb == Delete
}

// madeHere reports whether a name has the form that this set gives its Pods: then it is
// taken for a deleted Pod.
func (p *pass) madeHere(name string) bool {
	id, ok := strings.CutPrefix(name, p.Set+"-")
	return ok && len(id) == instanceIDLength && !strings.Contains(id, "-")
}
