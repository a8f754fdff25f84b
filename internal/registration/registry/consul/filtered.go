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

// memory is what lists have shown, of each service. Without a token, Consul's ACLs
// hide entries and do not say so. A list that has everything that was there before
// hides nothing; where something is missing, Consul is asked whether it has ACLs.
type memory struct {
	mu       sync.Mutex
	services map[string]map[string]bool
}

// missing are the IDs that the list lacks; first says that none was believed before.
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

// believe takes a list in. What others have written since it was asked for stays.
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

// wrote remembers entries that may be there now, whatever became of the call.
func (m *memory) wrote(service string, changes []registry.Change) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, change := range changes {
		// A service that was never listed is asked about in any case.
		if known := m.services[service]; known != nil && change.Op == registry.Put {
			known[change.Entry.ID] = true
		}
	}
}

// whole refuses a list without a token that ACLs may have made shorter.
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

// mayBeFiltered refuses to do without a token where Consul has ACLs.
func (r *Registry) mayBeFiltered(ctx context.Context) error {
	answer, err := r.call(ctx, http.MethodGet, "/v1/acl/token/self", "", nil)
	switch {
	case err != nil:
		return err
	case answer.Code == http.StatusUnauthorized && strings.Contains(string(answer.Body), "ACL support disabled"):
		return nil
	case answer.Code == http.StatusOK, answer.Code == http.StatusForbidden:
		return registry.Permanent(fmt.Errorf(
			"there are ACLs, which hide entries: put a token into the key %s of the credentials Secret", KeyToken))
	}
	return r.failure(answer)
}

// entries are the instances of a service, sorted by ID.
func entries(service string, instances []instance) []registry.Entry {
	all := make([]registry.Entry, 0, len(instances))
	for _, i := range instances {
		all = append(all, i.entry(service))
	}
	registry.Sort(all)
	return all
}
