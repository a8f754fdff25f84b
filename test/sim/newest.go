// SPDX-License-Identifier: Apache-2.0

package sim

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/test/model"
)

// ruleNewest names what judgeNewest checks.
const ruleNewest = "a pass sees nothing older than what the process has written"

// judgeNewest checks what a pass decides on: the version of each Pod that the process got as an answer before the pass
// looked at its cache, or a later one, and each Pod of which it has the answer alone. It does not matter which API
// server answered, and from which one the cache's list is.
func (p *Process) judgeNewest(s *plan.Snapshot) {
	seen := map[string]bool{}
	for _, pod := range s.Pods {
		seen[string(pod.UID)] = true
		if known := p.pass.known.wrote[pod.UID]; known != nil && model.Version(known) > model.Version(pod) {
			p.World.fail(ruleNewest, "Pod %s has version %d there, and the answer was %d", pod.Name, model.Version(pod), model.Version(known))
		}
	}
	for uid, known := range p.pass.known.wrote {
		if !seen[string(uid)] && p.onlyAnswered(known) {
			p.World.fail(ruleNewest, "Pod %s is not there, and its answer is the latest that is known of it", known.Name)
		}
	}
}

// onlyAnswered reports whether the cache has never shown a Pod of the set, and nothing has said since that it is gone,
// or another's.
func (p *Process) onlyAnswered(pod *corev1.Pod) bool {
	latest := p.pass.known.learned[pod.UID]
	gone := p.pass.known.absent[pod.UID] || p.deleted[pod.UID] || latest.DeletionTimestamp != nil
	mine := p.pass.set != nil && model.OwnerOf(latest) == string(p.pass.set.UID) && !pulls(pod)
	return mine && !gone && !p.caches[model.Pods].Shown[pod.UID]
}
