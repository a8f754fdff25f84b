// SPDX-License-Identifier: Apache-2.0

// Package registry defines what Usher needs from a place where callers find services.
//
// A connector translates and decides nothing. It lists what the registry has and
// applies changes computed from such a list. Package registration decides who belongs
// there.
//
// Entries have no lease, because an operator that is down must not take healthy
// instances with it. Instead, Usher compares them with the desired state every
// spec.repairInterval.
package registry

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"strings"
)

// Connector talks to one registry. It is safe for concurrent use.
//
// The context bounds every call. If the context ends a call, errors.Is finds both the
// context's cause and Transient in the error. The next call retries a registry that was
// unreachable, so a connector never needs to be rebuilt.
type Connector interface {
	// List returns every entry of the service, including those of other owners, sorted
	// by ID. It returns what a caller would read now, never a cache or a replica that
	// may lag, because Usher releases hooks based on it. Treat the maps in entries as
	// read-only: the connector may return them again.
	List(ctx context.Context, service string) ([]Entry, error)

	// Apply makes the changes, which have passed Validate. It compares each change with the current entry, as
	// Change.Check describes, in the same transaction if the registry supports that. A
	// refused change does not stop the others: its error is a *ChangeError, joined with
	// the other errors. Any other error means that some changes may have been made and
	// some not. Apply is idempotent, so the caller may send the same changes again.
	//
	// A registry that knows its requests in flight removes an entry in steps. The first
	// Remove hides the entry from callers. List keeps showing it as Unsettled until a
	// later Remove finds that the last request has ended.
	Apply(ctx context.Context, service string, changes []Change) error

	// Ping is the cheapest call that proves that the address and credentials work.
	Ping(ctx context.Context) error

	// Close frees connections. Entries stay.
	Close() error
}

// Entry is an instance of a service.
type Entry struct {
	// ID is unique within the service.
	ID string `json:"id"`
	// Address is an IP address. An entry of another owner may contain any text.
	Address string `json:"address"`
	// Port is from 1 to 65535.
	Port int32 `json:"port"`
	// Weight is the share of requests relative to other instances, at least 1. In a
	// listed entry, 0 means that the registry hides the entry from callers. In a wanted
	// entry, 0 asks a connector that can do so to hide it.
	Weight int32 `json:"weight"`
	// Metadata is for callers.
	Metadata map[string]string `json:"metadata,omitempty"`
	// Owner is zero for entries that Usher did not write.
	Owner Owner `json:"owner"`
	// Unsettled tells users why a listed entry is neither fully in service nor gone,
	// such as "it waits for 2 sessions on HAProxy 10.0.0.1:9999". Empty means in
	// service; a wanted entry's is always empty. Another Remove takes out an unsettled
	// entry once it can go; a Put brings it back.
	Unsettled string `json:"unsettled,omitempty"`
	// NoMetadata means that the registry cannot store metadata, so the listed metadata
	// proves nothing.
	NoMetadata bool `json:"-"`
	// Version is opaque. It changes whenever the entry does. Empty means "no such
	// entry".
	Version string `json:"version,omitempty"`
}

// Same reports whether callers and owners see no difference. It ignores versions, and
// metadata if the registry cannot store it.
func (e Entry) Same(other Entry) bool {
	return e.ID == other.ID && e.Address == other.Address && e.Port == other.Port &&
		e.Weight == other.Weight && e.Owner == other.Owner && e.Unsettled == other.Unsettled &&
		(e.NoMetadata || other.NoMetadata || maps.Equal(e.Metadata, other.Metadata))
}

// Op is the operation of a Change.
type Op string

const (
	// Put registers an instance or changes its entry.
	Put Op = "put"
	// Remove deregisters it.
	Remove Op = "remove"
)

// Change makes one instance join, change or leave.
type Change struct {
	// Op is the operation.
	Op Op `json:"op"`
	// Entry is the wanted entry. Its Version is what List returned for the ID, or empty
	// if there was no such entry. Remove reads only ID, Owner and Version.
	Entry Entry `json:"entry"`
}

// String describes the change for logs.
func (c Change) String() string { return string(c.Op) + " " + c.Entry.ID }

// Check compares the change with the entry that has its ID now, nil for none. apply is
// false if nothing is left to do. The error is ErrForeign for an entry of another
// cluster or of no owner, and ErrConflict for an entry that changed since it was
// listed.
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

// Validate refuses a batch that no registry could apply as a whole. holdsBack means that
// the connector can hold an entry back: one of weight 0 stays, is listed with that weight,
// and gets no callers. The error is permanent.
func Validate(service string, changes []Change, holdsBack bool) error {
	lightest := int32(1)
	if holdsBack {
		lightest = 0
	}
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
