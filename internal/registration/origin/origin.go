// SPDX-License-Identifier: Apache-2.0

// Package origin notices a cluster that was restored from a copy of another one. Everything in etcd is the same in both,
// also the UID by which registries' entries name their cluster. What differs is who serves it: each API server says of
// itself under which address it is reached, and who signs its certificate. Usher keeps what it has seen of that in a
// ConfigMap, which is copied with the cluster. A process that finds other API servers there than its own is in a copy.
package origin

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/usher-dev/usher/internal/list"
)

const (
	// keepFor is how long the record keeps an API server, or an authority, that Usher does not meet any more: one of three
	// may not answer Usher for a while, and an address that is given to another machine must not count for ever.
	keepFor = 24 * time.Hour
	// noteEvery is how often the record is written although it has nothing new.
	noteEvery = time.Hour
)

// Sight is what Usher sees of the API servers at one moment.
type Sight struct {
	// Servers are the addresses that API servers give as their own, host and port.
	Servers []string
	// Authorities are fingerprints of the keys that sign their certificates.
	Authorities []string
}

// Record is what Usher has seen of a cluster's API servers, and when it last did.
type Record struct {
	// Cluster names the cluster in registries' entries.
	Cluster              string
	Servers, Authorities map[string]time.Time
}

// Knows reports whether the sight is one of the recorded cluster: one of its API servers answers, with a certificate of an
// authority that was met there. What neither side knows is not compared.
func (r Record) Knows(s Sight) bool {
	return meets(r.Servers, s.Servers) && meets(r.Authorities, s.Authorities)
}

func meets(known map[string]time.Time, seen []string) bool {
	return len(known) == 0 || len(seen) == 0 || slices.ContainsFunc(seen, func(one string) bool { return !known[one].IsZero() })
}

// With is the record after a sight, and whether that is worth a write.
func (r Record) With(s Sight, now time.Time) (next Record, changed bool) {
	next = Record{Cluster: r.Cluster}
	var servers, authorities bool
	next.Servers, servers = noted(r.Servers, s.Servers, now)
	next.Authorities, authorities = noted(r.Authorities, s.Authorities, now)
	return next, servers || authorities
}

// noted adds what is seen now, and leaves out what was not for a long time.
func noted(known map[string]time.Time, seen []string, now time.Time) (next map[string]time.Time, changed bool) {
	next = map[string]time.Time{}
	for one, last := range known {
		if gone := now.Sub(last) > keepFor && !slices.Contains(seen, one); !gone {
			next[one] = last
		}
	}
	changed = len(next) < len(known)
	for _, one := range seen {
		changed = changed || now.Sub(next[one]) >= noteEvery
		next[one] = now
	}
	return next, changed
}

// Keys of the ConfigMap.
const keyCluster, keyServers, keyAuthorities, keyAbout = "cluster", "servers", "authorities", "about"

// about is for whoever finds the ConfigMap.
const about = "The API servers by which Usher knows this cluster from a copy of it. " +
	"Delete this ConfigMap if the cluster has moved to others and no copy runs: https://usher.dev/restore.html"

// Data is what the ConfigMap holds.
func (r Record) Data() map[string]string {
	return map[string]string{
		keyAbout: about, keyCluster: r.Cluster, keyServers: lines(r.Servers), keyAuthorities: lines(r.Authorities),
	}
}

// Read reads what a ConfigMap holds.
func Read(data map[string]string) (r Record, err error) {
	servers, noServers := parse(data[keyServers])
	authorities, noAuthorities := parse(data[keyAuthorities])
	r = Record{Cluster: data[keyCluster], Servers: servers, Authorities: authorities}
	if r.Cluster == "" {
		err = errors.New("there is no key " + keyCluster)
	}
	return r, cmp.Or(err, noServers, noAuthorities)
}

// lines has one line for each, with the time.
func lines(seen map[string]time.Time) string {
	var text strings.Builder
	for _, one := range slices.Sorted(maps.Keys(seen)) {
		fmt.Fprintln(&text, one, seen[one].UTC().Format(time.RFC3339))
	}
	return text.String()
}

func parse(text string) (map[string]time.Time, error) {
	seen := map[string]time.Time{}
	for line := range strings.Lines(text) {
		one, at, _ := strings.Cut(strings.TrimSpace(line), " ")
		last, err := time.Parse(time.RFC3339, at)
		if err != nil {
			return nil, fmt.Errorf("%q is not an address and a time: %w", line, err)
		}
		seen[one] = last
	}
	return seen, nil
}

// names are the names of what is recorded, for messages.
func names(seen map[string]time.Time) string { return orNone(slices.Sorted(maps.Keys(seen))) }

func orNone(all []string) string { return cmp.Or(strings.Join(list.Map(all, short), ", "), "none") }

// short keeps messages short, whatever an API server says of itself.
func short(text string) string {
	const most = 60
	if len(text) > most {
		return text[:most] + "…"
	}
	return text
}
