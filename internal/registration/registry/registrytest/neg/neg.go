// SPDX-License-Identifier: Apache-2.0

// Package neg is a server of Google Cloud's API of network endpoint groups for tests, as its documentation describes the
// wire format, with a clock: an endpoint is attached, then checked, then healthy; it drains once it is detached.
package neg

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/usher-dev/usher/internal/registration/registry/registrytest/timed"
)

// Times are how long the load balancer takes.
type Times struct {
	// Attach is the time until it knows an endpoint, Checks from then until it has found it healthy, and Drain the
	// connection draining timeout.
	Attach, Checks, Drain time.Duration
}

// Server is the API, with the groups' endpoints.
type Server struct {
	*timed.Server
	times Times

	mu sync.Mutex
	// groups are by "ZONE/NAME".
	groups map[string][]*endpoint
	// nodes means that endpoints have no port, as in groups of the type GCE_VM_IP.
	nodes bool
	// page is how many endpoints a page of a list has.
	page int
	// refusal is what all calls are answered with, of this status; none if that is 0.
	refusal string
	status  int
	calls   []string
}

type endpoint struct {
	address       string
	port          int32
	began, leaves time.Duration
}

// Endpoint is an endpoint of a group. Health is empty if it has not been checked.
type Endpoint struct {
	Address string
	Port    int32
	Health  string
	// For is how long it drains already.
	For time.Duration
}

// The states of endpoints.
const (
	Healthy   = "HEALTHY"
	Unhealthy = "UNHEALTHY"
	Draining  = "DRAINING"
)

// Token is the one that the server gives and asks for.
const Token = "ya29.test-token"

// Key is a key of a service account, in JSON, whose tokens come from a server at a URL.
func Key(url string) string {
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err) // no randomness
	}
	text, _ := json.Marshal(map[string]string{ // texts always encode
		"type": "service_account", "client_email": "usher@shop-prod-1.iam.gserviceaccount.com", "private_key_id": "1", "token_uri": url + "/token",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(private)})),
	})
	return string(text)
}

// New starts a server with groups, each "ZONE/NAME". Its time passes by Pass.
func New(times Times, groups ...string) *Server {
	s := &Server{times: times, groups: map[string][]*endpoint{}, page: 500}
	for _, group := range groups {
		s.groups[group] = nil
	}
	s.Server = timed.Serve(http.HandlerFunc(s.serve))
	return s
}

// Start is New with a clock that runs.
func Start(times Times, groups ...string) *Server {
	s := New(times, groups...)
	s.Run(true)
	return s
}

// Add adds a group, unless it is there.
func (s *Server) Add(group string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, there := s.groups[group]; !there {
		s.groups[group] = nil
	}
}

// Remove removes a group.
func (s *Server) Remove(group string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.groups, group)
}

// Nodes has endpoints be nodes, without ports.
func (s *Server) Nodes() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes = true
}

// Pages has lists come in pages.
func (s *Server) Pages(size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.page = size
}

// Attach adds an endpoint. One that drains begins anew.
func (s *Server) Attach(group, address string, port int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.groups[group] = slices.DeleteFunc(s.groups[group], func(e *endpoint) bool { return e.address == address })
	s.groups[group] = append(s.groups[group], &endpoint{address: address, port: port, began: s.Now(), leaves: -1})
}

// Detach begins to drain an endpoint.
func (s *Server) Detach(group, address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.groups[group] {
		if e.address == address && e.leaves < 0 {
			e.leaves = s.Now()
		}
	}
}

// Endpoints are those of a group.
func (s *Server) Endpoints(group string) (all []Endpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.endpoints(group)
}

func (s *Server) endpoints(group string) (all []Endpoint) {
	s.groups[group] = slices.DeleteFunc(s.groups[group], func(e *endpoint) bool { return e.leaves >= 0 && s.Now()-e.leaves >= s.times.Drain })
	for _, e := range s.groups[group] {
		now := Endpoint{Address: e.address, Port: e.port, Health: s.health(e)}
		if e.leaves >= 0 {
			now.For = s.Now() - e.leaves
		}
		all = append(all, now)
	}
	return all
}

func (s *Server) health(e *endpoint) string {
	switch age := s.Now() - e.began; {
	case e.leaves >= 0:
		return Draining
	case age < s.times.Attach:
		return ""
	case age < s.times.Attach+s.times.Checks:
		return Unhealthy
	}
	return Healthy
}

// Calls are the paths that were called.
func (s *Server) Calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// Answer has all calls but those for tokens answered so; with the status 0, none.
func (s *Server) Answer(status int, body string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status, s.refusal = status, body
}

// Error is the body of an error of Google's.
func Error(code int, reason, message string) string {
	said, _ := json.Marshal(message) // texts always encode
	return fmt.Sprintf(`{"error": {"code": %d, "message": %s, "errors": [{"message": %[2]s, "domain": "global", "reason": %q}]}}`, code, said, reason)
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, r.URL.Path)
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Path == "/token" {
		_, _ = fmt.Fprintf(w, `{"access_token": %q, "token_type": "Bearer", "expires_in": 3600}`, Token)
		return
	}
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/compute/v1/projects/"), "/")
	switch {
	case s.status != 0:
		answer(w, s.status, s.refusal)
	case r.Header.Get("Authorization") != "Bearer "+Token:
		answer(w, http.StatusUnauthorized, Error(http.StatusUnauthorized, "authError", "Request had invalid authentication credentials."))
	case len(parts) == 3 && parts[1] == "aggregated":
		answer(w, http.StatusOK, `{"kind": "compute#networkEndpointGroupAggregatedList"}`)
	case len(parts) == 6 && parts[5] == "listNetworkEndpoints" && r.Method == http.MethodPost:
		s.list(w, r, parts[2]+"/"+parts[4])
	default:
		answer(w, http.StatusNotFound, Error(http.StatusNotFound, "notFound", "The requested URL was not found."))
	}
}

// list is a page of the endpoints of a group.
func (s *Server) list(w http.ResponseWriter, r *http.Request, group string) {
	if _, there := s.groups[group]; !there {
		zone, name, _ := strings.Cut(group, "/")
		said := "The resource 'projects/shop-prod-1/zones/" + zone + "/networkEndpointGroups/" + name + "' was not found"
		answer(w, http.StatusNotFound, Error(http.StatusNotFound, "notFound", said))
		return
	}
	var question struct {
		HealthStatus string `json:"healthStatus"`
	}
	if err := json.NewDecoder(r.Body).Decode(&question); err != nil {
		answer(w, http.StatusBadRequest, Error(http.StatusBadRequest, "parseError", err.Error()))
		return
	}
	all := s.endpoints(group)
	begin, _ := strconv.Atoi(r.URL.Query().Get("pageToken")) // none is the first page
	end := min(begin+s.page, len(all))
	page := map[string]any{"kind": "compute#networkEndpointGroupsListNetworkEndpoints"}
	var items []any
	for _, e := range all[min(begin, end):end] {
		items = append(items, s.item(e, question.HealthStatus == "SHOW"))
	}
	if len(items) > 0 {
		page["items"] = items
	}
	if end < len(all) {
		page["nextPageToken"] = strconv.Itoa(end)
	}
	_ = json.NewEncoder(w).Encode(page)
}

func (s *Server) item(e Endpoint, shows bool) map[string]any {
	at := map[string]any{"ipAddress": e.Address, "instance": "node-1"}
	if !s.nodes {
		at["port"] = e.Port
	}
	item := map[string]any{"networkEndpoint": at}
	if shows && e.Health != "" {
		item["healths"] = []any{map[string]any{"healthState": e.Health, "backendService": map[string]any{"backendService": "https://x/backendServices/web"}}}
	}
	return item
}

func answer(w http.ResponseWriter, status int, body string) {
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body)) //nolint:gosec // A test's own text.
}
