// SPDX-License-Identifier: Apache-2.0

package eureka

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"time"

	"k8s.io/utils/clock"

	"github.com/usher-dev/usher/internal/registration/registry"
)

const (
	// renewTimeout bounds one renewal.
	renewTimeout = 10 * time.Second
	// forgotten is when an application is no longer renewed that nobody asks for:
	// longer than anybody waits between two repairs.
	forgotten = 24 * time.Hour
)

// renewal is what is renewed of an application.
type renewal struct {
	ids []string
	// listed is when somebody last asked for the application. What nobody asks
	// for any more is left to its lease.
	listed time.Time
}

// keep renews what Usher wrote of what was listed. That includes other clusters'
// entries, as they are kept in other registries, where nothing expires.
func (r *Registry) keep(app string, entries []registry.Entry) {
	var ids []string
	for _, e := range entries {
		if e.Owner != (registry.Owner{}) {
			ids = append(ids, e.ID)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.renewed[app] = renewal{ids: ids, listed: r.clock.Now()}
}

// renewUntil renews at every tick, until the context ends.
func (r *Registry) renewUntil(ctx context.Context, ticker clock.Ticker) {
	defer close(r.stopped)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
			r.renewAll(ctx)
		}
	}
}

// renewAll renews once. What is gone stays gone, and what fails is tried at the
// next tick: a server that is down is told by the next list.
func (r *Registry) renewAll(ctx context.Context) {
	var paths []string
	for app, ids := range r.due() {
		for _, id := range ids {
			paths = append(paths, pathOf(app, id))
		}
	}
	slices.Sort(paths)
	_ = registry.Each(len(paths), parallel, func(n int) error {
		if ctx.Err() != nil {
			return nil
		}
		one, cancel := context.WithTimeout(ctx, renewTimeout)
		defer cancel()
		return r.write(one, http.MethodPut, paths[n], nil)
	})
}

// due is what to renew, by application.
func (r *Registry) due() map[string][]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	oldest := r.clock.Now().Add(-forgotten)
	maps.DeleteFunc(r.renewed, func(_ string, of renewal) bool { return of.listed.Before(oldest) })
	due := make(map[string][]string, len(r.renewed))
	for app, of := range r.renewed {
		due[app] = of.ids
	}
	return due
}
