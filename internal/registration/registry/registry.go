// SPDX-License-Identifier: Apache-2.0

// Package registry is what Usher asks of a place where callers find services.
//
// A connector translates; it decides nothing. It lists what the registry has
// and applies changes that were computed from such a list. Who belongs there
// is decided in package registration.
//
// Entries carry no lease: an operator that is down must not take healthy
// instances with it. They are compared with what they should be every
// spec.repairInterval instead.
package registry

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"strings"
)

// Connector talks to one registry. It can be used from several goroutines.
//
// Every call is bounded by its context, and a call that the context ended
// returns an error that errors.Is finds both that cause and Transient in. A
// registry that was unreachable is tried anew by the next call: a connector
// needs no rebuilding to recover.
type Connector interface {
	// List returns every entry of the service, also those of other owners,
	// sorted by ID. It reads what a caller would read now: never from a cache,
	// never from a replica that may lag, because hooks are released on its word.
	// Maps of entries are for reading: the connector may hand them out again.
	List(ctx context.Context, service string) ([]Entry, error)

	// Apply makes the changes. Each is compared with what is there when it is
	// made, as Change.Check describes; where the registry can, in the same
	// transaction. A change that is refused does not keep the others back: its
	// error is a *ChangeError, joined with those of the others. Any other error
	// says that some changes may have been made and some not; Apply is
	// idempotent, so the same changes may be sent again.
	//
	// A registry that sees requests in flight removes in steps: the first Remove
	// takes the entry out of the choice of callers, and List goes on to show it,
	// Unsettled, until a later one finds that the last request is over.
	Apply(ctx context.Context, service string, changes []Change) error

	// Ping is the cheapest call that proves that the address and the
	// credentials work.
	Ping(ctx context.Context) error

	// Close frees connections. Entries stay.
	Close() error
}

// Entry is an instance of a service.
type Entry struct {
	// ID is unique in the service.
	ID string `json:"id"`
	// Address is an IP address. An entry of another owner may hold anything.
	Address string `json:"address"`
	// Port is from 1 to 65535.
	Port int32 `json:"port"`
	// Weight is the share of requests relative to other instances, at least 1. A
	// listed one of 0 says that the registry holds the entry back from callers; a
	// wanted one of 0 asks for that, of connectors that can (ValidateHolding).
	Weight int32 `json:"weight"`
	// Metadata is for callers.
	Metadata map[string]string `json:"metadata,omitempty"`
	// Owner is zero for entries that Usher did not write.
	Owner Owner `json:"owner"`
	// Unsettled says why a listed entry is neither fully in service nor gone, for
	// people: "it waits for 2 sessions on HAProxy 10.0.0.1:9999". Empty, which a
	// wanted entry always is: it is in service. Removing an unsettled entry again
	// takes it out once it can go; a Put brings it back.
	Unsettled string `json:"unsettled,omitempty"`
	// NoMetadata says that the registry has no place for metadata, so that what
	// is listed says nothing about it.
	NoMetadata bool `json:"-"`
	// Version is opaque. It changes whenever the entry does; empty stands for
	// "no such entry".
	Version string `json:"version,omitempty"`
}

// Same says whether callers and owners see no difference; versions do not count,
// nor does metadata where the registry cannot hold it.
func (e Entry) Same(other Entry) bool {
	return e.ID == other.ID && e.Address == other.Address && e.Port == other.Port &&
		e.Weight == other.Weight && e.Owner == other.Owner && e.Unsettled == other.Unsettled &&
		(e.NoMetadata || other.NoMetadata || maps.Equal(e.Metadata, other.Metadata))
}

// Op is what a Change does.
type Op string

const (
	// Put registers an instance or changes its entry.
	Put Op = "put"
	// Remove deregisters it.
	Remove Op = "remove"
)

// Change is one instance that joins, changes or leaves.
type Change struct {
	// Op says which.
	Op Op `json:"op"`
	// Entry is the wanted one. Its Version is what List returned for the ID,
	// empty if there was no such entry. Remove reads ID, Owner and Version only.
	Entry Entry `json:"entry"`
}

// String describes the change for logs.
func (c Change) String() string { return string(c.Op) + " " + c.Entry.ID }

// Check decides the change against the entry that has its ID now, nil for none:
// apply is false where nothing is left to do. Errors are ErrForeign for an
// entry of another cluster or of nobody, and ErrConflict for one that changed
// since it was listed.
func (c Change) Check(current *Entry) (apply bool, err error) {
	switch {
	case current == nil && c.Op == Remove:
		return false, nil
	case current == nil && c.Entry.Version != "":
		return false, fmt.Errorf("it is gone: %w", ErrConflict)
	case current == nil:
		return true, nil
	case c.Op == Put && c.Entry.Same(*current):
		return false, nil
	case current.Owner.Cluster != c.Entry.Owner.Cluster:
		return false, fmt.Errorf("it belongs to %s: %w", current.Owner, ErrForeign)
	case current.Version != c.Entry.Version:
		return false, fmt.Errorf("it changed since it was listed: %w", ErrConflict)
	}
	return true, nil
}

// Validate refuses a batch that no registry could apply as a whole. The error
// is permanent and nothing was changed.
func Validate(service string, changes []Change) error { return validate(service, changes, 1) }

// ValidateHolding is Validate for connectors that can hold an entry back: one of
// weight 0 stays, is listed with that weight, and gets no callers.
func ValidateHolding(service string, changes []Change) error { return validate(service, changes, 0) }

func validate(service string, changes []Change, lightest int32) error {
	if service == "" {
		return Permanent(fmt.Errorf("service is empty: set spec.instance.service"))
	}
	seen := make(map[string]bool, len(changes))
	for _, change := range changes {
		if seen[change.Entry.ID] {
			return Permanent(fmt.Errorf("entry %q is in the batch twice", change.Entry.ID))
		}
		seen[change.Entry.ID] = true
		if err := change.validate(lightest); err != nil {
			return Permanent(fmt.Errorf("entry %q: %w", change.Entry.ID, err))
		}
	}
	return nil
}

func (c Change) validate(lightest int32) error {
	entry := c.Entry
	switch {
	case entry.ID == "" || strings.ContainsAny(entry.ID, "/ \t\n"):
		return fmt.Errorf("an id has one character or more, none of them a slash or a space")
	case entry.Owner.Cluster == "" || entry.Owner.PodUID == "":
		return fmt.Errorf("it has no owner: cluster and uid are needed")
	case c.Op == Remove:
		return nil
	case c.Op != Put:
		return fmt.Errorf("operation %q is unknown: use %q or %q", c.Op, Put, Remove)
	case entry.Port < 1 || entry.Port > 65535:
		return fmt.Errorf("port %d is not from 1 to 65535", entry.Port)
	case entry.Weight < lightest:
		return fmt.Errorf("weight %d is below %d", entry.Weight, lightest)
	}
	if _, err := netip.ParseAddr(entry.Address); err != nil {
		return fmt.Errorf("address: %w", err)
	}
	return nil
}
