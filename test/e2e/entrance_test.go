// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestEntryOrder(t *testing.T) {
	stories := []Story{
		{Name: "a"}, {Name: "b", Alone: true, Takes: time.Hour}, {Name: "c", Takes: time.Second}, {Name: "d", Takes: time.Minute},
		{Name: "e", Alone: true}, {Name: "f"},
	}
	if got, want := entryOrder(stories), []int{3, 2, 0, 5, 1, 4}; !slices.Equal(got, want) {
		t.Errorf("they begin in the order %v, want %v", got, want)
	}
}

// A story that has failed before its turn does not start the next one before that.
func TestEntrance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		places, turn := 0, make(chan struct{})
		early := entrance{free: func() { places++ }, turn: turn, next: make(chan struct{})}
		go early.leave()
		synctest.Wait()
		if places != 1 || closed(early.next) {
			t.Errorf("before its turn %d places are given up, and the next one is on: %v", places, closed(early.next))
		}
		close(turn)
		synctest.Wait()
		if !closed(early.next) {
			t.Error("the next one is not on")
		}
	})
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
