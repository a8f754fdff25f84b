// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/usher-dev/usher/internal/registration/registry"
)

// cautious is a connector that refuses metadata which callers would obey or execute, unless
// the Registry allows it: who may write a Registration is not trusted with the callers.
type cautious struct {
	registry.Connector
	obeyed  func(key, value string) bool
	allowed []string
}

// Apply implements registry.Connector.
func (c cautious) Apply(ctx context.Context, service string, changes []registry.Change) error {
	var harmless []registry.Change
	var refused []error
	for _, change := range changes {
		if err := c.check(change); err != nil {
			refused = append(refused, change.Refused(registry.Permanent(err)))
			continue
		}
		harmless = append(harmless, change)
	}
	if len(harmless) > 0 {
		refused = append(refused, c.Connector.Apply(ctx, service, harmless))
	}
	return errors.Join(refused...)
}

func (c cautious) check(change registry.Change) error {
	if change.Op == registry.Remove {
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(change.Entry.Metadata)) {
		values := []string{change.Entry.Metadata[key]}
		if key == registry.MetaTags {
			values = strings.Split(values[0], ",")
		}
		for _, value := range values {
			pair := key + "=" + value
			if c.obeyed(key, value) && !slices.Contains(c.allowed, key) && !slices.Contains(c.allowed, pair) {
				return fmt.Errorf("instance.metadata or instance.tags has %q, which callers of this registry obey rather than read: "+
					"remove it, or have it listed in spec.allowedMetadata of the Registry, with its value or as %q", registry.Excerpt(pair), key)
			}
		}
	}
	return nil
}
