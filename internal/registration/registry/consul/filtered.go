// SPDX-License-Identifier: Apache-2.0

package consul

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/usher-dev/usher/internal/registration/registry"
)

// memory holds the entries that lists have shown, by service. Without a token, Consul's
// ACLs hide entries silently. A list with every known entry hides nothing; if one is
// missing, Consul is asked whether it has ACLs.
type memory struct {
	mu       sync.Mutex
	services map[string]map[string]bool
}

// missing returns the IDs that the list lacks. first means that no list of the service
// was believed before.
func (m *memory) missing(service string, listed []registry.Entry) (ids []string, first bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	known, asked := m.services[service]
	have := make(map[string]bool, len(listed))
	for _, e := range listed {
		have[e.ID] = true
	}
	for _, id := range slices.Sorted(maps.Keys(known)) {
		if !have[id] {
			ids = append(ids, id)
		}
	}
	return ids, !asked
}

// believe accepts a list. Entries written since the request stay.
func (m *memory) believe(service string, listed []registry.Entry, missing []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.services == nil {
		m.services = map[string]map[string]bool{}
	}
	if m.services[service] == nil {
		m.services[service] = map[string]bool{}
	}
	for _, id := range missing {
		delete(m.services[service], id)
	}
	for _, e := range listed {
		m.services[service][e.ID] = true
	}
}

// wrote remembers entries that may exist now, even if the call failed.
func (m *memory) wrote(service string, changes []registry.Change) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, change := range changes {
		// For a service that was never listed, Consul is asked about ACLs anyway.
		if known := m.services[service]; known != nil && change.Op == registry.Put {
			known[change.Entry.ID] = true
		}
	}
}

// whole refuses a list without a token that ACLs may have shortened.
func (r *Registry) whole(ctx context.Context, service string, instances []instance) error {
	if r.token != "" {
		return nil
	}
	listed := entries(service, instances)
	missing, first := r.memory.missing(service, listed)
	if first || len(missing) > 0 {
		if err := r.mayBeFiltered(ctx); err != nil {
			return err
		}
	}
	r.memory.believe(service, listed, missing)
	return nil
}

// mayBeFiltered returns an error if Consul has ACLs, because then a token is needed.
func (r *Registry) mayBeFiltered(ctx context.Context) error {
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
	return r.failure(answer)
}

// entries returns the entries of a service's instances, sorted by ID.
func entries(service string, instances []instance) []registry.Entry {
	all := make([]registry.Entry, 0, len(instances))
	for _, i := range instances {
		all = append(all, i.entry(service))
	}
	registry.Sort(all)
	return all
}
