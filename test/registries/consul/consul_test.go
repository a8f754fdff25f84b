// SPDX-License-Identifier: Apache-2.0

package consul_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/consul"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/registries/internal/servers"
	"github.com/usher-dev/usher/test/servers/run"
)

func TestConformance(t *testing.T) {
	s := start(t, nil)
	registrytest.Run(t, func(t *testing.T) registrytest.Fixture {
		s.empty(t)
		return registrytest.Fixture{
			Atomic:    true,
			Connector: s.connect(t, datacenter, nil),
			HoldsBack: true,
			Seed: func(service, id string) {
				s.put(t, "/v1/catalog/register", catalog(consul.NodeName(service, id), service, id, "passing"))
			},
			Break: s.Kill, Mend: s.Restart, Hang: s.Hang, Resume: s.Resume,
		}
	})
}

// TestTraffic rolls instances under a caller that follows Consul's health API with
// blocking queries, as Consul's clients do.
func TestTraffic(t *testing.T) {
	s := start(t, nil)
	rollout := registrytest.Rollout{Connector: s.connect(t, "", nil), Propagation: time.Second}
	rollout.Run(t, func(t *testing.T) func() []string {
		index := ""
		return registrytest.Follow(t, 0, func(ctx context.Context) (addresses []string, err error) {
			addresses, index, err = s.passing(ctx, "web", index)
			return addresses, err
		})
	})
}

// TestNothingStays removes only an entry, its check and its node.
func TestNothingStays(t *testing.T) {
	s := start(t, nil)
	r := s.connect(t, "", nil)
	s.put(t, "/v1/catalog/register", catalog("agent-1", "web", "web", "passing"))
	entries := registrytest.Put(t, r, registrytest.Entry("a"))
	if len(entries) != 2 || entries[0].ID != "a" || entries[1].ID != "web@agent-1" || entries[1].Owner != (registry.Owner{}) {
		t.Fatalf("listed: %+v", entries)
	}
	if names := s.nodes(t); !slices.Contains(names, consul.NodeName("web", "a")) {
		t.Errorf("the catalog has the nodes %v", names)
	}
	registrytest.Remove(t, r, entries[0])
	checktest.Same(t, "the nodes that are left", []string{"agent-1"}, s.nodes(t))
}

// TestCriticalIsSeenAndRepaired lets somebody disable an entry: callers do not get it,
// so it must be repaired.
func TestCriticalIsSeenAndRepaired(t *testing.T) {
	s := start(t, nil)
	r := s.connect(t, "", nil)
	want := registrytest.Entry("a")
	node := consul.NodeName("web", "a")
	for name, check := range map[string]map[string]any{
		"our check": {"Node": node, "CheckID": "usher", "Name": "Usher", "Status": "critical",
			"ServiceID": "a", "ServiceName": "web"},
		"a check of the node": {"Node": node, "CheckID": "maintenance", "Name": "maintenance", "Status": "critical"},
	} {
		before := registrytest.Put(t, r, want)[0]
		s.put(t, "/v1/catalog/register", map[string]any{"Node": node, "Address": "10.0.0.1", "SkipNodeUpdate": true, "Check": check})
		if off := registrytest.Only(t, r); off.Weight != 0 || off.Version == before.Version {
			t.Errorf("%s: the entry is %+v, before %+v", name, off, before)
		}
		registrytest.Heals(t, name, r, want)
		if addresses, _, err := s.passing(registrytest.Bounded(t), "web", ""); err != nil || len(addresses) != 1 {
			t.Errorf("%s: callers get %v, %v after the repair", name, addresses, err)
		}
	}
}

func TestDatacenter(t *testing.T) {
	s := start(t, nil)
	ping := func(name string) error {
		return s.connect(t, name, nil).Ping(registrytest.Bounded(t))
	}
	registrytest.Check(t, "our datacenter", ping(datacenter), nil)
	registrytest.Check(t, "another datacenter", ping("nowhere"), registry.ErrTransient, "datacenter")
}

const management = "0a3ac8ad-5bb5-4a21-9e3c-3b8a5d4fbd5c"

// acls are the settings of a server that lets nobody do anything without a token.
func acls() map[string]any {
	return map[string]any{"acl": map[string]any{
		"enabled": true, "default_policy": "deny", "tokens": map[string]any{"initial_management": management},
	}}
}

// TestACL reports what is wrong with a token, and never lists less than there is.
func TestACL(t *testing.T) {
	s := start(t, acls())
	tokens := map[string]string{"unknown": "7e0ff1f4-0000-4a21-9e3c-" + registrytest.Secret, "none": ""}
	for name, rules := range map[string]string{
		"full":    `service "web" { policy = "write" } node_prefix "usher-" { policy = "write" } node_prefix "" { policy = "read" }`,
		"reader":  `service "web" { policy = "read" } node_prefix "" { policy = "read" }`,
		"partial": `service "web" { policy = "write" } node_prefix "usher-" { policy = "write" }`,
	} {
		tokens[name] = s.token(t, name, rules)
	}
	s.put(t, "/v1/catalog/register", catalog("agent-1", "web", "web", "passing"))
	for name, test := range map[string]struct{ list, apply error }{
		"full": {nil, nil}, "reader": {nil, registry.ErrPermanent}, "partial": {registry.ErrPermanent, registry.ErrPermanent},
		"unknown": {registry.ErrPermanent, registry.ErrPermanent}, "none": {registry.ErrPermanent, registry.ErrPermanent},
	} {
		r := s.connect(t, "", map[string][]byte{consul.KeyToken: []byte(tokens[name])})
		_, err := r.List(registrytest.Bounded(t), "web")
		registrytest.Check(t, name+": list", err, test.list)
		registrytest.Check(t, name+": apply", registrytest.TryPut(t, r, registrytest.Entry(name)), test.apply)
	}
}

// TestACLsAreTurnedOn hides what a connector without a token has seen: the connector
// must not consider it gone.
func TestACLsAreTurnedOn(t *testing.T) {
	s := start(t, nil)
	r := s.connect(t, "", nil)
	registrytest.Put(t, r, registrytest.Entry("one"))
	checktest.NoError(t, errors.Join(s.Set(acls()), s.Restart(registrytest.Bounded(t))))
	for range 2 {
		_, err := r.List(registrytest.Bounded(t), "web")
		registrytest.Check(t, "a list without a token", err, registry.ErrPermanent)
	}
}

// TestSelfRegistered: what applications register with their agent is taken out of service there, and stays so.
func TestSelfRegistered(t *testing.T) {
	s := start(t, nil)
	registrytest.RunSelfRegistered(t, func(t *testing.T) registrytest.SelfRegistered {
		s.empty(t)
		return registrytest.SelfRegistered{
			Connector: s.connectAgents(t, "127.0.0.0/8"), Register: s.register, Beat: s.beat, Callers: s.callers, Leave: s.leave,
		}
	})
}

// TestAgentRestarts: the maintenance lasts when the agent restarts, and so does its end.
func TestAgentRestarts(t *testing.T) {
	s := start(t, nil)
	r := s.connectAgents(t, "127.0.0.1/32")
	s.register(t, "10.0.0.1", 80)
	for _, op := range []registry.Op{registry.TakeOut, registry.BringBack} {
		s.override(t, r, op)
		checktest.NoError(t, s.Restart(registrytest.Bounded(t)))
		registrytest.Eventually(t, "after a restart", func() string {
			listed, err := r.List(registrytest.Bounded(t), "web")
			return registrytest.Unless(err == nil && len(listed) == 1 && listed[0].Override == (op == registry.TakeOut), "it is listed otherwise")
		})
	}
}

// TestAgentsACL: the agent wants a token that may write the service.
func TestAgentsACL(t *testing.T) {
	s := start(t, acls())
	s.register(t, "10.0.0.1", 80)
	rules := `service "web" { policy = "%s" } node_prefix "" { policy = "read" }`
	reader, writer := s.token(t, "reads", fmt.Sprintf(rules, "read")), s.token(t, "writes", fmt.Sprintf(rules, "write"))
	for name, test := range map[string]struct {
		token, agents string
		want          error
	}{
		"reads": {reader, "", registry.ErrPermanent}, "writes": {writer, "", nil}, "an agent's own": {reader, writer, nil}, "an agent's reads": {writer, reader, registry.ErrPermanent},
	} {
		secret := map[string][]byte{consul.KeyToken: []byte(test.token)}
		if test.agents != "" {
			secret[consul.KeyAgentToken] = []byte(test.agents)
		}
		r := registrytest.Connect(consul.New(s.spec(t, "127.0.0.0/8"), "", secret))(t)
		e := registrytest.Only(t, r)
		e.Owner = registrytest.Entry("demo.web-1.0a").Owner
		err := r.Apply(registrytest.Bounded(t), "web", []registry.Change{{Op: registry.TakeOut, Entry: e}})
		registrytest.Check(t, name, err, test.want)
		if registrytest.Only(t, r).Override != (test.want == nil) {
			t.Errorf("%s: it is listed as %+v", name, registrytest.Only(t, r))
		}
		s.put(t, "/v1/agent/service/maintenance/web-10.0.0.1-80?enable=false", nil)
		registrytest.Until(t, "the end of the maintenance", func() bool { return !registrytest.Only(t, r).Override })
	}
}

// override makes a change of the only entry.
func (s *server) override(t *testing.T, r *consul.Registry, op registry.Op) {
	t.Helper()
	e := registrytest.Only(t, r)
	e.Owner = registrytest.Entry("demo.web-1.0a").Owner
	checktest.NoError(t, r.Apply(registrytest.Bounded(t), "web", []registry.Change{{Op: op, Entry: e}}))
}

// token makes one with the rules.
func (s *server) token(t *testing.T, name, rules string) string {
	t.Helper()
	s.put(t, "/v1/acl/policy", map[string]any{"Name": name, "Rules": rules})
	var made struct{ SecretID string }
	servers.Must(t, s.HTTP, http.MethodPut, "/v1/acl/token", map[string]any{"Policies": []any{map[string]any{"Name": name}}}, &made)
	return made.SecretID
}

// spec is the server, whose agent is at the same port.
func (s *server) spec(t *testing.T, allowed ...string) *usherv1alpha1.ConsulRegistry {
	t.Helper()
	port := checktest.Must(strconv.ParseInt(s.Address[strings.LastIndex(s.Address, ":")+1:], 10, 32))(t)
	return &usherv1alpha1.ConsulRegistry{
		Address: s.Address, Agents: &usherv1alpha1.ConsulAgents{AllowedAddresses: allowed, Scheme: "http", Port: int32(port)},
	}
}

func (s *server) connectAgents(t *testing.T, allowed ...string) *consul.Registry {
	t.Helper()
	return registrytest.Connect(consul.New(s.spec(t, allowed...), "", nil))(t)
}

func idOf(address string, port int32) string { return fmt.Sprintf("web-%s-%d", address, port) }

// register registers an application with the agent, as Consul's clients do, with a check that the application passes.
func (s *server) register(t *testing.T, address string, port int32) {
	s.put(t, "/v1/agent/service/register", map[string]any{
		"ID": idOf(address, port), "Name": "web", "Address": address, "Port": port, "Check": map[string]any{"TTL": "10s", "Status": "passing"},
	})
}

func (s *server) beat(t *testing.T, address string, port int32) {
	_, err := s.Do(registrytest.Bounded(t), http.MethodPut, "/v1/agent/check/pass/service:"+idOf(address, port), nil, nil)
	switch {
	case err != nil && strings.Contains(err.Error(), "404"):
		s.register(t, address, port)
	case err != nil:
		t.Fatal(err)
	}
}

func (s *server) leave(t *testing.T, address string, port int32) {
	s.put(t, "/v1/agent/service/deregister/"+idOf(address, port), nil)
}

func (s *server) callers(t *testing.T) []string {
	addresses, _, err := s.passing(registrytest.Bounded(t), "web", "")
	checktest.NoError(t, err)
	return addresses
}

// TestTLS verifies the server's certificate, and presents our own.
func TestTLS(t *testing.T) {
	authority := registrytest.NewAuthority(t)
	ca, certificate, key := authority.Files()
	s := start(t, map[string]any{"verify_incoming": true, "ca_file": ca, "cert_file": certificate, "key_file": key})
	registrytest.CheckTLS(t, authority, registry.ErrTransient, func(secret map[string][]byte) (*consul.Registry, error) {
		return consul.New(&usherv1alpha1.ConsulRegistry{Address: s.Secure}, "", secret)
	})
}

const datacenter = "east"

// server is a single-member Consul.
type server struct{ *run.Consul }

// start starts a server with these settings added to its own.
func start(t *testing.T, settings map[string]any) *server {
	t.Helper()
	all := map[string]any{"datacenter": datacenter}
	maps.Copy(all, settings)
	var s server
	servers.Fetch(t, func(ctx context.Context) (_ string, err error) {
		s.Consul, err = run.StartConsul(ctx, "server", t.TempDir(), all)
		return "", err
	})
	servers.Close(t, s.Process)
	return &s
}

func (s *server) put(t *testing.T, path string, question any) {
	t.Helper()
	servers.Must(t, s.HTTP, http.MethodPut, path, question, nil)
}

// nodes are the names in the catalog, except the server's own.
func (s *server) nodes(t *testing.T) []string {
	t.Helper()
	var listed []struct{ Node string }
	servers.Must(t, s.HTTP, http.MethodGet, "/v1/catalog/nodes?consistent", nil, &listed)
	names := list.Map(listed, func(n struct{ Node string }) string { return n.Node })
	return slices.DeleteFunc(names, func(name string) bool { return name == "server" })
}

// empty removes everything that tests have written.
func (s *server) empty(t *testing.T) {
	t.Helper()
	for _, name := range s.nodes(t) {
		s.put(t, "/v1/catalog/deregister", map[string]any{"Node": name})
	}
	var own map[string]any
	servers.Must(t, s.HTTP, http.MethodGet, "/v1/agent/services", nil, &own)
	for id := range own {
		s.put(t, "/v1/agent/service/deregister/"+id, nil)
	}
	registrytest.Until(t, "the agent's services to be gone", func() bool { return len(s.callers(t)) == 0 })
}

func (s *server) connect(t *testing.T, datacenter string, secret map[string][]byte) *consul.Registry {
	t.Helper()
	return registrytest.Connect(consul.New(&usherv1alpha1.ConsulRegistry{Address: s.Address}, datacenter, secret))(t)
}

// catalog is a service on a node, as other clients register it.
func catalog(node, service, id, status string) map[string]any {
	return map[string]any{
		"Node": node, "Address": "192.0.2.1",
		"Service": map[string]any{"ID": id, "Service": service, "Address": "192.0.2.1", "Port": 1},
		"Check": map[string]any{"Node": node, "CheckID": "theirs", "Name": "theirs", "Status": status,
			"ServiceID": id, "ServiceName": service},
	}
}

// passing are the addresses that a caller of the service gets.
func (s *server) passing(ctx context.Context, service, index string) (addresses []string, next string, err error) {
	listed, next, err := run.Passing(ctx, s.HTTP, service, index)
	return list.Map(listed, run.Instance.HostPort), next, err
}
