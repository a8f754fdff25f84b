// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/usher-dev/usher/internal/list"
)

// Decide compares the changes with what a registry holds, and calls do for those that are
// left to make, each with what is there now, nil for nothing. It returns what do returned, and
// the ChangeErrors of changes that must not be made, and of those for which do returns an error.
func Decide[T, S any](found []T, entry func(T) Entry, changes []Change, do func(change Change, there *T) (S, error)) ([]S, error) {
	at := list.By(list.Pointers(found), func(one *T) string { return entry(*one).ID })
	var left []S
	var refused []error
	for _, change := range changes {
		there := at[change.Entry.ID]
		var current *Entry
		if there != nil {
			current = new(entry(*there))
		}
		needed, err := change.Check(current)
		if err == nil && needed {
			var step S
			if step, err = do(change, there); err == nil {
				left = append(left, step)
			}
		}
		if err != nil {
			refused = append(refused, change.Refused(err))
		}
	}
	return left, errors.Join(refused...)
}

// MaxRounds limits how many rounds Rounds runs. Entries that share what is written as a
// whole, such as an EndpointSlice, conflict more often.
const MaxRounds = 8

// Rounds makes changes, and retries those that conflicted with other writers: each
// round returns them as again. After the last round, any change left is a conflict.
// An error that is more than ChangeErrors stops the rounds. Rounds returns the error
// that Apply must return.
func Rounds(changes []Change, round func([]Change) (again []Change, err error)) error {
	var errs []error
	for range MaxRounds {
		again, err := round(changes)
		errs = append(errs, err)
		if _, failed := ChangeErrors(err); failed != nil || len(again) == 0 {
			return errors.Join(errs...)
		}
		changes = again
	}
	busy := fmt.Errorf("others write to it all the time: %w", ErrConflict)
	return errors.Join(append(errs, list.Map(changes, func(c Change) error { return c.Refused(busy) })...)...)
}

// Each calls call for every number below n, at most limit at a time, and returns the
// errors by number. A panic of call is its error.
func Each(ctx context.Context, n, limit int, call func(int) error) []error {
	errs := make([]error, n)
	one := func(i int) {
		defer Recover(ctx, &errs[i])
		errs[i] = call(i)
	}
	if min(n, limit) == 1 { // as in most passes: no goroutine is worth its while
		for i := range n {
			one(i)
		}
		return errs
	}
	var group errgroup.Group
	group.SetLimit(limit)
	for i := range n {
		group.Go(func() error {
			one(i)
			return nil
		})
	}
	_ = group.Wait() // errs holds the errors.
	return errs
}

// Entries returns the entries of what a registry holds, in the order of List.
func Entries[T any](found []T, entry func(T) Entry) []Entry {
	entries := append([]Entry{}, list.Map(found, entry)...) // not nil: none is a list too
	Sort(entries)
	return entries
}

// Listed is what List returns of what a connector has read: every entry, or an error and none.
func Listed[T any](found []T, err error, entry func(T) Entry) ([]Entry, error) {
	if err != nil {
		return nil, err
	}
	return Entries(found, entry), nil
}

// Itself is for Decide, where a registry is listed as entries.
func Itself(e Entry) Entry { return e }

// Sort puts entries in the order that List returns.
func Sort(entries []Entry) {
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.ID, b.ID) })
}
