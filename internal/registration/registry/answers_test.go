// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/usher-dev/usher/internal/registration/registry"
)

// TestAnswers: a call, a pass and all passes together have bounds, and each pass some bytes of its
// own.
func TestAnswers(t *testing.T) {
	const limit, own = 16 << 20, 64 << 10
	answers := registry.NewAnswers(limit)
	begin := func() (pass context.Context, release func()) { return answers.Share(t.Context()) }
	take := func(pass context.Context, bytes int, fails error) error {
		call, done := registry.Counted(pass)
		err := registry.Take(call, bytes)
		done(errors.Join(err, fails))
		return err
	}
	check := func(what string, err, mark error) {
		t.Helper()
		if !errors.Is(err, mark) || mark != nil && !errors.Is(err, registry.ErrOneService) {
			t.Errorf("%s: %v, want %v", what, err, mark)
		}
	}
	greedy, release := begin()
	check("too long an answer", take(greedy, limit/4+1, nil), registry.ErrPermanent)
	check("a call that fails", take(greedy, limit/4, errors.New("broken")), nil)
	check("a quarter", take(greedy, limit/4, nil), nil)
	check("two quarters", take(greedy, limit/4, nil), nil)
	check("more than a half", take(greedy, 1, nil), registry.ErrTransient)
	other, _ := begin()
	check("a quarter of another", take(other, limit/4, nil), nil)
	check("the rest", take(other, limit/4, nil), nil)
	late, _ := begin()
	check("what is its own", take(late, own, nil), nil)
	check("its own and what others have left", take(late, 2*own, nil), nil)
	check("more", take(late, 1, nil), registry.ErrTransient)
	release()
	check("more, after a pass", take(late, 1, nil), nil)
	few, done := registry.Counted(late)
	check("entries that were as long in the answer", errors.Join(registry.Take(few, own), registry.TakeEntries(few, own/registry.EntryBytes)), nil)
	check("entries that were shorter", registry.TakeEntries(few, limit/4/registry.EntryBytes+1), registry.ErrPermanent)
	done(nil)
	if kept := []bool{answers.Keep(0, limit-1), answers.Keep(0, 2), answers.Keep(limit-1, 1), answers.Keep(0, limit-1), answers.Keep(1, 2),
		answers.Keep(0, 1)}; !slices.Equal(kept, []bool{true, false, true, true, false, true}) {
		t.Errorf("kept are %v", kept)
	}
	check("no pass", registry.Take(t.Context(), 2*limit), nil)
}
