// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"context"
	"fmt"
	"sync"
)

// News guards state that watches change, and wakes those who wait for a condition on
// it. The zero value is ready to use.
type News struct {
	mu      sync.Mutex
	changed chan struct{} // closed at the next change; nil if nobody waits
}

// Change makes a change to the state.
func (n *News) Change(change func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change()
	if n.changed != nil {
		close(n.changed)
		n.changed = nil
	}
}

// Read reads the state.
func (n *News) Read(read func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	read()
}

// Next returns a channel that is closed at the next change.
func (n *News) Next() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.next()
}

func (n *News) next() <-chan struct{} {
	if n.changed == nil {
		n.changed = make(chan struct{})
	}
	return n.changed
}

// Await waits until missing, which may read the state, returns nothing.
func (n *News) Await(ctx context.Context, missing func() string) error {
	for {
		n.mu.Lock()
		lacks, next := missing(), n.next()
		n.mu.Unlock()
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
