// SPDX-License-Identifier: Apache-2.0

package zookeeper

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/utils/ptr"

	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// curator is the layout of Curator's service discovery with its JsonInstanceSerializer:
// <path>/<service>/<id> with the JSON of a ServiceInstance. An entry's metadata is its payload.
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

func (curator) path() string { return "services" }

// obeyed reports whether a key of the payload may name a Java class, which the caller's JSON
// library then creates: @class by default.
func (curator) obeyed(key, _ string) bool { return !paramKey.MatchString(key) }

func (curator) folder(service string) string { return service }

func (curator) encode(service string, e registry.Entry) (string, []byte, error) {
	i := serviceInstance{
		Name: service, ID: e.ID, Address: e.Address, Port: &e.Port, Enabled: new(true), Usher: encode.JSON(mark{Weight: e.Weight, Owner: e.Owner}),
		// A persistent node, which only a removal ends.
		ServiceType: "PERMANENT",
	}
	// Without metadata the payload is null, which is valid for every payload class.
	if len(e.Metadata) > 0 {
		i.Payload = encode.JSON(e.Metadata)
	}
	return e.ID, encode.JSON(i), nil
}

func (curator) decode(name string, data []byte) registry.Entry {
	e := registry.Entry{ID: name, Weight: 1}
	var i serviceInstance
	if err := json.Unmarshal(data, &i); err != nil {
		e.Address = string(data)
		return e
	}
	e.Address, e.Port = i.Address, ptr.Deref(i.Port, 0)
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
	if !ptr.Deref(i.Enabled, true) {
		e.Weight = 0
	}
	if status := springStatus(payload); status != "" && e.Owner == (registry.Owner{}) {
		e.Weight, e.Hidden = 0, "its status is "+registry.Excerpt(status)
	}
	return e
}

// springStatus is the status of an instance that Spring Cloud has registered, if its clients do not call it; else empty.
func springStatus(payload map[string]any) string {
	metadata, _ := payload["metadata"].(map[string]any)
	if status, ok := metadata["instance_status"].(string); ok && status != "UP" {
		return status
	}
	return ""
}

// dubbo is the layout of Dubbo's providers, <path>/<interface>/providers/<URL>: the service is the
// interface, and an entry's metadata become parameters of the URL. A node's content, which Dubbo
// does not read, identifies the owner.
type dubbo struct{}

const (
	// paramProtocol is the metadata key that sets the URL's scheme.
	paramProtocol   = "protocol"
	defaultProtocol = "dubbo"
	paramInterface  = "interface"
	paramSide       = "side"
	paramWeight     = "weight"
	// paramID is the parameter for the entry's ID. It makes the URL, and so the node,
	// unique to the entry.
	paramID = "usher"
	// defaultWeight is Dubbo's weight for a provider without one.
	defaultWeight = 100
)

// paramKey and protocol match what a URL can contain unescaped: Dubbo escapes the URL
// as a whole, not its parameters.
var paramKey = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)
var protocol = regexp.MustCompile(`^[a-z][a-z0-9+.-]*$`)

// read are the parameters that Dubbo's consumers read at most to choose among providers, or to
// show them. They obey others: one with category=routers and a script as its rule is code.
var read = []string{
	"application", "application.version", "deprecated", "dubbo", "dubbo.tag", "environment", "group", "methods", "module",
	"organization", "owner", "pid", "region", "release", "retries", "revision", registry.MetaTags, "timeout", "timestamp",
	"version", "warmup", "zone",
}

// obeyed reports whether a parameter makes consumers do more than call a provider over one of
// Dubbo's own protocols.
func (dubbo) obeyed(key, value string) bool {
	if key == paramProtocol {
		return value != defaultProtocol && value != "tri"
	}
	return !slices.Contains(read, key)
}

// stored is the content of a node.
type stored struct {
	Usher *mark `json:"usher"`
}

func (dubbo) path() string { return "dubbo" }

func (dubbo) folder(service string) string { return service + "/providers" }

func (dubbo) encode(service string, e registry.Entry) (string, []byte, error) {
	params := map[string]string{
		paramInterface: service, paramSide: "provider", paramWeight: strconv.Itoa(int(e.Weight)), paramID: e.ID,
	}
	if err := checkParam("id", e.ID); err != nil {
		return "", nil, registry.Permanent(err)
	}
	scheme := defaultProtocol
	for _, key := range slices.Sorted(maps.Keys(e.Metadata)) {
		if err := checkParam(key, e.Metadata[key]); err != nil {
			return "", nil, registry.Permanent(fmt.Errorf("instance.metadata: %w", err))
		}
		params[key] = e.Metadata[key]
		if key == paramProtocol {
			scheme = e.Metadata[key]
		}
	}
	pairs := list.Map(slices.Sorted(maps.Keys(params)), func(key string) string { return key + "=" + params[key] })
	name := url.QueryEscape(scheme + "://" + e.HostPort() + "/" + service + "?" + strings.Join(pairs, "&"))
	return name, encode.JSON(stored{Usher: &mark{Owner: e.Owner}}), nil
}

func checkParam(key, value string) error {
	switch {
	case slices.Contains([]string{paramInterface, paramSide, paramWeight, paramID}, key):
		return fmt.Errorf("the key %q is written by Usher itself: use another", key)
	case !paramKey.MatchString(key):
		return fmt.Errorf("the key %q cannot be a parameter of a Dubbo URL: use letters, digits, dots, dashes and underscores", key)
	case key == paramProtocol && !protocol.MatchString(value):
		return fmt.Errorf("the %s %q is none: write dubbo, tri or another one", paramProtocol, value)
	case strings.ContainsFunc(value, endsValue):
		return fmt.Errorf("the value of %q holds a character that ends it in a Dubbo URL: &, # or a control character", key)
	}
	return nil
}

func endsValue(c rune) bool { return c == '&' || c == '#' || c < ' ' || c == 0x7f }

func (dubbo) decode(name string, data []byte) registry.Entry {
	e := registry.Entry{ID: name, Weight: defaultWeight}
	text, err := url.QueryUnescape(name)
	if err != nil {
		e.Address = name
		return e
	}
	address, query, _ := strings.Cut(text, "?")
	_, address, _ = strings.Cut(address, "://")
	address, _, _ = strings.Cut(address, "/")
	e.SetHostPort(address)
	e = decodeParams(e, query)
	var content stored
	if json.Unmarshal(data, &content) == nil && content.Usher != nil {
		e.Owner = content.Usher.Owner
	}
	return e
}

func decodeParams(e registry.Entry, query string) registry.Entry {
	for pair := range strings.SplitSeq(query, "&") {
		key, value, found := strings.Cut(pair, "=")
		switch {
		case !found, key == paramInterface, key == paramSide:
		case key == paramID && value != "":
			e.ID = value
		case key == paramWeight:
			if number, err := strconv.ParseInt(value, 10, 32); err == nil {
				e.Weight = int32(number)
			}
		default:
			e.SetMetadata(key, value)
		}
	}
	return e
}
