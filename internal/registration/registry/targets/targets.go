// SPDX-License-Identifier: Apache-2.0

// Package targets makes entries of the targets of clouds' load balancers, which Usher only reads.
package targets

import (
	"cmp"
	"fmt"
	"net/netip"
	"path"

	"github.com/usher-dev/usher/internal/registration/registry"
)

// Use is what a load balancer does with a target.
type Use int

const (
	// Unknown means that callers may get it, in a state that Usher does not know.
	Unknown Use = iota
	// Comes means that callers may get it, and that it is not as it should be.
	Comes
	// Serves means that callers get it.
	Serves
	// Leaves means that callers get it no more, and that what was begun goes on.
	Leaves
	// Unused means that nobody gets it.
	Unused
)

// Target is an address in a group of targets.
type Target struct {
	// Group is the group's name, and Kind what such a group is called. Zone is the part of the group that has the
	// target; empty if it has none.
	Kind, Group, Zone string
	Address           string
	Port              int32
	Use               Use
	// Text says what the group has, for people.
	Text string
	// Version changes with the target's state.
	Version string
}

// Entries are the targets as entries. One that is healthy is in service once the address is healthy in all groups.
func Entries(groups []string, targets []Target) []registry.Entry {
	all := make([]registry.Entry, len(targets))
	healthy, why := map[string]bool{}, map[string]string{}
	for i, t := range targets {
		all[i] = t.Entry()
		key := t.Group + "/" + t.Address
		healthy[key] = healthy[key] || t.Use == Serves
		why[key] = cmp.Or(all[i].Unsettled, all[i].Hidden)
	}
	for i := range all {
		e := &all[i]
		for _, group := range groups {
			key := group + "/" + e.Address
			if e.Weight == 0 || e.Unsettled != "" || healthy[key] {
				continue
			}
			e.Unsettled = cmp.Or(why[key], fmt.Sprintf("%s %s does not have it yet", targets[i].Kind, group))
			e.Version += ", not in " + group
		}
	}
	registry.Sort(all)
	return all
}

// Entry is what a target is to callers.
func (t Target) Entry() registry.Entry {
	e := registry.Entry{
		ID: fmt.Sprintf("%s/%s:%d", path.Join(t.Group, t.Zone), t.Address, t.Port), Address: t.Address, Port: t.Port, NoMetadata: true, Version: t.Version,
	}
	switch t.Use {
	case Serves:
		e.Weight = 1
	case Unknown, Comes:
		e.Weight, e.Unsettled = 1, t.Text
	case Leaves:
		e.Unsettled = t.Text
	case Unused:
		e.Hidden = t.Text
	}
	return e
}

// Canonical is an address as Kubernetes writes it.
func Canonical(address string) string {
	if parsed, err := netip.ParseAddr(address); err == nil {
		return parsed.String()
	}
	return address
}
