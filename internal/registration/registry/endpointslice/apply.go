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

// Apply implements registry.Connector. It compares the changes with slices that it
// reads first. It writes each changed slice as a whole, with the version it read as a
// precondition, so that all changes to a slice go into one write.
func (r *Registry) Apply(ctx context.Context, service string, changes []registry.Change) error {
	return registry.Rounds(changes, func(changes []registry.Change) (again []registry.Change, err error) {
		list, err := r.slices(ctx, service)
		if err != nil {
			return nil, err
		}
		l := r.layout(service, list)
		outdated := l.change(changes)
		stale, err := r.write(ctx, l.writes())
		err = errors.Join(outdated, err)
		if !stale {
			return nil, err
		}
		// What was written is done, as the next round finds.
		refused, _ := registry.ChangeErrors(err)
		return slices.DeleteFunc(slices.Clone(changes), func(c registry.Change) bool { return refused[c.Entry.ID] != nil }), err
	})
}

// write writes the slices, and reports whether one of them had changed since it was
// read.
func (r *Registry) write(ctx context.Context, shelves []*shelf) (stale bool, err error) {
	var refused []error
	for _, s := range shelves {
		err := r.writeOne(ctx, s)
		switch {
		case err == nil:
		case outdated(err, s):
			stale = true
		case apierrors.IsInvalid(err):
			for _, id := range slices.Compact(slices.Sorted(slices.Values(s.changed))) {
				refused = append(refused, &registry.ChangeError{ID: id, Err: Typed(ctx, err)})
			}
		default:
			return false, errors.Join(append(refused, Typed(ctx, err))...)
		}
		if err != nil && s.gains {
			// An entry that was to move here may be about to leave another slice. It
			// must never be in neither.
			return true, errors.Join(refused...)
		}
	}
	return stale, errors.Join(refused...)
}

// outdated reports whether the slice changed since it was read.
func outdated(err error, s *shelf) bool {
	// For a new slice, not found means that its namespace is missing.
	return apierrors.IsConflict(err) || apierrors.IsNotFound(err) && s.object.UID != ""
}

// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,verbs=list;watch;create;update;delete

func (r *Registry) writeOne(ctx context.Context, s *shelf) error {
	err := r.send(ctx, s)
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%w: if the chart has installed Usher, set its rbac.endpointSlices to true", err)
	}
	return err
}

func (r *Registry) send(ctx context.Context, s *shelf) error {
	if len(s.items) == 0 {
		version := s.object.ResourceVersion
		return r.options.Writer.Delete(ctx, s.object, client.Preconditions{UID: &s.object.UID, ResourceVersion: &version})
	}
	next, err := s.render()
	if err != nil {
		return err
	}
	if s.object.UID != "" {
		return r.options.Writer.Update(ctx, next)
	}
	err = r.options.Writer.Create(ctx, next)
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%w: create the namespace, or correct endpointSlice.namespace", err)
	}
	return err
}
