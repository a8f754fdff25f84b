// SPDX-License-Identifier: Apache-2.0

package nacos

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/usher-dev/usher/internal/registration/registry"
)

// errHeldBack is why a correct entry has no callers.
var errHeldBack = errors.New("it is held back by Nacos's own check: let Nacos reach the Pod's port, " +
	"or set the health checker of the service's cluster to NONE")

// plan compares changes with a list.
type plan struct {
	listed []listed
	// taken maps each address to the entry that has it.
	taken   map[string]registry.Entry
	steps   []step
	refused []error
}

func newPlan(instances []instance) *plan {
	p := &plan{listed: identify(instances), taken: map[string]registry.Entry{}}
	for _, l := range p.listed {
		p.taken[l.instance.at()] = l.entry
	}
	return p
}

// add plans removals before puts, because an address may pass from one entry to
// another.
func (p *plan) add(changes []registry.Change) {
	removals := func(a, b registry.Change) int { return strings.Compare(string(b.Op), string(a.Op)) }
	sorted := slices.SortedStableFunc(slices.Values(changes), removals)
	p.refused = append(p.refused, registry.Decide(p.listed, listed.asEntry, sorted, p.one))
}

// one plans a change that is left to make.
func (p *plan) one(c registry.Change, there *listed) error {
	if c.Op == registry.Remove {
		delete(p.taken, there.instance.at())
		p.steps = append(p.steps, step{change: c, gone: []instance{there.instance}})
		return nil
	}
	want, err := encode(c.Entry)
	if err != nil {
		return err
	}
	if there != nil && there.instance.shows(want) {
		return registry.Transient(errHeldBack)
	}
	if err := p.take(c.Entry, want.at()); err != nil {
		return err
	}
	s := step{change: c, put: &want, covered: there != nil}
	if there != nil && there.instance.at() != want.at() {
		s.gone = []instance{there.instance}
	}
	p.steps = append(p.steps, s)
	return nil
}

// take refuses an address that another entry has: Nacos identifies instances only by
// their address.
func (p *plan) take(e registry.Entry, at string) error {
	other, taken := p.taken[at]
	switch {
	case !taken || other.ID == e.ID:
		p.taken[at] = e
		return nil
	case other.Owner.Cluster != e.Owner.Cluster:
		return fmt.Errorf("its address %s is that of %s, which belongs to %s: %w", at, other.ID, other.Owner, registry.ErrForeign)
	}
	return fmt.Errorf("its address %s is that of %s: %w", at, other.ID, registry.ErrConflict)
}
