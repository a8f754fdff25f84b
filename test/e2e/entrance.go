// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"cmp"
	"slices"
)

// entrance is how a story comes on to the stage, and leaves it.
type entrance struct {
	// free gives up the story's place among those that play at once; it may be called
	// twice.
	free func()
	// turn is closed when a story that plays alone may begin, next when the one after
	// it may. Both are nil for others.
	turn <-chan struct{}
	next chan struct{}
}

// await waits for the turn of a story that plays alone. It comes also when the run is
// interrupted, since all stories end then.
func (e entrance) await() {
	if e.turn != nil {
		<-e.turn
	}
}

// leave lets others on. A story that has failed before its turn lets none on before
// that.
func (e entrance) leave() {
	e.free()
	if e.next != nil {
		e.await()
		close(e.next)
	}
}

// entryOrder are the places of the stories in the order in which they begin: those
// that share the stage, the longest first, and then those that play alone.
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
