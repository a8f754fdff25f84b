// SPDX-License-Identifier: Apache-2.0

// Package cloudmap is a server of the API of AWS Cloud Map for tests, as its documentation describes the wire format,
// with a clock: operations, and changes of health, take a while.
package cloudmap

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/usher-dev/usher/internal/registration/registry/registrytest/timed"
)

// Namespace is the ID of the only namespace, whose name is Name.
const (
	Namespace = "ns-0123456789abcdef"
	Name      = "prod.example"
)

// Times are how long Cloud Map takes.
type Times struct {
	// Operation is the time until an operation has ended, Discovery until callers see it, Health until they see the
	// health that was set.
	Operation, Discovery, Health time.Duration
}

// Service is a service.
type Service struct {
	// Custom means that the health of its instances is what somebody says, DNS that it has records.
	Custom, DNS bool
}

// Server is the API, with a namespace.
type Server struct {
	*timed.Server
	times Times

	mu sync.Mutex
	// services are those of the namespace, by name, which is their ID as well after "srv-".
	services map[string]*service
	// operations are all that were begun, by number.
	operations []*operation
	calls      []string
	refuses    string
	status     int
	answer     string
	// fails is the error code of operations that are begun from now on; empty for none. With half, callers see what
	// they did nevertheless.
	fails string
	half  bool
}

type service struct {
	Service
	instances map[string]*instance
}

type instance struct {
	attributes map[string]string
	health     string
}

// operation is what happens at a time.
type operation struct {
	ends, seen time.Duration
	// see changes what callers find; nil once that is done.
	see   func()
	fails string
}

// New starts a server. Its time passes by Pass.
func New(times Times) *Server {
	s := &Server{times: times, services: map[string]*service{}}
	s.Server = timed.Serve(http.HandlerFunc(s.serve))
	return s
}

// Add adds a service without instances.
func (s *Server) Add(name string, as Service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.services[name] = &service{as, map[string]*instance{}}
}

// Remove removes a service.
func (s *Server) Remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.services, name)
}

// Register registers an instance at once.
func (s *Server) Register(name, id string, attributes map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.services[name].instances[id] = &instance{attributes, "HEALTHY"}
}

// SetHealth changes the health of an instance at once.
func (s *Server) SetHealth(name, id, health string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.services[name].instances[id].health = health
}

// Attributes are those of an instance, nil if there is none.
func (s *Server) Attributes(name, id string) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.advance()
	if i := s.services[name].instances[id]; i != nil {
		return maps.Clone(i.attributes)
	}
	return nil
}

// Calls are the actions that were called, each with the user of the credentials.
func (s *Server) Calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// Called is how often an action was called.
func (s *Server) Called(action string) (n int) {
	for _, call := range s.Calls() {
		if strings.HasPrefix(call, action+" ") {
			n++
		}
	}
	return n
}

// Refuse has all calls refused; with an empty code, none.
func (s *Server) Refuse(code string, status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuses, s.status = code, status
}

// Fail has operations fail that are begun from now on; with an empty code, none.
func (s *Server) Fail(code string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fails = code
}

// FailHalf is Fail for operations of which callers see what they did.
func (s *Server) FailHalf(code string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fails, s.half = code, true
}

// Answer has all calls answered so.
func (s *Server) Answer(answer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

// advance does what has come to its time.
func (s *Server) advance() {
	for _, o := range s.operations {
		if o.see != nil && s.Now() >= o.seen {
			o.see()
			o.see = nil
		}
	}
}

// begin begins an operation, and returns its ID.
func (s *Server) begin(see func()) string {
	o := &operation{ends: s.Now() + s.times.Operation, seen: s.Now() + s.times.Discovery, see: see, fails: s.fails}
	if o.fails != "" && !s.half {
		o.see = nil
	}
	s.operations = append(s.operations, o)
	return fmt.Sprint("operation-", len(s.operations)-1)
}

// request has the fields of all calls.
type request struct {
	ID            string `json:"Id"`
	NamespaceName string
	ServiceName   string
	ServiceID     string `json:"ServiceId"`
	InstanceID    string `json:"InstanceId"`
	OperationID   string `json:"OperationId"`
	Attributes    map[string]string
	Status        string
	Filters       []struct{ Values []string }
}

// refusal is an error of AWS's.
type refusal struct{ code, message string }

type object = map[string]any

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, action, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	_, user, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=")
	user, _, _ = strings.Cut(user, "/")
	s.calls = append(s.calls, action+" "+user)
	w.Header().Set("Content-Type", "application/x-amz-json-1.1")
	w.Header().Set("X-Amzn-Requestid", fmt.Sprint("request-", len(s.calls)))
	var asked request
	switch err := json.NewDecoder(r.Body).Decode(&asked); {
	case s.answer != "":
		_, _ = w.Write([]byte(s.answer)) //nolint:gosec // A test's own text.
	case s.refuses != "":
		refuse(w, s.status, refusal{s.refuses, "Rate exceeded, or else"})
	case err != nil:
		refuse(w, http.StatusBadRequest, refusal{"SerializationException", err.Error()})
	case user == "":
		refuse(w, http.StatusBadRequest, refusal{"MissingAuthenticationTokenException", "Missing Authentication Token"})
	default:
		s.advance()
		answer, refused := s.do(action, asked)
		if refused != nil {
			refuse(w, http.StatusBadRequest, *refused)
			return
		}
		_ = json.NewEncoder(w).Encode(answer) // to a test
	}
}

func refuse(w http.ResponseWriter, status int, r refusal) {
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(object{"__type": "com.amazonaws.servicediscovery#" + r.code, "Message": r.message}) // as above
}

func (s *Server) do(action string, asked request) (object, *refusal) {
	switch action {
	case "GetNamespace":
		if asked.ID != Namespace {
			return nil, &refusal{"NamespaceNotFound", asked.ID}
		}
		properties := object{"HttpProperties": object{"HttpName": Name}}
		return object{"Namespace": object{"Id": Namespace, "Name": "prod", "Properties": properties}}, nil
	case "ListServices":
		return s.list(asked), nil
	case "DiscoverInstances":
		return s.discover(asked)
	case "GetOperation":
		return s.operation(asked)
	}
	of := s.services[strings.TrimPrefix(asked.ServiceID, "srv-")]
	if of == nil {
		return nil, &refusal{"ServiceNotFound", asked.ServiceID}
	}
	return s.write(action, asked, of)
}

func (s *Server) list(asked request) object {
	services := []object{}
	for _, name := range slices.Sorted(maps.Keys(s.services)) {
		if len(asked.Filters) == 0 || !slices.Contains(asked.Filters[0].Values, Namespace) {
			break
		}
		one := object{"Id": "srv-" + name, "Name": name}
		if s.services[name].Custom {
			one["HealthCheckCustomConfig"] = object{"FailureThreshold": 1}
		}
		if s.services[name].DNS {
			one["DnsConfig"] = object{"DnsRecords": []object{{"Type": "A", "TTL": 10}}}
		}
		services = append(services, one)
	}
	return object{"Services": services}
}

func (s *Server) discover(asked request) (object, *refusal) {
	of := s.services[asked.ServiceName]
	switch {
	case asked.NamespaceName != Name:
		return nil, &refusal{"NamespaceNotFound", asked.NamespaceName}
	case of == nil:
		return nil, &refusal{"ServiceNotFound", asked.ServiceName}
	}
	found := []object{}
	for id, i := range of.instances {
		found = append(found, object{"InstanceId": id, "HealthStatus": i.health, "Attributes": i.attributes})
	}
	return object{"Instances": found, "InstancesRevision": len(s.operations)}, nil
}

func (s *Server) operation(asked request) (object, *refusal) {
	var n int
	if _, err := fmt.Sscanf(asked.OperationID, "operation-%d", &n); err != nil || n >= len(s.operations) {
		return nil, &refusal{"OperationNotFound", asked.OperationID}
	}
	o, said := s.operations[n], object{"Id": asked.OperationID, "Status": "PENDING"}
	switch {
	case s.Now() < o.ends:
	case o.fails != "":
		said["Status"], said["ErrorCode"], said["ErrorMessage"] = "FAIL", o.fails, "in words"
	default:
		said["Status"] = "SUCCESS"
	}
	return object{"Operation": said}, nil
}

func (s *Server) write(action string, asked request, of *service) (object, *refusal) {
	if action == "RegisterInstance" {
		return s.register(asked, of)
	}
	there := of.instances[asked.InstanceID]
	switch {
	case there == nil:
		return nil, &refusal{"InstanceNotFound", asked.InstanceID}
	case action == "DeregisterInstance":
		return object{"OperationId": s.begin(func() { delete(of.instances, asked.InstanceID) })}, nil
	case action != "UpdateInstanceCustomHealthStatus":
		return nil, &refusal{"UnknownOperationException", action}
	case !of.Custom:
		return nil, &refusal{"CustomHealthNotFound", "the service has no custom health check"}
	}
	seen := s.Now() + s.times.Health
	s.operations = append(s.operations, &operation{ends: seen, seen: seen, see: func() { there.health = asked.Status }})
	return object{}, nil
}

func (s *Server) register(asked request, of *service) (object, *refusal) {
	first := asked.Attributes["AWS_INIT_HEALTH_STATUS"]
	if len(asked.InstanceID) > 64 || first != "" && !of.Custom {
		return nil, &refusal{"InvalidInput", "the ID is too long, or there is no custom health check"}
	}
	return object{"OperationId": s.begin(func() {
		health := "HEALTHY"
		if now := of.instances[asked.InstanceID]; now != nil {
			health = now.health
		} else if first != "" {
			health = first
		}
		of.instances[asked.InstanceID] = &instance{asked.Attributes, health}
	})}, nil
}
