// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/time/rate"
)

// ErrBusy means that too many questions wait.
var ErrBusy = errors.New("too many wait for the API server to be asked")

// Line makes questions wait for their turn. It takes one question of each caller in turn, however many
// each has: so a caller that floods it delays another one by one question, not by all of them.
type Line struct {
	// next waits until the API server may be asked again.
	next func(context.Context) error
	// perCaller bounds how many questions of one caller wait, and most how many callers do.
	perCaller, most int

	mu sync.Mutex
	// waiting has the questions of each caller, and callers the order of the callers.
	waiting map[string][]chan struct{}
	callers []string
	serving bool
}

// NewLine returns a line for so many questions a second, and twice as many at a time.
func NewLine(second rate.Limit, perCaller, most int) *Line {
	return &Line{
		next: rate.NewLimiter(second, int(2*second)).Wait, perCaller: perCaller, most: most,
		waiting: map[string][]chan struct{}{},
	}
}

// Turn waits until a question of the caller may be asked.
func (l *Line) Turn(ctx context.Context, caller string) error {
	turn, err := l.enter(ctx, caller)
	if err != nil {
		return err
	}
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
		l.leave(caller, turn)
		return fmt.Errorf("wait for a turn to ask the API server: %w", context.Cause(ctx))
	}
}

func (l *Line) enter(ctx context.Context, caller string) (turn chan struct{}, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch count := len(l.waiting[caller]); {
	case count == l.perCaller, count == 0 && len(l.callers) == l.most:
		return nil, ErrBusy
	case count == 0:
		l.callers = append(l.callers, caller)
	}
	turn = make(chan struct{})
	l.waiting[caller] = append(l.waiting[caller], turn)
	if !l.serving {
		l.serving = true
		go l.serve(context.WithoutCancel(ctx)) // serve is for other callers too
	}
	return turn, nil
}

// leave removes a question whose caller has gone.
func (l *Line) leave(caller string, turn chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.waiting[caller], turn); i >= 0 {
		l.waiting[caller] = slices.Delete(l.waiting[caller], i, i+1)
		l.tidy(caller)
	}
}

// tidy forgets a caller without questions.
func (l *Line) tidy(caller string) {
	if len(l.waiting[caller]) == 0 {
		delete(l.waiting, caller)
		l.callers = slices.DeleteFunc(l.callers, func(other string) bool { return other == caller })
	}
}

// serve gives turns until no question waits.
func (l *Line) serve(ctx context.Context) {
	for l.some() {
		_ = l.next(ctx) // fails only if the context ends, which this one does not
		l.call()
	}
}

// some reports whether a question waits; if not, the next question starts serve again.
func (l *Line) some() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.serving = len(l.callers) > 0
	return l.serving
}

// call gives the next caller its turn, unless all have gone meanwhile.
func (l *Line) call() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.callers) == 0 {
		return
	}
	caller := l.callers[0]
	l.callers = append(l.callers[1:], caller)
	close(l.waiting[caller][0])
	l.waiting[caller] = l.waiting[caller][1:]
	l.tidy(caller)
}
