// SPDX-License-Identifier: Apache-2.0

package registries

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/usher-dev/usher/internal/registration/registry"
)

// Conn is the connector of one Registry and prefix. Its calls end in time, and a panic is an
// error. No error repeats what the Secret holds, even if the registry's answer does, or is longer than
// statuses and logs want it: whatever connectors and their libraries return passes through here.
type Conn struct {
	registry.Connector
	version connVersion
	timeout time.Duration
	secrets registry.Secrets
	// workers bounds the calls to the registry at a time, except for probes.
	workers *semaphore.Weighted
	// holdsBack means that an entry of weight 0 stays and gets no callers.
	holdsBack bool
}

// List implements registry.Connector.
func (c *Conn) List(ctx context.Context, service string) (entries []registry.Entry, err error) {
	_, entries, err = c.Choose(ctx, service)
	return entries, err
}

// Choose implements registry.Selecting. Most registries have no selectors.
func (c *Conn) Choose(ctx context.Context, service string) (
	selector map[string]string, entries []registry.Entry, err error,
) {
	err = c.call(ctx, func(ctx context.Context) (err error) {
		if selecting, ok := c.Connector.(registry.Selecting); ok {
			selector, entries, err = selecting.Choose(ctx, service)
		} else {
			entries, err = c.Connector.List(ctx, service)
		}
		if err != nil {
			return err
		}
		return registry.TakeEntries(ctx, len(entries))
	})
	for i := range entries {
		if entries[i].Unsettled != "" {
			entries[i].Unsettled = c.secrets.Excerpt(entries[i].Unsettled)
		}
		if entries[i].Hidden != "" {
			entries[i].Hidden = c.secrets.Excerpt(entries[i].Hidden)
		}
	}
	return selector, entries, err
}

// Apply implements registry.Connector.
func (c *Conn) Apply(ctx context.Context, service string, changes []registry.Change) error {
	if err := registry.Validate(service, changes, c.holdsBack); err != nil {
		return err
	}
	return c.call(ctx, func(ctx context.Context) error { return c.Connector.Apply(ctx, service, changes) })
}

// Ping implements registry.Connector.
func (c *Conn) Ping(ctx context.Context) error { return c.bounded(ctx, c.Connector.Ping) }

// call waits in line for the registry. The line is first come, first served, and a pass has a few
// calls there at a time: so none keeps others from the registry for long.
func (c *Conn) call(ctx context.Context, do func(context.Context) error) error {
	if err := c.workers.Acquire(ctx, 1); err != nil {
		return registry.Transient(err)
	}
	defer c.workers.Release(1)
	return c.bounded(ctx, do)
}

func (c *Conn) bounded(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	ctx, done := registry.Counted(ctx)
	byID, rest := registry.ChangeErrors(recovering(ctx, do))
	done(rest)
	errs := []error{c.secrets.Error(rest)}
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		errs = append(errs, &registry.ChangeError{ID: id, Err: c.secrets.Error(byID[id])})
	}
	return errors.Join(errs...)
}

func recovering(ctx context.Context, do func(context.Context) error) (err error) {
	defer registry.Recover(ctx, &err)
	return do(ctx)
}
