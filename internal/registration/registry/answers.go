// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"fmt"
	"io"
	"sync"

	"golang.org/x/sync/semaphore"
)

const (
	// callPart and passPart are which part of all answers one call, and one pass, may take.
	callPart = 4
	passPart = 2
	// ownBytes is what each pass may take whatever others hold: enough for some hundred entries.
	ownBytes = 64 << 10
	// EntryBytes is how much an entry counts at least, however short it was in the answer.
	EntryBytes = 512
	// uncounted bounds an answer outside of passes, as to a renewal.
	uncounted = 16 << 20
)

// Answers bounds how much Usher holds of all registries' answers at a time, so that no registry,
// and no namespace with many services, takes the memory of all.
type Answers struct {
	limit int64
	free  *semaphore.Weighted
	// kept has room for what passes keep for the next ones.
	kept *semaphore.Weighted
}

// NewAnswers returns Answers of that many bytes. What is decoded from an answer takes several
// times as much.
func NewAnswers(limit int64) *Answers {
	return &Answers{limit: limit, free: semaphore.NewWeighted(limit), kept: semaphore.NewWeighted(limit)}
}

// Keep accounts for the bytes that a namespace keeps between its passes, instead of those before. It
// reports whether there is room for them; then none are kept if there is not.
func (a *Answers) Keep(before, now int64) bool {
	fits := now <= before || a.kept.TryAcquire(now-before)
	if !fits {
		now = 0
	}
	a.kept.Release(max(before-now, 0))
	return fits
}

// share is what a pass has taken. What is beyond ownBytes is borrowed from those that all share.
type share struct {
	*Answers
	mu              sync.Mutex
	taken, borrowed int64
}

// call is what one of its calls has taken.
type call struct {
	*share
	taken int64
}

type (
	shareKey struct{}
	callKey  struct{}
)

// Share is for a pass, which holds the answers to its calls until release.
func (a *Answers) Share(ctx context.Context) (_ context.Context, release func()) {
	s := &share{Answers: a}
	return context.WithValue(ctx, shareKey{}, s), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.free.Release(s.borrowed)
		s.taken, s.borrowed = 0, 0
	}
}

// Counted is for one call of a pass. If it fails, done gives back what it has taken.
func Counted(ctx context.Context) (_ context.Context, done func(error)) {
	s, _ := ctx.Value(shareKey{}).(*share)
	if s == nil {
		return ctx, func(error) {}
	}
	c := &call{share: s}
	return context.WithValue(ctx, callKey{}, c), func(err error) {
		if err != nil {
			_ = c.take(-c.taken) // Less is never too much.
		}
	}
}

// Take accounts for so many bytes of an answer before they are kept; fewer than none are given
// back. It fails if the call, its pass, or all passes together take too much: then the registry
// works, but not for the service.
func Take(ctx context.Context, bytes int) error {
	if c, _ := ctx.Value(callKey{}).(*call); c != nil {
		return c.take(int64(bytes))
	}
	return nil
}

// TakeEntries accounts for the entries that a call returns, as far as its answers were shorter.
func TakeEntries(ctx context.Context, entries int) error {
	c, _ := ctx.Value(callKey{}).(*call)
	if c == nil {
		return nil
	}
	return c.take(max(int64(entries)*EntryBytes-c.taken, 0))
}

func (c *call) take(bytes int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	more := max(c.share.taken+bytes-ownBytes, 0) - c.borrowed
	switch {
	case c.taken+bytes > c.limit/callPart:
		return TooMuch("it", c.limit/callPart)
	case c.share.taken+bytes > c.limit/passPart:
		return OneService(Transient(fmt.Errorf("the services of the namespace list more than %d bytes together: "+
			"raise Usher's memory limit, or spread them over several namespaces", c.limit/passPart)))
	case more > 0 && !c.free.TryAcquire(more):
		return OneService(Transient(fmt.Errorf("there is no room for this list beside others, and it is tried again: "+
			"if that goes on, raise Usher's memory limit, of which lists take %d bytes at most", c.limit)))
	case more < 0:
		c.free.Release(-more)
	}
	c.taken, c.share.taken, c.borrowed = c.taken+bytes, c.share.taken+bytes, c.borrowed+more
	return nil
}

// TooMuch is the error for an answer of more than limit bytes.
func TooMuch(who string, limit int64) error {
	return OneService(Permanent(fmt.Errorf("%s answered with more than %d bytes: spread the instances over several services, "+
		"or raise Usher's memory limit", who, limit)))
}

// Taking is a reader of an answer, which is taken as it is read.
func Taking(ctx context.Context, from io.Reader) io.Reader {
	if _, counted := ctx.Value(callKey{}).(*call); !counted {
		return io.LimitReader(from, uncounted)
	}
	return taking{ctx, from}
}

type taking struct {
	ctx  context.Context // of the call, as long as which it lives
	from io.Reader
}

// Read implements io.Reader.
func (t taking) Read(p []byte) (int, error) {
	n, err := t.from.Read(p)
	if refused := Take(t.ctx, n); refused != nil {
		return 0, refused
	}
	return n, err
}
