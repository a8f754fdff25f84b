// SPDX-License-Identifier: Apache-2.0

package nacos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/rest"
)

const (
	// parallel is how many requests run at a time.
	parallel = 16
	// readBack is how often the list is checked for the written instances.
	readBack = 100 * time.Millisecond
	// overlaid is how long the list may take to show what was written. After that,
	// Usher assumes that a value which Nacos stores apart from the instance hides it.
	overlaid = 2 * time.Second
)

// step is a change with what it writes.
type step struct {
	change registry.Change
	// put is the wanted instance, nil to remove.
	put *instance
	// covered means that the address had an instance before, and someone may have set
	// values for it in the console. Those persist until they are replaced.
	covered bool
	// gone are the instances to remove.
	gone []instance
	// override has the values that Nacos stores apart from an application's instance; nil for other steps.
	override *instance
}

// Apply implements registry.Connector. It returns when the list shows the changes,
// after about half a second. If Nacos's own check holds back a correct entry, that is a
// transient error.
func (r *Registry) Apply(ctx context.Context, service string, changes []registry.Change) error {
	instances, err := r.read(ctx, service)
	if err != nil {
		return err
	}
	p := newPlan(instances, changes)
	if len(p.steps) == 0 {
		return errors.Join(p.refused...)
	}
	// Removals come first, because another entry may be waiting for the address.
	for _, removal := range []bool{true, false} {
		if err := r.each(ctx, service, p, removal); err != nil {
			return errors.Join(append(p.refused, err)...)
		}
	}
	return errors.Join(append(p.refused, r.settle(ctx, service, p.steps))...)
}

// each makes the steps that are removals, or the others. Refused steps are skipped from
// then on; any other error stops the writes.
func (r *Registry) each(ctx context.Context, service string, p *plan, removals bool) error {
	errs := registry.Each(ctx, len(p.steps), parallel, func(n int) error {
		if s := p.steps[n]; (s.put == nil) == removals {
			return r.make(ctx, service, s)
		}
		return nil
	})
	var kept []step
	for n, err := range errs {
		switch {
		case err == nil:
			kept = append(kept, p.steps[n])
		case errors.Is(err, registry.ErrTransient), errors.Is(err, rest.ErrDenied):
			return err
		default:
			p.refused = append(p.refused, p.steps[n].change.Refused(err))
		}
	}
	p.steps = kept
	return nil
}

// make puts first, and then removes an entry's former address. It also replaces what the
// console set on an instance.
func (r *Registry) make(ctx context.Context, service string, s step) error {
	if s.override != nil {
		return r.write(ctx, http.MethodPut, service, *s.override)
	}
	if s.put != nil {
		if err := r.write(ctx, http.MethodPost, service, *s.put); err != nil {
			return err
		}
		if s.covered {
			if err := r.write(ctx, http.MethodPut, service, *s.put); err != nil {
				return err
			}
		}
	}
	for _, old := range s.gone {
		old.Metadata = nil
		if err := r.write(ctx, http.MethodDelete, service, old); err != nil {
			return err
		}
	}
	return nil
}

func (r *Registry) write(ctx context.Context, method, service string, i instance) error {
	_, _, err := r.call(ctx, method, func(a *api) (string, url.Values) {
		return a.instance, i.form(a.where(r.root, service))
	})
	if errors.Is(err, errNotFound) {
		// It was deregistered together with its service.
		return nil
	}
	return err
}

// form adds every field to where the instance is, because an update must omit none.
func (i instance) form(where url.Values) url.Values {
	maps.Copy(where, url.Values{
		"ip": {i.IP}, "port": {strconv.Itoa(int(i.Port))}, "weight": {strconv.FormatFloat(i.Weight, 'f', -1, 64)},
		"enabled": {strconv.FormatBool(i.Enabled)}, "healthy": {"true"}, "ephemeral": {strconv.FormatBool(i.Ephemeral)},
	})
	if i.Metadata != nil {
		where.Set("metadata", string(encode.JSON(i.Metadata)))
	}
	return where
}

// settle waits until the list shows the steps. If one does not show in time, a leftover
// of an earlier instance with that address hides it, and settle replaces it.
func (r *Registry) settle(ctx context.Context, service string, steps []step) error {
	began := r.now()
	tick := time.NewTicker(readBack)
	defer tick.Stop()
	for {
		instances, err := r.read(ctx, service)
		if err != nil {
			return err
		}
		missing := unseen(steps, instances)
		if len(missing) == 0 {
			return nil
		}
		if r.now().Sub(began) > overlaid {
			began = r.now()
			if err := r.replace(ctx, service, missing); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return registry.Transient(fmt.Errorf("the list does not show %d changes, such as that of %s: %w",
				len(missing), missing[0].change.Entry.ID, context.Cause(ctx)))
		case <-tick.C:
		}
	}
}

func (r *Registry) replace(ctx context.Context, service string, steps []step) error {
	again := &plan{steps: steps}
	for n := range again.steps {
		again.steps[n].covered, again.steps[n].gone = true, nil
	}
	return errors.Join(r.each(ctx, service, again, false), errors.Join(again.refused...))
}

// unseen returns the steps that the list does not show.
func unseen(steps []step, instances []instance) []step {
	have := list.By(instances, instance.at)
	return slices.DeleteFunc(slices.Clone(steps), func(s step) bool { return s.seen(have) })
}

func (s step) seen(have map[string]instance) bool {
	if s.override != nil {
		i, there := have[s.override.at()]
		return !there || i.Enabled == s.override.Enabled && i.Metadata[metaOut] == s.override.Metadata[metaOut]
	}
	for _, old := range s.gone {
		if i, there := have[old.at()]; there && i.Metadata[metaID] == old.Metadata[metaID] {
			return false
		}
	}
	if s.put == nil {
		return true
	}
	i, there := have[s.put.at()]
	return there && i.shows(*s.put)
}

// errHeldBack is why a correct entry has no callers.
var errHeldBack = errors.New("it is held back by Nacos's own check: let Nacos reach the Pod's port, " +
	"or set the health checker of the service's cluster to NONE")

// plan is what changes a list to the wanted entries.
type plan struct {
	// taken maps each address to the entry that has it.
	taken   map[string]listed
	steps   []step
	refused []error
}

// newPlan plans removals before puts, because an address may pass from one entry to
// another.
func newPlan(instances []instance, changes []registry.Change) *plan {
	found := identify(instances)
	p := &plan{taken: list.By(found, func(l listed) string { return l.instance.at() })}
	removals := func(a, b registry.Change) int { return strings.Compare(string(b.Op), string(a.Op)) }
	sorted := slices.SortedStableFunc(slices.Values(changes), removals)
	var err error
	p.steps, err = registry.Decide(found, listed.asEntry, sorted, p.one)
	p.refused = []error{err}
	return p
}

// one plans a change that is left to make.
func (p *plan) one(c registry.Change, there *listed) (step, error) {
	if c.Op.Overrides() {
		return step{change: c, override: new(there.instance.overridden(c))}, nil
	}
	if c.Op == registry.Remove {
		delete(p.taken, there.instance.at())
		return step{change: c, gone: []instance{there.instance}}, nil
	}
	want, err := encoded(c.Entry)
	if err != nil {
		return step{}, err
	}
	if there != nil && there.instance.shows(want) {
		return step{}, registry.Transient(errHeldBack)
	}
	s := step{change: c, put: &want, covered: there != nil}
	if there != nil && there.instance.at() != want.at() {
		s.gone = []instance{there.instance}
	}
	return s, p.take(c.Entry, want.at())
}

// take refuses an address that another entry has: Nacos identifies instances only by
// their address.
func (p *plan) take(e registry.Entry, at string) error {
	found, taken := p.taken[at]
	switch other := found.entry; {
	case !taken || other.ID == e.ID:
		p.taken[at] = listed{entry: e}
		return nil
	case other.Owner.Cluster != e.Owner.Cluster:
		return fmt.Errorf("its address %s is that of %s, which belongs to %s: %w", at, other.ID, other.Owner, registry.ErrForeign)
	}
	return fmt.Errorf("its address %s is that of %s: %w", at, found.entry.ID, registry.ErrConflict)
}

// Metadata keys that Usher writes in addition to the owner. metaAddress repeats the
// instance's own address: metadata copied to another instance has the wrong one, which
// shows that the copy is not Usher's.
const metaID, metaAddress = registry.MetaPrefix + "id", registry.MetaPrefix + "address"

// maxWeight is Nacos's limit.
const maxWeight = 10000

// instance is an instance as Nacos lists it. Its address, port and cluster identify it.
type instance struct {
	IP       string            `json:"ip"`
	Port     int32             `json:"port"`
	Weight   float64           `json:"weight"`
	Healthy  bool              `json:"healthy"`
	Enabled  bool              `json:"enabled"`
	Metadata map[string]string `json:"metadata"`
	// Ephemeral means that its application keeps it alive.
	Ephemeral bool `json:"ephemeral"`
}

// listed is an instance with its entry.
type listed struct {
	instance instance
	entry    registry.Entry
}

func (l listed) asEntry() registry.Entry { return l.entry }

func (i instance) at() string { return net.JoinHostPort(i.IP, strconv.Itoa(int(i.Port))) }

// claims reports whether the metadata was written for this instance.
func (i instance) claims() bool { return i.Metadata[metaID] != "" && i.Metadata[metaAddress] == i.at() }

// identify gives every instance a unique ID, in the order of addresses. An interrupted
// change of address leaves two instances with one ID; the second gets another ID, so
// that it is found and removed.
func identify(instances []instance) []listed {
	sorted := slices.SortedFunc(slices.Values(instances), func(a, b instance) int { return strings.Compare(a.at(), b.at()) })
	seen := make(map[string]bool, len(sorted))
	all := make([]listed, 0, len(sorted))
	for _, i := range sorted {
		e := i.entry()
		if seen[e.ID] {
			e.ID += "@" + i.at()
		}
		seen[e.ID] = true
		all = append(all, listed{instance: i, entry: e})
	}
	return all
}

// entry converts the instance to an entry.
func (i instance) entry() registry.Entry {
	e := registry.Entry{ID: i.at(), Address: i.IP, Port: i.Port, Weight: i.weight(), Version: i.version()}
	if !i.Enabled || !i.Healthy {
		e.Weight = 0
	}
	e.SetMarkedMetadata(i.Metadata, func(string) bool { return false })
	if !i.claims() {
		e.Override, e.Hidden = i.Metadata[metaOut] != "", i.hidden()
		if e.Override {
			e.Weight = 0
		}
		return e
	}
	e.ID, e.Owner = i.Metadata[metaID], registry.MarkedOwner(i.Metadata)
	return e
}

// hidden is why callers do not get an application's instance; empty if they do.
func (i instance) hidden() string {
	switch {
	case i.Metadata[metaOut] != "":
		return "Usher has disabled it"
	case !i.Enabled:
		return "it is disabled in Nacos, by its application or by somebody else"
	case !i.Healthy:
		return "Nacos says that it is not healthy: its application sends no heartbeats, or does not answer"
	case i.weight() == 0:
		return "its weight is 0"
	}
	return ""
}

// metaOut is the key by which Usher marks an application's instance that it has disabled. Nacos stores it apart from the
// instance, with enabled and weight, whatever the application registers. disabledBefore is its value if somebody else
// had disabled the instance: then it stays disabled.
const metaOut, disabledBefore = registry.MetaPrefix + "out", "it was disabled before"

// overridden returns the values that Nacos is to store apart from an application's instance. Of the application's own
// values it has only the weight, which would be 1 otherwise.
func (i instance) overridden(c registry.Change) instance {
	mark := i.Metadata[metaOut]
	i.Metadata = map[string]string{}
	if c.Op == registry.BringBack {
		i.Enabled = mark != disabledBefore
		return i
	}
	i.Metadata[metaOut] = c.Entry.Owner.String()
	if !i.Enabled {
		i.Metadata[metaOut] = disabledBefore
	}
	i.Enabled = false
	return i
}

// weight is rounded up, so that only 0 becomes 0.
func (i instance) weight() int32 { return int32(math.Ceil(min(max(i.Weight, 0), maxWeight))) }

// version returns a digest, because Nacos has no versions.
func (i instance) version() string { return registry.Digest(encode.JSON(i)) }

// shows reports whether a listed instance is what was written, regardless of Nacos's
// own check.
func (i instance) shows(want instance) bool {
	i.Healthy = want.Healthy
	return i.version() == want.version()
}

// encode converts an entry to an instance. Errors are permanent.
func encoded(e registry.Entry) (instance, error) {
	i := instance{IP: e.Address, Port: e.Port, Weight: float64(max(e.Weight, 1)), Healthy: true, Enabled: e.Weight > 0}
	meta, err := e.MarkedMetadata(func(string, string) error { return nil })
	if err != nil {
		return instance{}, err
	}
	if e.Weight > maxWeight {
		return instance{}, registry.Permanent(fmt.Errorf("instance.weight %d is above Nacos's limit of %d: set a smaller one", e.Weight, maxWeight))
	}
	meta[metaID], meta[metaAddress] = e.ID, i.at()
	i.Metadata = meta
	return i, nil
}
