// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"
)

// room bounds the bytes of reviews that are read and answered at a time, in all and of each address.
// Waiting reviews are served in their order.
type room struct {
	all  *semaphore.Weighted
	each int64

	mu sync.Mutex
	// shares has a share for each address with reviews that are answered or wait.
	shares map[string]*share
}

type share struct {
	*semaphore.Weighted
	users int
}

func newRoom(all, each int64) *room {
	return &room{all: semaphore.NewWeighted(all), each: each, shares: map[string]*share{}}
}

// take waits for room; leave gives it back.
func (r *room) take(ctx context.Context, from string, size int64) (leave func(), err error) {
	own := r.enter(from)
	if err := own.Acquire(ctx, size); err != nil {
		r.forget(from, own)
		return nil, err
	}
	if err := r.all.Acquire(ctx, size); err != nil {
		own.Release(size)
		r.forget(from, own)
		return nil, err
	}
	return func() {
		r.all.Release(size)
		own.Release(size)
		r.forget(from, own)
	}, nil
}

func (r *room) enter(from string) *share {
	r.mu.Lock()
	defer r.mu.Unlock()
	own := r.shares[from]
	if own == nil {
		own = &share{Weighted: semaphore.NewWeighted(r.each)}
		r.shares[from] = own
	}
	own.users++
	return own
}

func (r *room) forget(from string, own *share) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if own.users--; own.users == 0 {
		delete(r.shares, from)
	}
}
