// SPDX-License-Identifier: Apache-2.0

// Package consul keeps entries in Consul's catalog. Each entry has its own node without
// an agent, with one service and one passing check: an agent would undo writes to its
// own node.
//
// Nothing runs the check, so it keeps passing until one transaction removes the entry
// together with its node.
package consul

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/rest"
)

// KeyToken is the key of the ACL token in the credentials Secret. For https the Secret
// may also hold credentials.KeyCA, KeyCertificate and KeyPrivateKey.
const KeyToken = "token"

// KeyAgentToken is the key of the token for agents. Default: KeyToken.
const KeyAgentToken = "agent-token"

const (
	headerToken = "X-Consul-Token"
	// headerFiltered means that the token may not read everything. Servers before 1.11
	// do not send it.
	headerFiltered = "X-Consul-Results-Filtered-By-ACLs"
	headerIndex    = "X-Consul-Index"
	// maxBlock is how long Consul may wait with an answer for something else to be there.
	maxBlock = 2 * time.Second
	// pingService is the name that Ping asks for. Nothing is registered under it.
	pingService = "usher-ping"
)

// FromSpec says how the kind's field of a Registry is to be carried out.
func FromSpec(s *usherv1alpha1.ConsulRegistry) *registry.Settings {
	return &registry.Settings{
		Secret: s.CredentialsSecret, Root: s.Datacenter, Fold: strings.ToLower, Obeyed: obeyed,
		Connect: func(root string, secret map[string][]byte) (registry.Connector, error) {
			return New(s, root, secret)
		},
	}
}

// Registry implements registry.Connector.
type Registry struct {
	datacenter string
	token      string
	// agents are nil if the Registry names no networks of agents.
	agents *agents
	*rest.Client
}

// New checks the spec but does not connect. Without a datacenter, entries are in that of
// the agent. The secret has the keys above, or is nil. Errors are permanent and name the field
// or the Secret's key.
func New(s *usherv1alpha1.ConsulRegistry, datacenter string, secret map[string][]byte) (*Registry, error) {
	token, header, err := tokenIn(secret, KeyToken)
	if err != nil {
		return nil, err
	}
	client, err := rest.New(rest.Options{
		Field: "consul.address", Example: "http://host:8500", Address: s.Address, Secret: secret,
		Header: header, Hint: "the key " + KeyToken + " of the credentials Secret",
	})
	if err != nil {
		return nil, err
	}
	agents, err := newAgents(s.Agents, secret)
	if err != nil {
		return nil, err
	}
	return &Registry{Client: client, datacenter: datacenter, token: token, agents: agents}, nil
}

// tokenIn returns the token under a key of the Secret, and the header that has it.
func tokenIn(secret map[string][]byte, key string) (token string, header http.Header, err error) {
	token, header = strings.TrimSpace(string(secret[key])), http.Header{}
	if strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return "", nil, registry.Permanent(fmt.Errorf(
			"the credentials Secret's %s contains characters that no token has: put the token's secret id there", key))
	}
	if token != "" {
		header.Set(headerToken, token)
	}
	return token, header, nil
}

// Close implements registry.Connector.
func (r *Registry) Close() error {
	if r.agents == nil {
		return r.Client.Close()
	}
	return errors.Join(r.Client.Close(), r.agents.client.Close())
}

// Ping implements registry.Connector. Like List it needs a leader.
func (r *Registry) Ping(ctx context.Context) error {
	_, err := r.read(ctx, pingService)
	return err
}

// List implements registry.Connector. The read is consistent: the leader confirms with
// its followers that it still leads. An entry with a failing check has the weight 0,
// because callers do not use it. An entry on a node that is not Usher's has the ID
// <service id>@<node>.
func (r *Registry) List(ctx context.Context, service string) ([]registry.Entry, error) {
	instances, err := r.read(ctx, service)
	return registry.Listed(instances, err, func(i instance) registry.Entry { return i.entry(service) })
}

// read returns the service's instances. It fails rather than return only some of them,
// because a caller would take a hidden entry for a removed one.
func (r *Registry) read(ctx context.Context, service string) ([]instance, error) {
	instances, _, err := r.readAfter(ctx, service, "")
	return instances, err
}

// readAfter is read with the index of what it returns. With an index it waits until something else is there than with
// that, and for maxBlock at most.
func (r *Registry) readAfter(ctx context.Context, service, index string) (_ []instance, next string, err error) {
	query := url.Values{"consistent": {""}}
	if index != "" {
		query.Set("index", index)
		query.Set("wait", maxBlock.String())
	}
	answer, err := r.call(ctx, http.MethodGet, "/v1/health/service/"+url.PathEscape(service), query, nil)
	if err != nil {
		return nil, "", err
	}
	if answer.Code != http.StatusOK {
		return nil, "", answer.Refusal()
	}
	if answer.Header.Get(headerFiltered) == "true" {
		return nil, "", registry.Permanent(fmt.Errorf("the ACL token may not read every node and instance of service %s: "+
			`give it the rules service %q { policy = "write" }, node_prefix "usher-" { policy = "write" } `+
			`and node_prefix "" { policy = "read" }`, service, service))
	}
	var instances []instance
	if err := answer.Decode("Consul", &instances); err != nil {
		return nil, "", err
	}
	if instances == nil {
		// Consul writes [] for none; null comes from another kind of server.
		return nil, "", registry.Permanent(fmt.Errorf(
			"%s answered without a list: check that consul.address is Consul's", answer.Where))
	}
	return instances, answer.Header.Get(headerIndex), r.unfiltered(ctx)
}

// unfiltered returns an error if there is no token and Consul has ACLs: then they hide
// entries silently. It is asked after every list, because ACLs may be enabled at any time.
func (r *Registry) unfiltered(ctx context.Context) error {
	if r.token != "" {
		return nil
	}
	answer, err := r.call(ctx, http.MethodGet, "/v1/acl/token/self", nil, nil)
	switch {
	case err != nil:
		return err
	case answer.Code == http.StatusUnauthorized && strings.Contains(string(answer.Body), "ACL support disabled"):
		return nil
	case answer.Code == http.StatusOK, answer.Code == http.StatusForbidden:
		return registry.Permanent(fmt.Errorf(
			"ACLs hide entries: put a token into the key %s of the credentials Secret", KeyToken))
	}
	return answer.Refusal()
}

func (r *Registry) call(ctx context.Context, method, path string, query url.Values, question any) (*rest.Answer, error) {
	if r.datacenter != "" {
		query = maps.Clone(query)
		if query == nil {
			query = url.Values{}
		}
		query.Set("dc", r.datacenter)
	}
	return r.Send(ctx, rest.Question{Method: method, Path: path, Query: query, JSON: question})
}

// Consul's limits.
const (
	maxMeta      = 64
	maxMetaKey   = 128
	maxMetaValue = 512
	maxWeight    = 65535
)

// checkID is the ID of every entry's check.
const checkID = "usher"

const passing, critical = "passing", "critical"

// metaKey matches the metadata keys that Consul accepts.
var metaKey = regexp.MustCompile(`^[a-zA-Z0-9_-]+$`)

// plainTag matches tags that are words. Load balancers such as Traefik and Fabio read
// others as routes, of any host.
var plainTag = regexp.MustCompile(`^[A-Za-z0-9_.-]*$`)

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
	Node    node
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
		ID: i.Service.ID, Address: cmp.Or(i.Service.Address, i.Node.Address), Port: i.Service.Port,
		Weight: i.Service.Weights.Passing, Version: i.version(),
	}
	// Callers that ask for passing instances do not get others.
	if slices.ContainsFunc(i.Checks, func(c check) bool { return c.Status != passing }) {
		e.Weight = 0
	}
	e.SetMarkedMetadata(i.Service.Meta, func(key string) bool { return key == registry.MetaTags })
	if len(i.Service.Tags) > 0 {
		e.SetMetadata(registry.MetaTags, strings.Join(slices.Sorted(slices.Values(i.Service.Tags)), ","))
	}
	if i.Node.Node != NodeName(name, i.Service.ID) {
		e.ID = i.Service.ID + "@" + i.Node.Node
	} else {
		e.Owner = registry.MarkedOwner(i.Service.Meta)
	}
	if e.Owner == (registry.Owner{}) {
		e.Override, e.Hidden = i.overridden(), i.hidden()
	}
	return e
}

// version changes with the service and with each of its checks.
func (i instance) version() string {
	latest := uint64(0)
	for _, c := range i.Checks {
		latest = max(latest, c.ModifyIndex)
	}
	return fmt.Sprintf("%d.%d.%d", i.Service.ModifyIndex, len(i.Checks), latest)
}

// encoded converts an entry to a service. Errors are permanent.
func encoded(name string, e registry.Entry) (service, error) {
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
		return fmt.Errorf("the value of %q has %d bytes: Consul takes %d", key, len(value), maxMetaValue)
	}
	return nil
}
