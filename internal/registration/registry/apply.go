// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
)

// Decide compares the changes with the listed entries, and calls do for those that are
// left to make. It returns the ChangeErrors of changes that must not be made, and of those
// for which do returns an error.
func Decide(listed []Entry, changes []Change, do func(Change) error) (refused []error) {
	current := make(map[string]*Entry, len(listed))
	for i := range listed {
		current[listed[i].ID] = &listed[i]
	}
	for _, change := range changes {
		needed, err := change.Check(current[change.Entry.ID])
		if err == nil && needed {
			err = do(change)
		}
		if err != nil {
			refused = append(refused, &ChangeError{ID: change.Entry.ID, Err: err})
		}
	}
	return refused
}

// MaxRounds limits how many rounds Rounds runs. Entries that share what is written as a
// whole, such as an EndpointSlice, conflict more often.
const MaxRounds = 8

// Rounds makes changes, and retries those that conflicted with other writers: each
// round returns them as again. After the last round, any change left is a conflict.
// Refusals are ChangeErrors; any other error stops the rounds. Rounds returns the error
// that Apply must return.
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

// Each calls call for every number below n, at most limit at a time, and returns the
// errors by number. A panic of call is its error.
func Each(ctx context.Context, n, limit int, call func(int) error) []error {
	errs := make([]error, n)
	var group errgroup.Group
	group.SetLimit(limit)
	for i := range n {
		group.Go(func() error {
			defer Recover(ctx, &errs[i])
			errs[i] = call(i)
			return nil
		})
	}
	_ = group.Wait() // errs holds the errors.
	return errs
}

// Entries returns the entries of what a registry holds, in the order of List.
func Entries[T any](found []T, entry func(T) Entry) []Entry {
	entries := make([]Entry, 0, len(found))
	for _, one := range found {
		entries = append(entries, entry(one))
	}
	Sort(entries)
	return entries
}

// Sort puts entries in the order that List returns.
func Sort(entries []Entry) {
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.ID, b.ID) })
}
