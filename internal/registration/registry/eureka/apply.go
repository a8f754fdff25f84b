// SPDX-License-Identifier: Apache-2.0

package eureka

import (
	"cmp"
	"context"
	"errors"
	"net/http"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/rest"
)

// Apply implements registry.Connector. It compares each change with the current
// instance, read past Eureka's cache.
func (r *Registry) Apply(ctx context.Context, service string, changes []registry.Change) error {
	errs := registry.Each(ctx, len(changes), parallel, func(n int) error { return r.one(ctx, service, changes[n]) })
	var refused []error
	var other error // One stands for all: a server that is down fails every change.
	for n, err := range errs {
		switch {
		case err == nil:
		case errors.Is(err, rest.ErrDenied), errors.Is(err, registry.ErrTransient):
			other = cmp.Or(other, err)
		default:
			refused = append(refused, changes[n].Refused(err))
		}
	}
	return errors.Join(append(refused, other)...)
}

func (r *Registry) one(ctx context.Context, service string, c registry.Change) error {
	app := application(service)
	// Also if nothing is left to do or the change is refused: it may have been computed
	// from an old list.
	r.behind(app, c.Entry.ID, true)
	there, err := r.actual(ctx, app, c.Entry.ID)
	if err != nil {
		return err
	}
	var have *registry.Entry
	if there != nil {
		e := there.entry()
		have = &e
	}
	needed, err := c.Check(have)
	if err != nil {
		return err
	}
	switch {
	case !needed:
		return nil
	case c.Op == registry.Remove:
		return r.write(ctx, http.MethodDelete, pathOf(app, c.Entry.ID), nil)
	case c.Entry.Weight == 0 && there != nil:
		// Eureka keeps an instance's status through a registration.
		return r.write(ctx, http.MethodPut, pathOf(app, c.Entry.ID, "status")+"?value="+outOfService, nil)
	}
	return r.put(ctx, service, c.Entry, there)
}

// put registers the instance, and reverts a status that someone else set: Eureka keeps
// a status through a registration.
func (r *Registry) put(ctx context.Context, service string, e registry.Entry, there *instance) error {
	dirty := r.clock.Now().UnixMilli()
	if there != nil {
		// Eureka ignores a registration older than what it has.
		dirty = max(dirty, int64(there.LastDirtyTimestamp)+1)
	}
	want, err := encode(service, e, r.lease, dirty)
	if err != nil {
		return err
	}
	app := application(service)
	err = r.write(ctx, http.MethodPost, pathOf(app), map[string]instance{"instance": want})
	if err != nil || there == nil || there.Status == up && (there.OverriddenStatus == unknown || there.OverriddenStatus == "") {
		return err
	}
	return r.write(ctx, http.MethodDelete, pathOf(app, e.ID, "status")+"?value="+up, nil)
}
