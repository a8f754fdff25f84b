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
	// renewTimeout limits one renewal.
	renewTimeout = 10 * time.Second
	// forgotten is how long an application is renewed after the last request for it:
	// longer than anyone waits between two repairs.
	forgotten = 24 * time.Hour
)

// renewal holds the instances of an application to renew.
type renewal struct {
	ids []string
	// listed is when the application was last listed. Applications that are no longer
	// listed are left to expire.
	listed time.Time
}

// keep starts to renew Usher's listed instances, including those of other clusters: in
// other kinds of registry, they would not expire either.
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

// renewAll renews once. An instance that is gone stays gone. The next tick retries
// failures: the next list reports a server that is down.
func (r *Registry) renewAll(ctx context.Context) {
	paths := r.due()
	_ = registry.Each(ctx, len(paths), parallel, func(n int) error {
		if ctx.Err() != nil {
			return nil
		}
		one, cancel := context.WithTimeout(ctx, renewTimeout)
		defer cancel()
		return r.write(one, http.MethodPut, paths[n], nil)
	})
}

// due returns the paths of what to renew, sorted.
func (r *Registry) due() (paths []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	oldest := r.clock.Now().Add(-forgotten)
	maps.DeleteFunc(r.renewed, func(_ string, of renewal) bool { return of.listed.Before(oldest) })
	for app, of := range r.renewed {
		for _, id := range of.ids {
			paths = append(paths, pathOf(app, id))
		}
	}
	slices.Sort(paths)
	return paths
}
