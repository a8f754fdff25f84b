// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"maps"

	"k8s.io/apimachinery/pkg/types"

	"github.com/usher-dev/usher/internal/registration/plan"
)

// forget drops the notes about targets that no Registration has any more, or whose Registry is gone,
// and about objects that are gone. Nobody sweeps such a target again: its orphans would be counted, and
// its notes kept, as long as Usher runs. A target that comes back is swept at once, as a new one is.
func (p *pass) forget(targets []plan.Target) {
	known, objects := map[plan.Target]bool{}, map[types.UID]bool{}
	for _, r := range p.snapshot.Registrations {
		objects[r.UID] = true
	}
	for _, target := range targets {
		if object := p.objects[target.Registry]; object != nil {
			known[target], objects[object.UID] = true, true
		}
	}
	n := p.notes
	maps.DeleteFunc(n.confirmed, func(object types.UID, _ bool) bool { return !objects[object] })
	maps.DeleteFunc(n.suspects, func(target plan.Target, _ map[string]bool) bool { return !known[target] })
	maps.DeleteFunc(n.followed, func(target plan.Target, last followed) bool {
		return !known[target] && !p.snapshot.Now.Before(last.again) // a target that comes back is not asked sooner
	})
	for target := range n.swept {
		if !known[target] {
			delete(n.swept, target)
			delete(n.left, target)
			p.metrics.orphans.DeleteLabelValues(p.snapshot.Namespace, target.Registry)
		}
	}
	p.countOrphans()
}

// countOrphans shows how many orphans the last sweeps have left in each registry.
func (p *pass) countOrphans() {
	left := map[string]int{}
	for target, entries := range p.notes.left {
		left[target.Registry] += entries
	}
	for name, entries := range left {
		p.metrics.orphans.WithLabelValues(p.snapshot.Namespace, name).Set(float64(entries))
	}
}

// forgetNamespace drops the notes of a namespace about which there is nothing to remember. The next pass there
// begins with new ones.
func (p *pass) forgetNamespace() {
	n := p.notes
	kept := len(n.dirty) + len(n.swept) + len(n.suspects) + len(n.left) + len(n.answered) + len(n.confirmed) +
		len(n.refusals) + len(n.unlisted) + len(n.waits) + len(n.followed)
	if kept > 0 || n.kept > 0 || !p.Reconciler.written.empty(p.snapshot.Namespace) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if n.pace.Idle(p.clock.Now()) && len(n.changed) == 0 {
		delete(p.Reconciler.notes, p.snapshot.Namespace)
	}
}
