// SPDX-License-Identifier: Apache-2.0

// Package servers runs real registries for a measurement, and reports what callers
// would find there: which entries become available and which are withdrawn. It reads
// the registries independently of Usher, and knows only how Usher marks its entries.
package servers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/usher-dev/usher/api/usher/v1alpha1"
)

// Service is the watched service.
const Service = "web"

// Server is a running registry.
type Server interface {
	// Name is its kind and version, for people.
	Name() string
	// Spec is its configuration in a Registry.
	Spec() v1alpha1.RegistrySpec
	// PID is its process ID.
	PID() int
	// Put writes one entry as plainly as possible, for a service other than Service,
	// and Remove removes it. They show what the registry can do.
	Put(ctx context.Context, name string) error
	Remove(ctx context.Context, name string) error
	// Evict removes the entry of a Pod, bypassing Usher. Watch must have reported it.
	Evict(ctx context.Context, uid string) error
	// Calls counts its requests since its start, without those of Watch.
	Calls(ctx context.Context) (Calls, error)
	// Watch first reports the present entries, then every change, until ctx ends. It
	// returns an error if it may have missed a change.
	Watch(ctx context.Context, report func(Sighting)) error
	// Close ends the server.
	Close() error
}

// Sighting is an entry that became available to callers or was withdrawn.
type Sighting struct {
	// UID is the UID of the entry's Pod.
	UID string
	// In reports whether callers find it now.
	In bool
	// Since is a time at which this was not yet so.
	Since time.Time
}

// Calls are requests by kind, such as "Txn".
type Calls map[string]int

// Since returns the requests since an earlier count.
func (c Calls) Since(before Calls) Calls {
	later := Calls{}
	for kind, count := range c {
		if count != before[kind] {
			later[kind] = count - before[kind]
		}
	}
	return later
}

// Writes counts the requests that may have changed something.
func (c Calls) Writes() int {
	total := 0
	for kind, count := range c {
		if !strings.HasPrefix(kind, "GET ") && kind != rangeCall {
			total += count
		}
	}
	return total
}

// Kinds lists the available registries.
func Kinds() []string { return []string{kindEtcd, kindConsul} }

// Start starts a registry of a kind, with its data and its log in dir. It first downloads and builds
// missing programs, in the versions that the checkout pins; ctx bounds that.
func Start(ctx context.Context, kind, checkout, dir string) (Server, error) {
	switch kind {
	case kindEtcd:
		return startEtcd(ctx, dir)
	case kindConsul:
		return startConsul(ctx, checkout, dir)
	}
	return nil, fmt.Errorf("%q is none of the registries that can be measured: %s", kind, strings.Join(Kinds(), ", "))
}

// choice has the entries that callers can choose from, by key.
type choice map[string]chosen

// chosen is one entry: life differs if it was removed and recreated.
type chosen struct {
	uid  string
	life uint64
}

// changes reports the differences in a later choice, removals first.
func (c choice) changes(later choice, since time.Time, report func(Sighting)) {
	for key, was := range c {
		if later[key] != was {
			report(Sighting{UID: was.uid, Since: since})
		}
	}
	for key, is := range later {
		if c[key] != is {
			report(Sighting{UID: is.uid, In: true, Since: since})
		}
	}
}

// label returns the value of a metric's label; "" if there is none.
func label(m *dto.Metric, name string) string {
	for _, pair := range m.GetLabel() {
		if pair.GetName() == name {
			return pair.GetValue()
		}
	}
	return ""
}

// errNotWatched means that Evict was asked for an entry that Watch has not reported.
var errNotWatched = errors.New("the watch has reported no such entry")
