// SPDX-License-Identifier: Apache-2.0

package consul

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

// agentNode is the node of the only agent.
const agentNode = "agent-1"

// memory is a Consul of one member: the catalog, and an agent that keeps what applications register, with a check that
// the application passes, as Consul does. A registration changes no maintenance, and the end of a service ends its own.
type memory struct {
	mu      sync.Mutex
	address string // of the agent's node, in the catalog
	// catalog are instances on nodes of no agent, by node; own are those of the agent, by ID.
	catalog, own map[string]*instance
	index        uint64
	// asked are the requests to the agent.
	asked []string
}

func newMemory() *memory {
	return &memory{catalog: map[string]*instance{}, own: map[string]*instance{}, address: "127.0.0.1"}
}

func (m *memory) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case strings.HasPrefix(r.URL.Path, "/v1/health/service/"):
		w.Header().Set(headerIndex, strconv.FormatUint(m.index, 10))
		_, _ = w.Write(encode.JSON(m.list()))
	case r.URL.Path == "/v1/txn":
		m.transact(r)
		_, _ = w.Write([]byte("{}"))
	case strings.HasPrefix(r.URL.Path, "/v1/agent/"):
		m.asked = append(m.asked, r.Method+" "+r.URL.Path)
		m.index++
		code, said := m.agent(r, strings.TrimPrefix(r.URL.Path, "/v1/agent/"))
		w.WriteHeader(code)
		_, _ = w.Write(encode.JSON(said))
	}
}

func (m *memory) list() []instance {
	all := []instance{}
	for _, of := range []map[string]*instance{m.catalog, m.own} {
		for _, key := range slices.Sorted(maps.Keys(of)) {
			all = append(all, *of[key])
		}
	}
	return all
}

// transact puts an instance of a node of its own.
func (m *memory) transact(r *http.Request) {
	var ops []map[string]struct {
		Node    json.RawMessage
		Service *service
		Check   *check
	}
	_ = json.NewDecoder(r.Body).Decode(&ops)
	m.index++
	for _, op := range ops {
		var name string
		if op["Service"].Service != nil {
			_ = json.Unmarshal(op["Service"].Node, &name)
			put := *op["Service"].Service
			put.ModifyIndex = m.index
			m.catalog[name] = &instance{Node: node{Node: name, Address: put.Address}, Service: put}
		}
		if c := op["Check"].Check; c != nil {
			c.ModifyIndex = m.index
			m.catalog[c.Node].Checks = []check{*c}
		}
	}
}

// agent is the HTTP API of the agent: its answers are those of Consul 1.13.
func (m *memory) agent(r *http.Request, path string) (code int, said any) {
	if path == "service/register" {
		m.register(r)
		return http.StatusOK, nil
	}
	verb, id, found := strings.Cut(strings.TrimPrefix(path, "service/"), "/")
	if !found {
		verb, id = "", verb
	}
	i := m.own[id]
	switch {
	case i == nil:
		return http.StatusNotFound, "unknown service ID: " + id
	case verb == "deregister":
		delete(m.own, id)
	case verb == "maintenance":
		m.maintain(i, r.URL.Query())
	case r.Method == http.MethodGet:
		return http.StatusOK, i.Service
	}
	return http.StatusOK, nil
}

// register keeps the maintenance of a service that is there.
func (m *memory) register(r *http.Request) {
	var put service
	var said struct{ Name string }
	body, _ := io.ReadAll(r.Body)
	_, _ = json.Unmarshal(body, &put), json.Unmarshal(body, &said)
	put.Service, put.Weights, put.ModifyIndex = said.Name, weights{Passing: 1, Warning: 1}, m.index
	i := &instance{Node: node{Node: agentNode, Address: m.address}, Service: put,
		Checks: []check{{Node: agentNode, CheckID: "service:" + put.ID, Status: passing, ServiceID: put.ID, ModifyIndex: m.index}}}
	if before := m.own[put.ID]; before != nil {
		if on := before.maintenance(); on != nil {
			i.Checks = append(i.Checks, *on)
		}
	}
	m.own[put.ID] = i
}

// maintain keeps the first reason, as an agent does.
func (m *memory) maintain(i *instance, query url.Values) {
	on := i.maintenance() != nil
	switch enable := query.Get("enable") == "true"; {
	case enable && !on:
		i.Checks = append(i.Checks, check{Node: agentNode, CheckID: maintenance + i.Service.ID, Status: critical,
			Notes: query.Get("reason"), ServiceID: i.Service.ID, ModifyIndex: m.index})
	case !enable && on:
		i.Checks = slices.DeleteFunc(i.Checks, func(c check) bool { return c.CheckID == maintenance+i.Service.ID })
	}
}

func ownID(address string, port int32) string { return fmt.Sprintf("web-%s-%d", address, port) }

// send is a request of an application to its agent.
func (m *memory) send(t *testing.T, path, body string) {
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPut, "/v1/agent/"+path, strings.NewReader(body))
	w := httptest.NewRecorder()
	if m.ServeHTTP(w, r); w.Code != http.StatusOK {
		t.Fatalf("%s: %d %s", path, w.Code, w.Body)
	}
}

func (m *memory) enroll(t *testing.T, address string, port int32) {
	m.send(t, "service/register", fmt.Sprintf(`{"ID": %q, "Name": "web", "Address": %q, "Port": %d}`, ownID(address, port), address, port))
}

func (m *memory) callers(*testing.T) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	called := list.Only(m.list(), func(i instance) bool { return i.entry("web").Weight > 0 })
	return list.Map(called, func(i instance) string { return i.entry("web").HostPort() })
}

// connectAgents connects to a server that is the catalog and the agent of 127.0.0.1, and allows the networks.
func connectAgents(t *testing.T, handler http.Handler, allowed ...string) *Registry {
	t.Helper()
	return registrytest.Connect(New(withAgents(t, registrytest.Serve(t, handler), allowed...), "", token("token")))(t)
}

// withAgents is a Consul whose agents have the port of the server.
func withAgents(t *testing.T, server string, allowed ...string) *usherv1alpha1.ConsulRegistry {
	t.Helper()
	_, text, _ := net.SplitHostPort(strings.TrimPrefix(server, "http://"))
	port := checktest.Must(strconv.ParseInt(text, 10, 32))(t)
	s := at(server)
	s.Agents = &usherv1alpha1.ConsulAgents{AllowedAddresses: allowed, Scheme: "http", Port: int32(port)}
	return s
}

// TestSelfRegistered: what applications register is taken out by its agent, on a server that behaves as Consul does.
func TestSelfRegistered(t *testing.T) {
	registrytest.RunSelfRegistered(t, func(t *testing.T) registrytest.SelfRegistered {
		m := newMemory()
		return registrytest.SelfRegistered{
			Connector: connectAgents(t, m, "127.0.0.0/8"), Register: m.enroll, Beat: m.enroll, Callers: m.callers,
			Leave: func(t *testing.T, address string, port int32) {
				m.send(t, "service/deregister/"+ownID(address, port), "")
			},
		}
	})
}

// changeOwn makes a change of the only entry.
func changeOwn(t *testing.T, r *Registry, op registry.Op) (registry.Entry, error) {
	t.Helper()
	e := registrytest.Only(t, r)
	e.Owner = registrytest.Entry("demo.web-1.0a").Owner
	return e, r.Apply(registrytest.Bounded(t), "web", []registry.Change{{Op: op, Entry: e}})
}

// TestMaintenanceOfOthersStays: a service that somebody has put into maintenance is in it again when Usher brings it
// back, for the same reason.
func TestMaintenanceOfOthersStays(t *testing.T) {
	m := newMemory()
	r := connectAgents(t, m, "127.0.0.0/8")
	m.enroll(t, "10.0.0.1", 80)
	m.send(t, "service/maintenance/"+ownID("10.0.0.1", 80)+"?enable=true&reason=a+disk", "")
	theirs := registrytest.Only(t, r)
	if theirs.Override || theirs.Weight != 0 || !strings.Contains(theirs.Hidden, "a disk") {
		t.Errorf("it is listed as %+v", theirs)
	}
	for range 2 {
		if _, err := changeOwn(t, r, registry.TakeOut); err != nil || !registrytest.Only(t, r).Override {
			t.Fatalf("taken out: %v, %+v", err, registrytest.Only(t, r))
		}
	}
	_, err := changeOwn(t, r, registry.BringBack)
	checktest.NoError(t, err)
	checktest.Same(t, "why it is hidden", theirs.Hidden, registrytest.Only(t, r).Hidden)
}

// TestForeignAgents is an attack: whoever may write to the catalog, or runs an agent, says that a node is at an address
// of his choice, so that Usher sends its token there.
func TestForeignAgents(t *testing.T) {
	for address, allowed := range map[string]string{
		"127.0.0.1": "10.0.0.0/8", "127.0.0.2": "127.0.0.1/32", "::1": "127.0.0.0/8", "169.254.169.254": "0.0.0.0/0",
		"::ffff:127.0.0.1": "0.0.0.0/0", "localhost": "127.0.0.0/8", "127.0.0.1:80": "127.0.0.0/8", "": "0.0.0.0/0", "0.0.0.0": "0.0.0.0/0",
		"fe80::1%lo": "fe80::/10", "[::1]/x": "::/0",
	} {
		m := newMemory()
		m.address = address
		r := connectAgents(t, m, allowed)
		m.enroll(t, "10.0.0.1", 80)
		m.asked = nil
		e, err := changeOwn(t, r, registry.TakeOut)
		registrytest.CheckRefused(t, address, err, e.ID, registry.ErrPermanent, "consul.agents.allowedAddresses")
		if len(m.asked) > 0 {
			t.Errorf("%q, with %s allowed: the agent was asked %v", address, allowed, m.asked)
		}
	}
}

// TestAgentsServices is an attack: an entry in the catalog names the agent of somebody else's service, by its ID, or an
// ID that is a path. The agent's services stay.
func TestAgentsServices(t *testing.T) {
	for id, want := range map[string]error{
		ownID("10.0.0.2", 80): registry.ErrConflict, "../../leave": registry.ErrPermanent, "..": registry.ErrPermanent, "a//b": registry.ErrPermanent,
		"gone": registry.ErrTransient,
	} {
		m := newMemory()
		ctx, cancel := context.WithCancel(registrytest.Bounded(t))
		r := connectAgents(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/v1/agent/") && r.Method != http.MethodGet {
				cancel() // the attack works: nothing is left to wait for
			}
			m.ServeHTTP(w, r)
		}), "127.0.0.0/8")
		m.enroll(t, "10.0.0.2", 80)
		forged := &instance{Node: node{Node: "forged", Address: "127.0.0.1"}, Service: service{ID: id, Address: "10.0.0.1", Port: 80}}
		m.catalog["forged"] = forged
		m.asked = nil
		e := forged.entry("web")
		e.Owner = registrytest.Entry("demo.web-1.0a").Owner
		err := r.Apply(ctx, "web", []registry.Change{{Op: registry.TakeOut, Entry: e}})
		registrytest.CheckRefused(t, id, err, e.ID, want)
		for _, asked := range m.asked {
			if !strings.HasPrefix(asked, http.MethodGet) {
				t.Errorf("%s: the agent was asked %s", id, asked)
			}
		}
		checktest.Same(t, "who gets callers", 1, len(m.callers(t)))
		cancel()
	}
}

// TestAgentThatFails: an agent that is down, or refuses, is an error of its own instances, and Usher's own entries are
// written.
func TestAgentThatFails(t *testing.T) {
	for code, want := range map[int]error{http.StatusInternalServerError: registry.ErrTransient, http.StatusForbidden: registry.ErrPermanent} {
		m := newMemory()
		r := connectAgents(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/v1/agent/") {
				w.WriteHeader(code)
				return
			}
			m.ServeHTTP(w, r)
		}), "127.0.0.0/8")
		m.enroll(t, "10.0.0.1", 80)
		out, mine := registrytest.Only(t, r), registrytest.Entry("mine")
		out.Owner = registrytest.Entry("demo.web-1.0a").Owner
		err := r.Apply(registrytest.Bounded(t), "web", []registry.Change{{Op: registry.TakeOut, Entry: out}, {Op: registry.Put, Entry: mine}})
		registrytest.CheckRefused(t, fmt.Sprint(code), err, out.ID, want)
		checktest.Same(t, "who gets callers", 2, len(m.callers(t)))
	}
}

// TestAgentsAreOptional: without networks of agents, Usher's own entries work, and the error names the field.
func TestAgentsAreOptional(t *testing.T) {
	m := newMemory()
	r := registrytest.Connect(New(at(registrytest.Serve(t, m)), "", token("token")))(t)
	m.enroll(t, "10.0.0.1", 80)
	e, err := changeOwn(t, r, registry.TakeOut)
	registrytest.CheckRefused(t, "no agents", err, e.ID, registry.ErrPermanent, "consul.agents")
	for _, networks := range [][]string{{"10.0.0.0"}, {"10.0.0.0/33"}, {"nodes/8"}} {
		s := at("http://localhost:8500")
		s.Agents = &usherv1alpha1.ConsulAgents{AllowedAddresses: networks}
		_, err := New(s, "", nil)
		registrytest.Check(t, fmt.Sprint(networks), err, registry.ErrPermanent, "consul.agents.allowedAddresses")
	}
	_, err = New(at("http://localhost"), "", map[string][]byte{KeyAgentToken: []byte("a")})
	registrytest.Check(t, "a token for agents alone", err, registry.ErrPermanent, KeyToken)
}

// TestAgentsToken: agents get their own token, and that of the catalog if there is none.
func TestAgentsToken(t *testing.T) {
	for own, want := range map[string]string{"": "token", "for-agents": "for-agents"} {
		m, sent := newMemory(), map[bool]string{}
		server := registrytest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			m.mu.Lock()
			sent[strings.HasPrefix(r.URL.Path, "/v1/agent/")] = r.Header.Get(headerToken)
			m.mu.Unlock()
			m.ServeHTTP(w, r)
		}))
		secret := token("token")
		if own != "" {
			secret[KeyAgentToken] = []byte(own + "\n")
		}
		r := registrytest.Connect(New(withAgents(t, server, "127.0.0.0/8"), "", secret))(t)
		m.enroll(t, "10.0.0.1", 80)
		_, err := changeOwn(t, r, registry.TakeOut)
		checktest.NoError(t, err)
		checktest.Same(t, "the tokens that were sent", map[bool]string{false: "token", true: want}, sent)
	}
}
