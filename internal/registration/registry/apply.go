// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
)

// Compare decides the changes against what is listed: needed are those that are left
// to make, refused the ChangeErrors of those that must not be made.
func Compare(listed []Entry, changes []Change) (needed []Change, refused []error) {
	current := make(map[string]*Entry, len(listed))
	for i := range listed {
		current[listed[i].ID] = &listed[i]
	}
	for _, change := range changes {
		apply, err := change.Check(current[change.Entry.ID])
		if err != nil {
			refused = append(refused, &ChangeError{ID: change.Entry.ID, Err: err})
		} else if apply {
			needed = append(needed, change)
		}
	}
	return needed, refused
}

// MaxRounds bounds how often Rounds makes changes.
const MaxRounds = 4

// Rounds makes changes, and those anew that met what others did meanwhile: a round
// returns them as again. What still does after the last round is a conflict. Refusals
// are ChangeErrors; any other error ends it. Rounds returns what Apply has to.
func Rounds(changes []Change, round func([]Change) (again []Change, refused []error, err error)) error {
	var refused []error
	for range MaxRounds {
		again, no, err := round(changes)
		refused = append(refused, no...)
		if err != nil || len(again) == 0 {
			return errors.Join(append(refused, err)...)
		}
		changes = again
	}
	for _, change := range changes {
		err := fmt.Errorf("others write to it all the time: %w", ErrConflict)
		refused = append(refused, &ChangeError{ID: change.Entry.ID, Err: err})
	}
	return errors.Join(refused...)
}

// Each calls for every number below n, at most limit side by side, and returns the
// errors by that number.
func Each(n, limit int, call func(int) error) []error {
	errs := make([]error, n)
	var group errgroup.Group
	group.SetLimit(limit)
	for i := range n {
		group.Go(func() error {
			errs[i] = call(i)
			return nil
		})
	}
	_ = group.Wait() // Errors are in errs.
	return errs
}

// Sort sorts entries as List returns them.
func Sort(entries []Entry) {
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.ID, b.ID) })
}
