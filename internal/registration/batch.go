// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"errors"
	"slices"

	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// maxBatch bounds the changes of one call to a registry: the time-out is for a call, however
// many Pods change together, and a registry that has lost all entries gets thousands again.
const maxBatch = 500

// applyOne makes the changes of a target, batch by batch, until one fails as a whole. It
// returns the refusals of all of them.
func (p *pass) applyOne(ctx context.Context, c plan.Changes) error {
	object := p.objects[c.Target.Registry]
	conn, err := p.pool.get(ctx, object, c.Target.Prefix, false)
	if err != nil {
		return err
	}
	var errs []error
	for batch := range slices.Chunk(slices.Concat(c.Leaves, c.Orphans, c.Joins), maxBatch) {
		err := conn.Apply(ctx, c.Target.Service, batch)
		errs = append(errs, err)
		_, rest := registry.ChangeErrors(err)
		if errors.Is(rest, registry.ErrTransient) {
			p.registryFailed(ctx, object, rest)
		}
		if rest != nil {
			break
		}
	}
	return errors.Join(errs...)
}
