// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"cmp"
	"slices"
)

// entrance controls when a story starts, and lets others start after it.
type entrance struct {
	// free releases the story's slot among the concurrent stories; it may be called
	// twice.
	free func()
	// turn is closed when a story that plays alone may start, next when the one after
	// it may. Both are nil for others.
	turn <-chan struct{}
	next chan struct{}
}

// await waits for the turn of a story that plays alone. The turn also comes when the
// run is interrupted, since all stories end then.
func (e entrance) await() {
	if e.turn != nil {
		<-e.turn
	}
}

// leave lets other stories start. A story that plays alone and fails before its turn
// lets the next one start only once its own turn has come.
func (e entrance) leave() {
	e.free()
	if e.next != nil {
		e.await()
		close(e.next)
	}
}

// entryOrder lists the indexes of the stories in starting order: those that run
// concurrently, the longest first, and then those that play alone.
func entryOrder(stories []Story) []int {
	order := make([]int, len(stories))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		one, other := stories[a], stories[b]
		switch {
		case one.Alone && other.Alone:
			return 0
		case one.Alone:
			return 1
		case other.Alone:
			return -1
		}
		return cmp.Compare(other.Takes, one.Takes)
	})
	return order
}
