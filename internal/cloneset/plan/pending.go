// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"slices"

	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/internal/cloneset/revision"
)

// cancelPending relabels a Pod with the revision that it runs, and reports whether a revision
// fits. OpenKruise labels a Pod first and changes its containers after the grace period;
// a Pod that it left in between, and that is not to be updated now, would stay out of
// service for as long as the set is paused. Relabelling drops the waiting update, and the
// next pass brings the Pod back.
func (p *pass) cancelPending(v *podState) bool {
	if !v.pending || v.chosen || v.specified {
		return false
	}
	for _, r := range p.newestFirst() {
		change := inplace.Pending(v.pod, r.Template)
		if change.Drains() {
			continue
		}
		p.act(v, Action{Verb: Update, Reason: lifecycle.ReasonUpdateDropped, Revision: r, Change: change})
		return true
	}
	return false
}

// newestFirst lists the readable revisions: the current one first, which the Pod most
// likely has, then the others from newest to oldest.
func (p *pass) newestFirst() []*revision.Revision {
	var out []*revision.Revision
	for _, r := range p.Revisions {
		if r.Template != nil {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *revision.Revision) int {
		return cmp.Or(falseFirst(a != p.Current, b != p.Current), cmp.Compare(b.Number, a.Number), cmp.Compare(a.Name, b.Name))
	})
	return out
}
