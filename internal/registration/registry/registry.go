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
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
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

// Selecting is a Connector whose services choose their instances themselves, by labels of Pods.
type Selecting interface {
	Connector
	// Choose returns the labels that the service asks for, with what List returns.
	Choose(ctx context.Context, service string) (selector map[string]string, entries []Entry, err error)
}

// Lister is what a registry needs whose entries somebody else writes. Its entries belong to Pods by their
// addresses. One is in service if its weight is above 0 and Unsettled is empty; callers may get it otherwise as long
// as Unsettled says why it is in between, with the weight 0 if it is on its way out; one of the weight 0 without that
// gets no callers, and Hidden says why.
type Lister interface {
	// List, Ping and Close are as in Connector.
	List(ctx context.Context, service string) ([]Entry, error)
	Ping(ctx context.Context) error
	Close() error
}

// Follower makes a Connector that only lists.
func Follower(l Lister) Connector { return follower{l} }

type follower struct{ Lister }

// Apply implements Connector. Nobody calls it with changes.
func (follower) Apply(_ context.Context, service string, changes []Change) error {
	if len(changes) == 0 {
		return nil
	}
	return Permanent(fmt.Errorf("somebody else writes the entries of service %s: Usher only reads them", service))
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
	// Connections is how many connections an unsettled entry still has that gets no new ones; nil for every other entry,
	// and if the registry does not count.
	Connections *int32 `json:"-"`
	// Hidden tells users why a listed entry of weight 0 gets no callers, if Usher did not write it.
	Hidden string `json:"hidden,omitempty"`
	// Override means that a TakeOut keeps callers from the entry, whatever its application says of itself. A
	// connector that cannot tell who made an override takes it for one of Usher's.
	Override bool `json:"override,omitempty"`
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
	return e.ID == other.ID && e.Address == other.Address && e.Port == other.Port && e.Override == other.Override &&
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
	// TakeOut keeps callers from an entry that its application has written, in a way that lasts against the
	// application's heartbeats and registrations. Only connectors of kinds with the property Overrides get it and
	// BringBack, and neither creates an entry.
	TakeOut Op = "takeOut"
	// BringBack is the opposite of TakeOut.
	BringBack Op = "bringBack"
)

// Overrides reports whether the operation is about an entry that its application has written.
func (o Op) Overrides() bool { return o == TakeOut || o == BringBack }

// Change makes one instance join, change or leave.
type Change struct {
	// Op is the operation.
	Op Op `json:"op"`
	// Entry is the wanted entry. Its Version is what List returned for the ID, or empty
	// if there was no such entry. Remove reads only ID, Owner and Version. TakeOut and BringBack read ID, address
	// and port; the Owner is the Pod that has these.
	Entry Entry `json:"entry"`
}

// String describes the change for logs.
func (c Change) String() string { return string(c.Op) + " " + c.Entry.ID }

// Check compares the change with the entry that has its ID now, nil for none. apply is
// false if nothing is left to do. The error is ErrForeign for an entry of another
// cluster or of no owner, and ErrConflict for an entry that changed since it was
// listed.
func (c Change) Check(current *Entry) (apply bool, err error) {
	if c.Op.Overrides() {
		return c.checkOverride(current)
	}
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

// checkOverride compares an override with the entry that has its ID now. Heartbeats and registrations of the
// application may change the entry at any time: the override depends on nothing but whose address it has.
func (c Change) checkOverride(current *Entry) (apply bool, err error) {
	switch {
	case current == nil:
		return false, nil
	case current.Owner != Owner{}:
		return false, fmt.Errorf("it belongs to %s, and no application registered it: %w", current.Owner, ErrForeign)
	case current.Address != c.Entry.Address || current.Port != c.Entry.Port:
		return false, fmt.Errorf("it has another address since it was listed: %w", ErrConflict)
	}
	return current.Override != (c.Op == TakeOut), nil
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

// validID reports whether the entry has an ID that Usher may have chosen. Applications choose others.
func (c Change) validID() bool {
	return c.Entry.ID != "" && (c.Op.Overrides() || !strings.ContainsAny(c.Entry.ID, "/ \t\n"))
}

func (c Change) validate(lightest int32) error {
	entry := c.Entry
	switch {
	case !c.validID():
		return fmt.Errorf("an id has one character or more, none of them a slash or a space")
	case entry.Owner.Cluster == "" || entry.Owner.PodUID == "":
		return fmt.Errorf("it has no owner: cluster and uid are needed")
	case c.Op == Remove, c.Op.Overrides():
		return nil
	case c.Op != Put:
		return fmt.Errorf("operation %q is unknown: use %q, %q, %q or %q", c.Op, Put, Remove, TakeOut, BringBack)
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

// HostPort joins the entry's address and port.
func (e Entry) HostPort() string { return net.JoinHostPort(e.Address, strconv.Itoa(int(e.Port))) }

// SetHostPort splits a text into the entry's address and port. A text in another form is
// the address as a whole.
func (e *Entry) SetHostPort(text string) {
	e.Address = text
	host, port, _ := net.SplitHostPort(text) // no port of another form
	if number, err := strconv.ParseInt(port, 10, 32); err == nil {
		e.Address, e.Port = host, int32(number)
	}
}

// PodID is the ID of a Pod's entries: readable, and different for another Pod of the same name.
func PodID(namespace, name, uid string) string {
	uid = strings.ReplaceAll(uid, "-", "")
	return namespace + "." + name + "." + uid[:min(8, len(uid))]
}

// SetMetadata sets one key.
func (e *Entry) SetMetadata(key, value string) {
	if e.Metadata == nil {
		e.Metadata = map[string]string{}
	}
	e.Metadata[key] = value
}

// MarkedMetadata returns the entry's metadata and its owner's mark, for registries that
// store both together. check refuses keys and values. Errors are permanent.
func (e Entry) MarkedMetadata(check func(key, value string) error) (map[string]string, error) {
	meta := map[string]string{}
	maps.Copy(meta, e.Metadata)
	for _, key := range slices.Sorted(maps.Keys(meta)) {
		err := check(key, meta[key])
		if strings.HasPrefix(key, MetaPrefix) {
			err = fmt.Errorf("the key %q begins like Usher's own: use another", key)
		}
		if err != nil {
			return nil, Permanent(fmt.Errorf("instance.metadata: %w", err))
		}
	}
	meta[metaCluster], meta[metaNamespace], meta[metaRegistration] = e.Owner.Cluster, e.Owner.Namespace, e.Owner.Registration
	meta[metaPod], meta[metaUID] = e.Owner.Pod, e.Owner.PodUID
	return meta, nil
}

// SetMarkedMetadata sets the metadata that MarkedMetadata returned, without the mark and
// the keys that are not for callers.
func (e *Entry) SetMarkedMetadata(meta map[string]string, hidden func(key string) bool) {
	for key, value := range meta {
		if !strings.HasPrefix(key, MetaPrefix) && !hidden(key) {
			e.SetMetadata(key, value)
		}
	}
}

// Digest returns a short digest, for versions and names.
func Digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

// MetaPrefix is the prefix of Usher's own metadata keys, in registries that store an
// entry's owner in its metadata.
const MetaPrefix = "usher-"

// MetaTags is the key of an entry's tags, separated by commas.
const MetaTags = "tags"

const (
	metaCluster      = MetaPrefix + "cluster"
	metaNamespace    = MetaPrefix + "namespace"
	metaRegistration = MetaPrefix + "registration"
	metaPod          = MetaPrefix + "pod"
	metaUID          = MetaPrefix + "uid"
)

// Owner identifies who wrote an entry. The zero Owner means that Usher did not write
// it.
type Owner struct {
	// Cluster names the cluster, usually by the UID of the namespace kube-system.
	Cluster string `json:"cluster"`
	// Namespace is the namespace of the Pod and of the Registration.
	Namespace string `json:"namespace"`
	// Registration is the name of the Registration.
	Registration string `json:"registration"`
	// Pod is the name of the Pod.
	Pod string `json:"pod"`
	// PodUID distinguishes Pods of the same name.
	PodUID string `json:"uid"`
}

// String names the owner for messages.
func (o Owner) String() string {
	if o == (Owner{}) {
		return "another writer than Usher"
	}
	return fmt.Sprintf("Pod %s/%s of cluster %s", o.Namespace, o.Pod, o.Cluster)
}

// MarkedOwner returns the owner that MarkedMetadata wrote.
func MarkedOwner(meta map[string]string) Owner {
	return Owner{
		Cluster: meta[metaCluster], Namespace: meta[metaNamespace], Registration: meta[metaRegistration],
		Pod: meta[metaPod], PodUID: meta[metaUID],
	}
}

// Settings are what a kind reads from a Registry's spec.
type Settings struct {
	// Secret names the credentials, nil for none.
	Secret *usherv1alpha1.SecretReference
	// Root is where services are kept, for kinds where that can change during the life
	// of a Registry. Usher then removes the entries under the old root. Empty for other
	// kinds.
	Root string
	// Own means that services are kept in the Registration's own namespace: whoever may write
	// that may write these services, too.
	Own bool
	// Fold returns what the registry makes of a service's name: services whose names fold into
	// one are one. Nil for registries that tell all names apart.
	Fold func(service string) string
	// Obeyed reports whether callers obey or execute a pair of metadata, or one tag under the
	// key tags, rather than take it for data. Nil if they obey none.
	Obeyed func(key, value string) bool
	// Connect makes a connector but does not connect. root is Root or an earlier value
	// of it. secret has those of the kind's keys that exist in the Secret. Errors are
	// permanent and name the field or the Secret's key.
	Connect func(root string, secret map[string][]byte) (Connector, error)
}
