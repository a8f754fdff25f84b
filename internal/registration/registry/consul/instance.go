// SPDX-License-Identifier: Apache-2.0

package consul

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/usher-dev/usher/internal/registration/registry"
)

// Consul's limits.
const (
	maxMeta      = 64
	maxMetaKey   = 128
	maxMetaValue = 512
	maxWeight    = 65535
)

// checkID is the ID of every entry's check.
const checkID = "usher"

const (
	passing  = "passing"
	critical = "critical"
)

// status returns the status of an entry's check, which stands for a weight of 0: Consul
// does not accept that weight.
func status(e registry.Entry) string {
	if e.Weight == 0 {
		return critical
	}
	return passing
}

var (
	// metaKey matches the metadata keys that Consul accepts.
	metaKey = regexp.MustCompile(`^[a-zA-Z0-9_-]+$`)
	// plainTag matches tags that are words. Load balancers such as Traefik and Fabio read
	// others as routes, of any host.
	plainTag = regexp.MustCompile(`^[A-Za-z0-9_.-]*$`)
)

// obeyed reports whether a pair of metadata is more than data to callers.
func obeyed(key, value string) bool { return key == registry.MetaTags && !plainTag.MatchString(value) }

// NodeName returns the name of an entry's node. It is a DNS label for any names, and
// unique to the service and id.
func NodeName(service, id string) string {
	sum := sha256.Sum256([]byte(service + "\x00" + id))
	return "usher-" + hex.EncodeToString(sum[:12])
}

// instance is an element of Consul's answer for a service.
type instance struct {
	Node struct {
		Node    string
		Address string
	}
	Service service
	Checks  []check
}

type weights struct {
	Passing int32
	Warning int32
}

// node is a node of the catalog, as a transaction writes it.
type node struct {
	Node       string
	Address    string            `json:",omitempty"`
	Datacenter string            `json:",omitempty"`
	Meta       map[string]string `json:",omitempty"`
}

type service struct {
	ID          string
	Service     string
	Address     string            `json:",omitempty"`
	Port        int32             `json:",omitempty"`
	Tags        []string          `json:",omitempty"`
	Meta        map[string]string `json:",omitempty"`
	Weights     weights
	ModifyIndex uint64
}

type check struct {
	Node        string
	CheckID     string
	Name        string `json:",omitempty"`
	Notes       string `json:",omitempty"`
	Status      string `json:",omitempty"`
	ServiceID   string `json:",omitempty"`
	ServiceName string `json:",omitempty"`
	ModifyIndex uint64 `json:",omitempty"`
}

// entry converts the instance. Only an instance on its own node can be Usher's: a copy
// elsewhere is another writer's.
func (i instance) entry(name string) registry.Entry {
	e := registry.Entry{
		ID: i.Service.ID, Address: i.Service.Address, Port: i.Service.Port, Weight: i.Service.Weights.Passing,
		Version: i.version(),
	}
	if e.Address == "" {
		e.Address = i.Node.Address
	}
	if !i.serves() {
		e.Weight = 0
	}
	e.SetMarkedMetadata(i.Service.Meta, func(key string) bool { return key == registry.MetaTags })
	if len(i.Service.Tags) > 0 {
		e.SetMetadata(registry.MetaTags, strings.Join(slices.Sorted(slices.Values(i.Service.Tags)), ","))
	}
	if i.Node.Node != NodeName(name, i.Service.ID) {
		e.ID = i.Service.ID + "@" + i.Node.Node
		return e
	}
	e.Owner = registry.MarkedOwner(i.Service.Meta)
	return e
}

// serves reports whether callers that ask for passing instances get it.
func (i instance) serves() bool {
	return !slices.ContainsFunc(i.Checks, func(c check) bool { return c.Status != passing })
}

// version changes with the service and with each of its checks.
func (i instance) version() string {
	latest := uint64(0)
	for _, c := range i.Checks {
		latest = max(latest, c.ModifyIndex)
	}
	return fmt.Sprintf("%d.%d.%d", i.Service.ModifyIndex, len(i.Checks), latest)
}

// encode converts an entry to a service. Errors are permanent.
func encode(name string, e registry.Entry) (service, error) {
	var tags []string
	if text, ok := e.Metadata[registry.MetaTags]; ok {
		tags = strings.Split(text, ",")
	}
	e.Metadata = maps.Clone(e.Metadata)
	delete(e.Metadata, registry.MetaTags)
	meta, err := e.MarkedMetadata(checkMeta)
	if err != nil {
		return service{}, err
	}
	if len(meta) > maxMeta {
		return service{}, registry.Permanent(fmt.Errorf("instance.metadata has %d keys: remove some, Consul stores only %d beside Usher's own",
			len(e.Metadata), maxMeta-5))
	}
	if e.Weight > maxWeight {
		return service{}, registry.Permanent(fmt.Errorf("instance.weight %d is above Consul's limit of %d: set a smaller one", e.Weight, maxWeight))
	}
	return service{
		ID: e.ID, Service: name, Address: e.Address, Port: e.Port, Tags: tags, Meta: meta,
		Weights: weights{Passing: max(e.Weight, 1), Warning: 1},
	}, nil
}

func checkMeta(key, value string) error {
	switch {
	case !metaKey.MatchString(key) || len(key) > maxMetaKey || strings.HasPrefix(key, "consul-"):
		return fmt.Errorf("the key %q is none that Consul takes: use up to %d letters, digits, dashes and underscores, "+
			"not beginning with consul-", key, maxMetaKey)
	case len(value) > maxMetaValue:
		return fmt.Errorf("the value of %q has %s bytes: Consul takes %d", key, strconv.Itoa(len(value)), maxMetaValue)
	}
	return nil
}
