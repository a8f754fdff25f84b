// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/usher-dev/usher/internal/list"
)

// A Registration that does not select a Pod any more is forgotten when its callers know: until then the Pod's annotation
// names it, and whoever deletes the Pod waits for these callers as well. A Pod that is selected again before that has no
// entry, although its annotation names the Registration and its condition may be true because of others: it returns.

// Departure is a Pod that a Registration does not select any more, and that its registries do not list.
type Departure struct {
	Pod          types.UID
	Registration string
}

// Departures says since when plans have seen them. A process that knows of none waits for callers anew.
type Departures map[Departure]time.Time

func (p *Plan) noteDeparture(at Departure, since time.Time) {
	if p.Departures == nil {
		p.Departures = Departures{}
	}
	p.Departures[at] = since
}

// forget removes from the Pod's annotation the Registrations that have deselected it, and whose callers know that. It
// returns what the others wait for, and when the next one may be forgotten.
func (ix *index) forget(p *pod, patch *PodPatch, plan *Plan) (waiting []Waiting, next time.Time) {
	before := p.deselected()
	after := slices.DeleteFunc(slices.Clone(before), func(r *registration) bool {
		v := ix.gone(p, r)
		waiting = append(waiting, v.waiting...)
		if !v.passes() {
			return false
		}
		end := ix.departs(p, r, plan)
		next = list.Earliest(next, end)
		return end.IsZero()
	})
	if len(after) < len(before) {
		patch.Registrations = namesOf(p.selectedBy, after)
	}
	return waiting, next
}

// departs notes a departure, and returns when all callers know of it; zero if they do.
func (ix *index) departs(p *pod, r *registration, plan *Plan) (end time.Time) {
	at := Departure{p.uid, r.Name}
	since, known := ix.Departures[at]
	if !known {
		since = ix.Now
	}
	plan.noteDeparture(at, since)
	for _, t := range r.targets() {
		if !ix.writesTo(t) {
			continue
		}
		outage := ix.Registries[t.Registry].Outage
		heard, _ := outage.heard(since, propagation(r.Registration), afterOutage(r.Registration), ix.Now)
		if ix.Now.Before(heard) {
			r.awaited[t] = true
			end = list.Latest(end, heard)
		}
	}
	return end
}

// findReturns finds the Pods that a Registration selects again before it was forgotten.
func (ix *index) findReturns() {
	for _, p := range ix.pods {
		returns := len(ix.Departures) > 0 && slices.ContainsFunc(p.selectedBy, func(r *registration) bool {
			_, departed := ix.Departures[Departure{p.uid, r.Name}]
			return departed
		})
		if p.returns != returns {
			p.returns, p.idle = returns, nil
			p.settled = p.isSettled()
		}
	}
}

// keepReturns keeps what is known of a Pod that returns until every registry lists it again.
func (ix *index) keepReturns(p *pod, plan *Plan) {
	if !p.returns {
		return
	}
	for _, r := range p.selectedBy {
		lacks := func(t Target) bool { return ix.writesTo(t) && !ix.presence(r, t, p).current }
		at := Departure{p.uid, r.Name}
		if since, departed := ix.Departures[at]; departed && slices.ContainsFunc(r.current, lacks) {
			plan.noteDeparture(at, since)
		}
	}
}
