// SPDX-License-Identifier: Apache-2.0

package endpointslice

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/internal/registration/registry"
)

// maxRounds bounds how often changes are made anew because somebody else wrote
// to the same slice.
const maxRounds = 8

// Apply implements registry.Connector. Changes are compared with slices that are
// read first; each slice is written against the version that was read, whole, so
// that all changes to one slice are made at once.
func (r *Registry) Apply(ctx context.Context, service string, changes []registry.Change) error {
	validate := registry.Validate
	if r.holds {
		validate = registry.ValidateHolding
	}
	if err := validate(service, changes); err != nil {
		return err
	}
	var refused []error
	for range maxRounds {
		list, err := r.slices(ctx, service)
		if err != nil {
			return errors.Join(append(refused, err)...)
		}
		l := r.layout(service, list)
		// What was made in the round before is as it should be by now.
		outdated := l.change(changes)
		no, stale, err := r.write(ctx, l.writes())
		refused = append(refused, no...)
		if err != nil || !stale {
			return errors.Join(slices.Concat(refused, outdated, []error{err})...)
		}
		byID, _ := registry.ChangeErrors(errors.Join(refused...))
		changes = slices.DeleteFunc(slices.Clone(changes), func(c registry.Change) bool { return byID[c.Entry.ID] != nil })
	}
	for _, c := range changes {
		err := fmt.Errorf("others write to its slice all the time: %w", registry.ErrConflict)
		refused = append(refused, &registry.ChangeError{ID: c.Entry.ID, Err: err})
	}
	return errors.Join(refused...)
}

// write writes the slices, and says whether one of them had changed meanwhile.
func (r *Registry) write(ctx context.Context, shelves []*shelf) (refused []error, stale bool, err error) {
	for _, s := range shelves {
		err := r.writeOne(ctx, s)
		switch {
		case err == nil:
		case outdated(err, s):
			stale = true
		case apierrors.IsInvalid(err):
			for _, id := range slices.Compact(slices.Sorted(slices.Values(s.changed))) {
				refused = append(refused, &registry.ChangeError{ID: id, Err: typed(ctx, err)})
			}
		default:
			return refused, stale, typed(ctx, err)
		}
		if err != nil && s.gains {
			// What was to come here may be on its way out of another slice, and
			// must not be in none.
			return refused, true, nil
		}
	}
	return refused, stale, nil
}

// outdated says whether the slice is another one than was read.
func outdated(err error, s *shelf) bool {
	// There is nothing to be found where nothing was: the namespace is missing.
	return apierrors.IsConflict(err) || apierrors.IsNotFound(err) && s.object.UID != ""
}

func (r *Registry) writeOne(ctx context.Context, s *shelf) error {
	if len(s.items) == 0 {
		version := s.object.ResourceVersion
		return r.writer.Delete(ctx, s.object, client.Preconditions{UID: &s.object.UID, ResourceVersion: &version})
	}
	next, err := s.render()
	if err != nil {
		return err
	}
	if s.object.UID != "" {
		return r.writer.Update(ctx, next)
	}
	err = r.writer.Create(ctx, next)
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%w: create the namespace, or correct endpointSlice.namespace", err)
	}
	return err
}
