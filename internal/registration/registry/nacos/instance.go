// SPDX-License-Identifier: Apache-2.0

package nacos

import (
	"encoding/json"
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/usher-dev/usher/internal/registration/registry"
)

// Metadata keys that Usher writes in addition to the owner. metaAddress repeats the
// instance's own address: metadata copied to another instance has the wrong one, which
// shows that the copy is not Usher's.
const (
	metaID      = registry.MetaPrefix + "id"
	metaAddress = registry.MetaPrefix + "address"
)

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
		return e
	}
	e.ID, e.Owner = i.Metadata[metaID], registry.MarkedOwner(i.Metadata)
	return e
}

// weight is rounded up, so that only 0 becomes 0.
func (i instance) weight() int32 {
	return int32(math.Ceil(min(max(i.Weight, 0), maxWeight)))
}

// version returns a digest, because Nacos has no versions.
func (i instance) version() string {
	data, err := json.Marshal(i) // json.Marshal sorts maps.
	if err != nil {
		// Only a weight that is no number fails, and JSON cannot contain one.
		return "unknown"
	}
	return registry.Digest(data)
}

// shows reports whether a listed instance is what was written, regardless of Nacos's
// own check.
func (i instance) shows(want instance) bool {
	i.Healthy = want.Healthy
	return i.version() == want.version()
}

// encode converts an entry to an instance. Errors are permanent.
func encode(e registry.Entry) (instance, error) {
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
