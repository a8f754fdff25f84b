// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"slices"

	"github.com/usher-dev/usher/internal/lifecycle"
)

// Held lists the Pods that wait at a gate, longest first: those of a snapshot as
// a pass left it. While a pass is being planned, Plan.Blocked tells.
func Held(s *Snapshot) []Blocked {
	if s.Deleting {
		return nil
	}
	var out []Blocked
	for _, pod := range s.Pods {
		var v podView
		s.read(&v, pod)
		if v.terminate {
			continue
		}
		if keys := lifecycle.Waiting(v.lifecycle(), s.Spec.Hooks); len(keys) > 0 {
			out = append(out, v.blocked(keys))
		}
	}
	slices.SortStableFunc(out, byWait)
	return out
}

func (p *podView) blocked(keys []string) Blocked {
	return Blocked{Pod: p.pod.Name, Gate: lifecycle.Gate(p.state), State: p.state, Keys: keys, Since: since(p.pod)}
}

func byWait(a, b Blocked) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Pod, b.Pod)) }
