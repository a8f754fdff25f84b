// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/usher-dev/usher/internal/registration/registry"
)

const (
	// hidden replaces what a Secret holds.
	hidden = "<secret>"
	// minSecret is the length in bytes from which a value is hidden: shorter ones occur in
	// any text.
	minSecret = 3
)

// conn is the connector of one Registry and prefix. Its calls end in time, and a panic is an
// error. No error repeats what the Secret holds, even if the registry's answer does:
// connectors hide credentials themselves, and this covers what they miss.
type conn struct {
	registry.Connector
	version connVersion
	timeout time.Duration
	secrets *strings.Replacer
	// workers bounds the calls to the registry at a time, except for probes.
	workers *semaphore.Weighted
	// holdsBack means that an entry of weight 0 stays and gets no callers.
	holdsBack bool
}

// List implements registry.Connector.
func (c *conn) List(ctx context.Context, service string) (entries []registry.Entry, err error) {
	err = c.call(ctx, func(ctx context.Context) (err error) {
		if entries, err = c.Connector.List(ctx, service); err != nil {
			return err
		}
		return registry.TakeEntries(ctx, len(entries))
	})
	return entries, err
}

// Apply implements registry.Connector.
func (c *conn) Apply(ctx context.Context, service string, changes []registry.Change) error {
	if err := registry.Validate(service, changes, c.holdsBack); err != nil {
		return err
	}
	return c.call(ctx, func(ctx context.Context) error { return c.Connector.Apply(ctx, service, changes) })
}

// Ping implements registry.Connector.
func (c *conn) Ping(ctx context.Context) error { return c.bounded(ctx, c.Connector.Ping) }

// call waits in line for the registry. The line is first come, first served, and a pass has a few
// calls there at a time: so none keeps others from the registry for long.
func (c *conn) call(ctx context.Context, do func(context.Context) error) error {
	if err := c.workers.Acquire(ctx, 1); err != nil {
		return registry.Transient(err)
	}
	defer c.workers.Release(1)
	return c.bounded(ctx, do)
}

func (c *conn) bounded(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	ctx, done := registry.Counted(ctx)
	byID, rest := registry.ChangeErrors(recovering(ctx, do))
	done(rest)
	errs := []error{cleaned(rest, c.secrets)}
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		errs = append(errs, &registry.ChangeError{ID: id, Err: cleaned(byID[id], c.secrets)})
	}
	return errors.Join(errs...)
}

func recovering(ctx context.Context, do func(context.Context) error) (err error) {
	defer registry.Recover(ctx, &err)
	return do(ctx)
}

// hiding replaces the values of a Secret, as they are, trimmed, and encoded for a
// URL or a header; nil if there are none.
func hiding(secret map[string][]byte) *strings.Replacer {
	var values []string
	for _, raw := range secret {
		trimmed := strings.TrimSpace(string(raw))
		if len(trimmed) < minSecret {
			continue
		}
		values = append(values, string(raw), trimmed, url.QueryEscape(trimmed), url.PathEscape(trimmed),
			base64.StdEncoding.EncodeToString([]byte(trimmed)))
	}
	if len(values) == 0 {
		return nil
	}
	// The longest first: one value may be a part of another.
	slices.SortFunc(values, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	var pairs []string
	for _, value := range values {
		pairs = append(pairs, value, hidden)
	}
	return strings.NewReplacer(pairs...)
}

// cleaned returns an error without secrets, in which errors.Is finds the same errors.
func cleaned(err error, secrets *strings.Replacer) error {
	if err == nil || secrets == nil {
		return err
	}
	return clean{errors.New(secrets.Replace(err.Error())), err}
}

// clean is an error with another text. The original is never printed.
type clean struct {
	error
	marks error
}

// Is reports whether the original is the target.
func (c clean) Is(target error) bool { return errors.Is(c.marks, target) }
