// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// layout translates between entries and keys.
type layout interface {
	// prefix is where callers look by default.
	prefix() string
	// after is the first name after those that an entry's key can have, which begin with the entry's ID. Empty if its
	// name is the ID.
	after(id string) string
	// ops is how many operations of a transaction a change takes at most.
	ops() int
	// encode returns the name of an entry's key, which is what follows the service, and its value. Errors are
	// permanent.
	encode(service string, entry registry.Entry) (name, value string, err error)
	// decode never fails: a key that Usher did not write is an entry without an owner, so that Usher never changes it.
	decode(name string, value []byte) registry.Entry
}

func layoutOf(name usherv1alpha1.EtcdLayout) layout {
	switch name {
	case usherv1alpha1.LayoutKratos:
		return kratos{}
	case usherv1alpha1.LayoutGoZero:
		return goZero{}
	case usherv1alpha1.LayoutKitex:
		return kitex{}
	case usherv1alpha1.LayoutGRPC:
	}
	return naming{}
}

// oneKey is of layouts whose keys have an entry's ID as their name.
type oneKey struct{}

func (oneKey) after(string) string { return "" }

func (oneKey) ops() int { return 1 }

// Metadata keys that Usher uses itself. All others are the user's.
const metaWeight, metaOwner = "weight", "usher"

// checkKeys refuses metadata that has one of Usher's own keys.
func checkKeys(metadata map[string]string, own ...string) error {
	for _, key := range slices.Sorted(maps.Keys(metadata)) {
		if slices.Contains(own, key) {
			return registry.Permanent(fmt.Errorf("instance.metadata has the key %q, which Usher writes itself: use another", key))
		}
	}
	return nil
}

// ownerOf is the owner that Usher wrote, zero if it is none.
func ownerOf(raw json.RawMessage) registry.Owner {
	var owner registry.Owner
	if json.Unmarshal(raw, &owner) != nil {
		return registry.Owner{}
	}
	return owner
}

// naming is the layout of go.etcd.io/etcd/client/v3/naming/endpoints, which gRPC's etcd resolver reads.
type naming struct{ oneKey }

// endpoint is that package's type.
type endpoint struct {
	Op       int
	Addr     string
	Metadata map[string]json.RawMessage
}

func (naming) prefix() string { return "services" }

func (naming) encode(_ string, e registry.Entry) (name, value string, err error) {
	if err := checkKeys(e.Metadata, metaWeight, metaOwner); err != nil {
		return "", "", err
	}
	metadata := map[string]json.RawMessage{metaWeight: encode.JSON(e.Weight), metaOwner: encode.JSON(e.Owner)}
	for key, text := range e.Metadata {
		metadata[key] = encode.JSON(text)
	}
	return e.ID, string(encode.JSON(endpoint{Addr: e.HostPort(), Metadata: metadata})), nil
}

func (naming) decode(name string, value []byte) registry.Entry {
	e := registry.Entry{ID: name}
	var stored endpoint
	if err := json.Unmarshal(value, &stored); err != nil {
		e.Address = string(value)
		return e
	}
	e.SetHostPort(stored.Addr)
	e.Weight = 1 // gRPC's clients know no weight: each entry gets callers, also one that an application has written.
	for key, raw := range stored.Metadata {
		// What Usher would not write counts as absent.
		text, weight := "", int32(0)
		switch {
		case key == metaOwner:
			e.Owner = ownerOf(raw)
		case key == metaWeight:
			if json.Unmarshal(raw, &weight) == nil && weight > 0 {
				e.Weight = weight
			}
		case json.Unmarshal(raw, &text) == nil:
			e.SetMetadata(key, text)
		}
	}
	return e
}

// kratos is the layout of Kratos' etcd registry: <namespace>/<service>/<instance> with the JSON of a ServiceInstance.
type kratos struct{ oneKey }

const (
	// metaProtocol is the metadata key that sets the scheme of the endpoint.
	metaProtocol    = "protocol"
	defaultProtocol = "grpc"
	// metaVersion is the metadata key that is the version of the instance, too.
	metaVersion = "version"
	// kratosWeight is Kratos' weight for an instance without one.
	kratosWeight = 100
)

// protocols are what Kratos' clients look for.
var protocols = []string{defaultProtocol, "grpcs", "http", "https"}

// serviceInstance is Kratos' type with one field of Usher's, which Kratos ignores.
type serviceInstance struct {
	ID        string            `json:"id"`
	Name      string            `json:"name"`
	Version   string            `json:"version"`
	Metadata  map[string]string `json:"metadata"`
	Endpoints []string          `json:"endpoints"`
	Usher     json.RawMessage   `json:"usher,omitempty"`
}

func (kratos) prefix() string { return "/microservices" }

func (kratos) encode(service string, e registry.Entry) (name, value string, err error) {
	if err := checkKeys(e.Metadata, metaWeight); err != nil {
		return "", "", err
	}
	protocol, set := e.Metadata[metaProtocol]
	if !set {
		protocol = defaultProtocol
	}
	if !slices.Contains(protocols, protocol) {
		return "", "", registry.Permanent(fmt.Errorf("instance.metadata: the %s %q is none that Kratos calls: write one of %s",
			metaProtocol, protocol, strings.Join(protocols, ", ")))
	}
	metadata := map[string]string{metaWeight: strconv.Itoa(int(e.Weight))}
	maps.Copy(metadata, e.Metadata)
	return e.ID, string(encode.JSON(serviceInstance{
		ID: e.ID, Name: service, Version: e.Metadata[metaVersion], Metadata: metadata,
		Endpoints: []string{protocol + "://" + e.HostPort()}, Usher: encode.JSON(e.Owner),
	})), nil
}

func (kratos) decode(name string, value []byte) registry.Entry {
	e := registry.Entry{ID: name, Weight: kratosWeight}
	var stored serviceInstance
	if err := json.Unmarshal(value, &stored); err != nil {
		e.Address = string(value)
		return e
	}
	if len(stored.Endpoints) > 0 {
		_, address, _ := strings.Cut(stored.Endpoints[0], "://")
		address, _, _ = strings.Cut(address, "?")
		e.SetHostPort(strings.TrimRight(address, "/"))
	}
	for key, text := range stored.Metadata {
		if key != metaWeight {
			e.SetMetadata(key, text)
		} else if weight, err := strconv.ParseInt(text, 10, 32); err == nil {
			e.Weight = int32(weight)
		}
	}
	e.Owner = ownerOf(stored.Usher)
	return e
}

// goZero is the layout of go-zero's discov: each key that begins with <service>/ has an address as its value, and
// nothing else. So the name of the key has the rest: the ID, a space, and a mark. No ID has a space.
type goZero struct{}

// mark is what Usher adds to the names of its own keys. Callers do not read it.
type mark struct {
	Weight   int32             `json:"weight"`
	Owner    registry.Owner    `json:"owner"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

func (goZero) prefix() string { return "" }

// after is what follows the ID and a space in the order of keys.
func (goZero) after(id string) string { return id + "!" }

// ops are a put, and the deletions of what has another mark.
func (goZero) ops() int { return 3 }

func (goZero) encode(_ string, e registry.Entry) (name, value string, err error) {
	return e.ID + " " + string(encode.JSON(mark{Weight: e.Weight, Owner: e.Owner, Metadata: e.Metadata})), e.HostPort(), nil
}

func (goZero) decode(name string, value []byte) registry.Entry {
	e := registry.Entry{ID: name, Weight: 1}
	e.SetHostPort(string(value))
	id, text, _ := strings.Cut(name, " ")
	var usher mark
	if json.Unmarshal([]byte(text), &usher) == nil && usher.Owner != (registry.Owner{}) {
		e.ID, e.Weight, e.Owner, e.Metadata = id, usher.Weight, usher.Owner, usher.Metadata
	}
	return e
}

// kitex is the layout of Kitex's registry-etcd: <prefix>/<service>/<anything> with the JSON of an instance.
type kitex struct{ oneKey }

// kitexWeight is Kitex's weight for an instance without one.
const kitexWeight = 10

// instanceInfo is Kitex's type with one field of Usher's, which Kitex ignores.
type instanceInfo struct {
	Network string            `json:"network"`
	Address string            `json:"address"`
	Weight  int32             `json:"weight"`
	Tags    map[string]string `json:"tags"`
	Usher   json.RawMessage   `json:"usher,omitempty"`
}

func (kitex) prefix() string { return "kitex/registry-etcd" }

func (kitex) encode(_ string, e registry.Entry) (name, value string, err error) {
	return e.ID, string(encode.JSON(instanceInfo{
		Network: "tcp", Address: e.HostPort(), Weight: e.Weight, Tags: e.Metadata, Usher: encode.JSON(e.Owner),
	})), nil
}

func (kitex) decode(name string, value []byte) registry.Entry {
	e := registry.Entry{ID: name, Weight: kitexWeight}
	var stored instanceInfo
	if err := json.Unmarshal(value, &stored); err != nil {
		e.Address = string(value)
		return e
	}
	e.SetHostPort(stored.Address)
	for key, text := range stored.Tags {
		e.SetMetadata(key, text)
	}
	if stored.Weight > 0 {
		e.Weight = stored.Weight
	}
	e.Owner = ownerOf(stored.Usher)
	return e
}
