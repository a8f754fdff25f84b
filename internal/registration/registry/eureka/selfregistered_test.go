// SPDX-License-Identifier: Apache-2.0

package eureka

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/utils/clock"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

// memory is a server that stores overridden statuses apart from its instances, as Eureka does: a registration does not
// change them, and the end of an instance ends its own. A heartbeat of an instance without a status has the client
// register again.
type memory struct {
	mu        sync.Mutex
	instances map[string]instance
	overrides map[string]string
}

func newMemory() *memory {
	return &memory{instances: map[string]instance{}, overrides: map[string]string{}}
}

func (m *memory) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	path := append(strings.Split(strings.Trim(r.URL.Path, "/"), "/"), "", "")
	answer := func(name string, value any) { _ = json.NewEncoder(w).Encode(map[string]any{name: value}) }
	switch {
	case r.Method == http.MethodPost:
		var said map[string]instance
		_ = json.NewDecoder(r.Body).Decode(&said)
		m.register(said["instance"])
	case path[1] == "WEB" && path[2] == "" && len(m.instances) > 0:
		answer("application", map[string]any{"instance": slices.Collect(maps.Values(m.instances))})
	case path[1] == "delta":
		answer("applications", struct{}{})
	case m.instances[path[2]].InstanceID == "":
		w.WriteHeader(http.StatusNotFound)
	case r.Method == http.MethodGet:
		answer("instance", m.instances[path[2]])
	default:
		w.WriteHeader(m.change(path[2], r.Method+" "+path[3], r.URL.Query().Get("value")))
	}
}

// change carries out what is not a registration of an instance, and returns the answer's code.
func (m *memory) change(id, what, value string) int {
	i := m.instances[id]
	switch what {
	case "PUT ": // a heartbeat
		if i.Status == unknown {
			return http.StatusNotFound
		}
	case "DELETE ":
		delete(m.instances, id)
		delete(m.overrides, id)
	case "PUT status":
		i.Status, i.OverriddenStatus, m.overrides[id] = value, value, value
		m.instances[id] = i
	case "DELETE status":
		delete(m.overrides, id)
		i.Status, i.OverriddenStatus = unknown, unknown
		m.instances[id] = i
	}
	return http.StatusOK
}

func (m *memory) register(i instance) {
	if override := m.overrides[i.InstanceID]; override != "" {
		i.OverriddenStatus = override
		if i.Status == up || i.Status == outOfService {
			i.Status = override
		}
	}
	m.instances[i.InstanceID] = i
}

// client is an application with what its own client sends.
type client struct{ *memory }

func (c client) send(t *testing.T, method, path, body string) int {
	w := httptest.NewRecorder()
	c.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body)))
	return w.Code
}

func nameOf(address string, port int32) string { return fmt.Sprintf("host-%s:web:%d", address, port) }

func (c client) Register(t *testing.T, address string, port int32) {
	c.send(t, http.MethodPost, "/apps/WEB", fmt.Sprintf(`{"instance": {"instanceId": %q, "app": "WEB", "hostName": "web", "ipAddr": %q,
		"status": "UP", "overriddenStatus": "UNKNOWN", "port": {"$": %d, "@enabled": "true"}}}`, nameOf(address, port), address, port))
}

func (c client) Beat(t *testing.T, address string, port int32) {
	if c.send(t, http.MethodPut, "/apps/WEB/"+nameOf(address, port)+"?status=UP", "") == http.StatusNotFound {
		c.Register(t, address, port)
	}
}

func (c client) Leave(t *testing.T, address string, port int32) {
	c.send(t, http.MethodDelete, "/apps/WEB/"+nameOf(address, port), "")
}

func (c client) Callers(*testing.T) (addresses []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, i := range c.instances {
		if i.Status == up {
			addresses = append(addresses, fmt.Sprintf("%s:%d", i.IPAddr, i.Port.Number))
		}
	}
	return addresses
}

// TestSelfRegistered: what applications register is overridden, on a server that behaves as Eureka does.
func TestSelfRegistered(t *testing.T) {
	registrytest.RunSelfRegistered(t, func(t *testing.T) registrytest.SelfRegistered {
		c := client{newMemory()}
		return registrytest.SelfRegistered{
			Connector: connect(t, nil, clock.RealClock{}, c.ServeHTTP), Register: c.Register, Beat: c.Beat, Leave: c.Leave, Callers: c.Callers,
			Forget: func(*testing.T) {
				c.mu.Lock()
				defer c.mu.Unlock()
				clear(c.instances)
				clear(c.overrides)
			},
		}
	})
}

// TestWhatAnApplicationSaysOfItself is no override: an application that starts, or that is overridden to be UP.
func TestWhatAnApplicationSaysOfItself(t *testing.T) {
	for _, one := range []struct {
		status, overridden string
		override           bool
		hidden             string
	}{
		{up, unknown, false, ""},
		{up, "", false, ""},
		{up, up, false, ""},
		{"STARTING", unknown, false, "STARTING"},
		{"STARTING", outOfService, true, "STARTING"},
		{outOfService, unknown, false, outOfService},
		{outOfService, outOfService, true, outOfService},
		{"DOWN", "DOWN", true, "DOWN"},
		{unknown, unknown, false, "heartbeat"},
	} {
		e := instance{InstanceID: "a", Status: one.status, OverriddenStatus: one.overridden}.entry()
		if e.Override != one.override || (e.Hidden == "") != (one.hidden == "") || !strings.Contains(e.Hidden, one.hidden) {
			t.Errorf("status %s, overridden %s: override %t, hidden %q", one.status, one.overridden, e.Override, e.Hidden)
		}
		checktest.Same(t, "whether callers get it", one.status == up, e.Weight > 0)
	}
	if e := stored(t); e.entry().Override || e.entry().Hidden != "" {
		t.Error("an entry of Usher's own is none of an application's")
	}
}
