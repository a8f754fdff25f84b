// SPDX-License-Identifier: Apache-2.0

// Package servers runs real registries for a measurement, and tells what callers
// would find there: who came into their choice, and who left it. It reads the
// registries past Usher, and knows of Usher no more than how it marks its entries.
package servers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/usher-dev/usher/api/usher/v1alpha1"
)

// Service is the service that is watched.
const Service = "web"

// Where says what the start of a registry needs.
type Where struct {
	// Root is the checkout, which pins what is built.
	Root string
	// Dir is for its data and its log.
	Dir string
}

// Server is a registry that runs.
type Server interface {
	// Name is that of its kind with its version, for people.
	Name() string
	// Spec is how a Registry names it.
	Spec() v1alpha1.RegistrySpec
	// PID is its process.
	PID() int
	// Put writes one entry as plainly as can be, of another service than Service,
	// and Remove removes it. They show what the registry can do.
	Put(ctx context.Context, name string) error
	Remove(ctx context.Context, name string) error
	// Evict takes the entry of a Pod out, past Usher. Watch has to have told of it.
	Evict(ctx context.Context, uid string) error
	// Calls counts what it was asked since its start, without what Watch asks.
	Calls(ctx context.Context) (Calls, error)
	// Watch tells first who is there, then every change, until ctx ends or it
	// cannot be sure any more to miss none, which is an error.
	Watch(ctx context.Context, tell func(Sighting)) error
	// Close ends it.
	Close() error
}

// Sighting is an entry that came into the choice of callers or left it.
type Sighting struct {
	// UID is that of the entry's Pod.
	UID string
	// In says that callers find it now.
	In bool
	// Since is a time at which this was not so yet.
	Since time.Time
}

// Calls are requests by kind, such as "Txn".
type Calls map[string]int

// Since is what was asked after an earlier count.
func (c Calls) Since(before Calls) Calls {
	later := Calls{}
	for kind, count := range c {
		if count != before[kind] {
			later[kind] = count - before[kind]
		}
	}
	return later
}

// Writes are those that may have changed something.
func (c Calls) Writes() int {
	total := 0
	for kind, count := range c {
		if !strings.HasPrefix(kind, "GET ") && kind != rangeCall {
			total += count
		}
	}
	return total
}

// Kinds are the registries that there are.
func Kinds() []string { return []string{kindEtcd, kindConsul} }

// Start starts a registry of a kind. What is missing is fetched and built first,
// which ctx bounds.
func Start(ctx context.Context, kind string, where Where) (Server, error) {
	switch kind {
	case kindEtcd:
		return startEtcd(ctx, where)
	case kindConsul:
		return startConsul(ctx, where)
	}
	return nil, fmt.Errorf("%q is none of the registries that can be measured: %s", kind, strings.Join(Kinds(), ", "))
}

// choice is what callers can choose from, by key.
type choice map[string]chosen

// chosen is one entry: life differs when it was removed and written anew.
type chosen struct {
	uid  string
	life uint64
}

// changes tells what is different in a later choice, those who left first.
func (c choice) changes(later choice, since time.Time, tell func(Sighting)) {
	for key, was := range c {
		if later[key] != was {
			tell(Sighting{UID: was.uid, Since: since})
		}
	}
	for key, is := range later {
		if c[key] != is {
			tell(Sighting{UID: is.uid, In: true, Since: since})
		}
	}
}

// metric is one line of what a server tells Prometheus.
type metric struct {
	name, labels string
	value        int
}

// label is the value of a label; "" if there is none.
func (m metric) label(name string) string {
	_, after, found := strings.Cut(m.labels, name+`="`)
	if !found {
		return ""
	}
	value, _, _ := strings.Cut(after, `"`)
	return value
}

// parseMetrics reads the lines whose names begin with the prefix.
func parseMetrics(text, prefix string) ([]metric, error) {
	var metrics []metric
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, prefix) {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		value, err := strconv.ParseFloat(line[at+1:], 64)
		if at < 0 || err != nil {
			return nil, fmt.Errorf("metrics: %q is no line of a name and a number", line)
		}
		name, labels, _ := strings.Cut(strings.TrimSpace(line[:at]), "{")
		metrics = append(metrics, metric{name: name, labels: labels, value: int(value)})
	}
	return metrics, nil
}

// errNotWatched says that Evict was asked for what Watch has not told of.
var errNotWatched = errors.New("the watch has told of no such entry")

// startTime bounds a start, without the build.
const startTime = time.Minute

// manyConns lets all workers of a measurement keep their connections.
func manyConns() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 128}}
}
