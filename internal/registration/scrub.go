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

	"github.com/usher-dev/usher/internal/registration/registry"
)

const (
	// hidden replaces what a Secret holds.
	hidden = "<secret>"
	// minSecret is the length in bytes from which a value is hidden: shorter ones occur in
	// any text.
	minSecret = 3
)

// scrubbed is a connector whose errors never repeat what its Secret holds, even if the
// registry's answer does. Connectors hide credentials themselves; this covers what they miss.
type scrubbed struct {
	registry.Connector
	secrets *strings.Replacer
}

// scrub wraps a connector that was made with the Secret.
func scrub(c registry.Connector, secret map[string][]byte) registry.Connector {
	replacer := hiding(secret)
	if replacer == nil {
		return c
	}
	return &scrubbed{Connector: c, secrets: replacer}
}

// hiding replaces the values of a Secret, as they are, trimmed, and encoded for a
// URL or a header; nil if there are none.
func hiding(secret map[string][]byte) *strings.Replacer {
	values := map[string]bool{}
	for _, raw := range secret {
		trimmed := strings.TrimSpace(string(raw))
		if len(trimmed) < minSecret {
			continue
		}
		for _, value := range []string{
			string(raw), trimmed, url.QueryEscape(trimmed), url.PathEscape(trimmed),
			base64.StdEncoding.EncodeToString([]byte(trimmed)),
		} {
			values[value] = true
		}
	}
	var pairs []string
	// The longest first: one value may be a part of another.
	for _, value := range slices.SortedFunc(maps.Keys(values), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(b), len(a)), strings.Compare(a, b))
	}) {
		pairs = append(pairs, value, hidden)
	}
	if len(pairs) == 0 {
		return nil
	}
	return strings.NewReplacer(pairs...)
}

// List implements registry.Connector.
func (s *scrubbed) List(ctx context.Context, service string) ([]registry.Entry, error) {
	entries, err := s.Connector.List(ctx, service)
	return entries, s.clean(err)
}

// Apply implements registry.Connector.
func (s *scrubbed) Apply(ctx context.Context, service string, changes []registry.Change) error {
	byID, rest := registry.ChangeErrors(s.Connector.Apply(ctx, service, changes))
	errs := []error{s.clean(rest)}
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		errs = append(errs, &registry.ChangeError{ID: id, Err: s.clean(byID[id])})
	}
	return errors.Join(errs...)
}

// Ping implements registry.Connector.
func (s *scrubbed) Ping(ctx context.Context) error { return s.clean(s.Connector.Ping(ctx)) }

// cleaned returns an error without what the Secret holds.
func cleaned(err error, secret map[string][]byte) error {
	replacer := hiding(secret)
	if replacer == nil {
		return err
	}
	return (&scrubbed{secrets: replacer}).clean(err)
}

// clean returns an error without secrets, in which errors.Is finds the same errors.
func (s *scrubbed) clean(err error) error {
	if err == nil {
		return nil
	}
	return clean{text: s.secrets.Replace(err.Error()), marks: err}
}

// clean is an error with another text. The original is never printed.
type clean struct {
	text  string
	marks error
}

// Error returns the text without secrets.
func (c clean) Error() string { return c.text }

// Is reports whether the original is the target.
func (c clean) Is(target error) bool { return errors.Is(c.marks, target) }
