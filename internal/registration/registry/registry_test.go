// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"context"
	"errors"
	"testing"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry"
)

func TestErrorsKeepTheirCauseAndMark(t *testing.T) {
	err := registry.Transient(context.DeadlineExceeded)
	if !errors.Is(err, registry.ErrTransient) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v has lost its mark or its cause", err)
	}
	checktest.Same(t, "the message", context.DeadlineExceeded.Error(), err.Error())
	if registry.Transient(nil) != nil || registry.Permanent(nil) != nil {
		t.Error("no error became one")
	}
}

func TestChangeErrorsSeparatesChangesFromTheRest(t *testing.T) {
	down := registry.Transient(errors.New("down"))
	refused := &registry.ChangeError{ID: "a", Err: registry.ErrConflict}
	byID, rest := registry.ChangeErrors(errors.Join(errors.Join(refused), down))
	if len(byID) != 1 || !errors.Is(byID["a"], registry.ErrConflict) {
		t.Errorf("changes are %v, want a's conflict", byID)
	}
	if !errors.Is(rest, registry.ErrTransient) || errors.Is(rest, registry.ErrConflict) {
		t.Errorf("the rest is %v, want the transient error alone", rest)
	}
	if byID, rest := registry.ChangeErrors(nil); len(byID) != 0 || rest != nil {
		t.Errorf("no error became %v and %v", byID, rest)
	}
}

// TestRounds checks that conflicting changes are retried a limited number of times.
func TestRounds(t *testing.T) {
	changes := []registry.Change{{Entry: registry.Entry{ID: "a"}}, {Entry: registry.Entry{ID: "b"}}, {Entry: registry.Entry{ID: "c"}}}
	down := registry.Transient(errors.New("down"))
	for name, test := range map[string]struct {
		last   error
		rounds int
		byID   map[string]error
	}{
		"for ever":      {nil, registry.MaxRounds, map[string]error{"a": registry.ErrForeign, "c": registry.ErrConflict}},
		"until it ends": {down, 2, map[string]error{"a": registry.ErrForeign}},
	} {
		rounds := 0
		err := registry.Rounds(changes, func(left []registry.Change) (again []registry.Change, err error) {
			if rounds++; rounds > 1 {
				return left, test.last
			}
			return left[2:], left[0].Refused(registry.ErrForeign)
		})
		byID, rest := registry.ChangeErrors(err)
		if rounds != test.rounds || !errors.Is(rest, test.last) || len(byID) != len(test.byID) {
			t.Errorf("%s: %d rounds, %v", name, rounds, err)
		}
		for id, mark := range test.byID {
			if !errors.Is(byID[id], mark) {
				t.Errorf("%s: %s is refused with %v", name, id, byID[id])
			}
		}
	}
}

// TestNoEntriesAreAList: a registry that lists nothing says so; nil would mean that it was not asked.
func TestNoEntriesAreAList(t *testing.T) {
	if registry.Entries(nil, func(e registry.Entry) registry.Entry { return e }) == nil {
		t.Error("an empty registry has no list")
	}
}
