// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"context"
	"fmt"
	"sync"
)

// Watched guards state that watches change, and wakes those who wait for a condition on
// it. The zero value is ready to use.
type Watched struct {
	mu      sync.Mutex
	changed chan struct{} // closed at the next change; nil if nobody waits
}

// Change makes a change to the state.
func (w *Watched) Change(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
	if w.changed != nil {
		close(w.changed)
		w.changed = nil
	}
}

// Read reads the state.
func (w *Watched) Read(read func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	read()
}

// Next returns a channel that is closed at the next change.
func (w *Watched) Next() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.next()
}

func (w *Watched) next() <-chan struct{} {
	if w.changed == nil {
		w.changed = make(chan struct{})
	}
	return w.changed
}

// Await waits until missing, which may read the state, returns nothing.
func (w *Watched) Await(ctx context.Context, missing func() string) error {
	for {
		w.mu.Lock()
		lacks, next := missing(), w.next()
		w.mu.Unlock()
		if lacks == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", lacks, context.Cause(ctx))
		case <-next:
		}
	}
}
