// SPDX-License-Identifier: Apache-2.0

// Package consul keeps entries in Consul's catalog. Each entry has its own node without
// an agent, with one service and one passing check: an agent would undo writes to its
// own node.
//
// Nothing runs the check, so it keeps passing until one transaction removes the entry
// together with its node.
package consul

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/rest"
)

// KeyToken is the key of the ACL token in the credentials Secret. For https the Secret
// may also hold credentials.KeyCA, KeyCertificate and KeyPrivateKey.
const KeyToken = "token"

const (
	headerToken = "X-Consul-Token"
	// headerFiltered means that the token may not read everything. Servers before 1.11
	// do not send it.
	headerFiltered = "X-Consul-Results-Filtered-By-ACLs"
	// pingService is the name that Ping asks for. Nothing is registered under it.
	pingService = "usher-ping"
)

// Options locate Consul.
type Options struct {
	// Address is the URL of an agent or server, without a path.
	Address string
	// Datacenter is the datacenter of the entries. Empty means that of the agent.
	Datacenter string
	// Secret holds the credentials under the keys above. It may be nil.
	Secret map[string][]byte
}

// FromSpec reads the kind's field from a Registry's spec.
func FromSpec(spec *usherv1alpha1.RegistrySpec, _ string) *registry.Settings {
	s := spec.Consul
	if s == nil {
		return nil
	}
	return &registry.Settings{
		Secret: s.CredentialsSecret, Root: s.Datacenter, Fold: strings.ToLower, Obeyed: obeyed,
		Connect: func(root string, secret map[string][]byte) (registry.Connector, error) {
			return New(Options{Address: s.Address, Datacenter: root, Secret: secret})
		},
	}
}

// Registry implements registry.Connector.
type Registry struct {
	datacenter string
	token      string
	client     *rest.Client
}

// New checks the options but does not connect. Errors are permanent and name the field
// or the Secret's key.
func New(options Options) (*Registry, error) {
	token := strings.TrimSpace(string(options.Secret[KeyToken]))
	if strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return nil, registry.Permanent(fmt.Errorf(
			"the credentials Secret's %s contains characters that no token has: put the token's secret id there", KeyToken))
	}
	header := http.Header{}
	if token != "" {
		header.Set(headerToken, token)
	}
	client, err := rest.New(rest.Options{
		Field: "consul.address", Example: "http://host:8500", Address: options.Address, Secret: options.Secret,
		Header: header, Hint: "the key " + KeyToken + " of the credentials Secret", Hidden: []string{token},
	})
	if err != nil {
		return nil, err
	}
	return &Registry{client: client, datacenter: options.Datacenter, token: token}, nil
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
	if err != nil {
		return nil, err
	}
	return registry.Entries(instances, func(i instance) registry.Entry { return i.entry(service) }), nil
}

// Close implements registry.Connector.
func (r *Registry) Close() error {
	r.client.Close()
	return nil
}

// read returns the service's instances. It fails rather than return only some of them,
// because a caller would take a hidden entry for a removed one.
func (r *Registry) read(ctx context.Context, service string) ([]instance, error) {
	answer, err := r.call(ctx, http.MethodGet, "/v1/health/service/"+url.PathEscape(service), "consistent", nil)
	if err != nil {
		return nil, err
	}
	if answer.Code != http.StatusOK {
		return nil, answer.Refusal()
	}
	if answer.Header.Get(headerFiltered) == "true" {
		return nil, registry.Permanent(fmt.Errorf("the ACL token may not read every node and instance of service %s: "+
			`give it the rules service %q { policy = "write" }, node_prefix "usher-" { policy = "write" } `+
			`and node_prefix "" { policy = "read" }`, service, service))
	}
	var instances []instance
	if err := answer.Decode("Consul", &instances); err != nil {
		return nil, err
	}
	if instances == nil {
		// Consul writes [] for none; null comes from another kind of server.
		return nil, registry.Permanent(fmt.Errorf("%s answered without a list: check that consul.address is Consul's", answer.Where))
	}
	return instances, r.unfiltered(ctx)
}

// unfiltered returns an error if there is no token and Consul has ACLs: then they hide
// entries silently. It is asked after every list, because ACLs may be enabled at any time.
func (r *Registry) unfiltered(ctx context.Context) error {
	if r.token != "" {
		return nil
	}
	answer, err := r.call(ctx, http.MethodGet, "/v1/acl/token/self", "", nil)
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

func (r *Registry) call(ctx context.Context, method, path, flag string, question any) (*rest.Answer, error) {
	q := rest.Question{Method: method, Path: path, Query: url.Values{}, JSON: question}
	if r.datacenter != "" {
		q.Query.Set("dc", r.datacenter)
	}
	if flag != "" {
		q.Query.Set(flag, "")
	}
	return r.client.Send(ctx, q)
}
