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
	listed  []registry.Entry
	current map[string]listed
	// taken maps each address to the ID of its entry.
	taken   map[string]string
	steps   []step
	refused []error
}

func newPlan(instances []instance) *plan {
	p := &plan{current: map[string]listed{}, taken: map[string]string{}}
	for _, l := range identify(instances) {
		p.listed = append(p.listed, l.entry)
		p.current[l.entry.ID] = l
		p.taken[l.instance.at()] = l.entry.ID
	}
	return p
}

// add plans removals before puts, because an address may pass from one entry to
// another.
func (p *plan) add(changes []registry.Change) {
	removals := func(a, b registry.Change) int { return strings.Compare(string(b.Op), string(a.Op)) }
	p.refused = registry.Decide(p.listed, slices.SortedStableFunc(slices.Values(changes), removals), p.one)
}

func (p *plan) refuse(id string, err error) {
	p.refused = append(p.refused, &registry.ChangeError{ID: id, Err: err})
}

// one plans a change that is left to make.
func (p *plan) one(c registry.Change) error {
	there, found := p.current[c.Entry.ID]
	if c.Op == registry.Remove {
		delete(p.taken, there.instance.at())
		p.steps = append(p.steps, step{id: c.Entry.ID, gone: []instance{there.instance}})
		return nil
	}
	want, err := encode(c.Entry)
	if err != nil {
		return err
	}
	if found && there.instance.shows(want) {
		return registry.Transient(errHeldBack)
	}
	if err := p.take(c.Entry, want.at()); err != nil {
		return err
	}
	s := step{id: c.Entry.ID, put: &want, covered: found}
	if found && there.instance.at() != want.at() {
		s.gone = []instance{there.instance}
	}
	p.steps = append(p.steps, s)
	return nil
}

// take refuses an address that another entry has: Nacos identifies instances only by
// their address.
func (p *plan) take(e registry.Entry, at string) error {
	id, taken := p.taken[at]
	if !taken || id == e.ID {
		p.taken[at] = e.ID
		return nil
	}
	if other, listed := p.current[id]; listed && other.entry.Owner.Cluster != e.Owner.Cluster {
		return fmt.Errorf("its address %s is that of %s, which belongs to %s: %w", at, id, other.entry.Owner, registry.ErrForeign)
	}
	return fmt.Errorf("its address %s is that of %s: %w", at, id, registry.ErrConflict)
}
