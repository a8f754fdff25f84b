// SPDX-License-Identifier: Apache-2.0

package zookeeper

import (
	"encoding/json"
	"fmt"

	"github.com/usher-dev/usher/internal/registration/registry"
)

// curator is the layout of Curator's service discovery with its JsonInstanceSerializer.
type curator struct{}

// mark is what Usher adds to its own nodes.
type mark struct {
	Weight int32          `json:"weight,omitempty"`
	Owner  registry.Owner `json:"owner"`
}

// serviceInstance is Curator's type with one field of Usher's, which Curator ignores.
// The registration time stays 0, so that an entry does not depend on when it was
// written.
type serviceInstance struct {
	Name                string          `json:"name"`
	ID                  string          `json:"id"`
	Address             string          `json:"address"`
	Port                *int32          `json:"port"`
	SSLPort             *int32          `json:"sslPort"`
	Payload             json.RawMessage `json:"payload"`
	RegistrationTimeUTC int64           `json:"registrationTimeUTC"`
	ServiceType         string          `json:"serviceType"`
	URISpec             json.RawMessage `json:"uriSpec"`
	Enabled             *bool           `json:"enabled"`
	Usher               json.RawMessage `json:"usher,omitempty"`
}

// obeyedByCurator reports whether a key of the payload may name a Java class, which the
// caller's JSON library then creates: @class by default.
func obeyedByCurator(key, _ string) bool { return !paramKey.MatchString(key) }

func (curator) folder(service string) string { return service }

func (curator) encode(service string, e registry.Entry) (string, []byte, error) {
	usher, err := json.Marshal(mark{Weight: e.Weight, Owner: e.Owner})
	if err != nil {
		return "", nil, registry.Permanent(fmt.Errorf("encode: %w", err))
	}
	enabled := true
	i := serviceInstance{
		Name: service, ID: e.ID, Address: e.Address, Port: &e.Port, Enabled: &enabled, Usher: usher,
		// A persistent node, which only a removal ends.
		ServiceType: "PERMANENT",
	}
	// Without metadata the payload is null, which is valid for every payload class.
	if len(e.Metadata) > 0 {
		if i.Payload, err = json.Marshal(e.Metadata); err != nil {
			return "", nil, registry.Permanent(fmt.Errorf("encode: %w", err))
		}
	}
	data, err := json.Marshal(i)
	if err != nil {
		return "", nil, registry.Permanent(fmt.Errorf("encode: %w", err))
	}
	return e.ID, data, nil
}

func (curator) decode(name string, data []byte) registry.Entry {
	e := registry.Entry{ID: name, Weight: 1}
	var i serviceInstance
	if err := json.Unmarshal(data, &i); err != nil {
		e.Address = string(data)
		return e
	}
	e.Address = i.Address
	if i.Port != nil {
		e.Port = *i.Port
	}
	var payload map[string]any
	if json.Unmarshal(i.Payload, &payload) == nil {
		for key, value := range payload {
			if text, ok := value.(string); ok {
				e.SetMetadata(key, text)
			}
		}
	}
	var usher mark
	if json.Unmarshal(i.Usher, &usher) == nil {
		e.Weight, e.Owner = usher.Weight, usher.Owner
	}
	if i.Enabled != nil && !*i.Enabled {
		e.Weight = 0
	}
	return e
}
