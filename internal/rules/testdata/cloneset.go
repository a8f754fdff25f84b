// Package broken breaks each rule of TestRules.
package broken

import (
	"github.com/usher-dev/usher/internal/cloneset/plan"
)

type state struct {
	answer *int
	kept   map[string]int
}

type results struct{ more bool }

func setsPlan(decided *plan.Plan) { decided.More = true } // want: writes plan.Plan

func setsCopy(decided plan.Plan) plan.Plan {
	decided.Actions[0].Reason = "another" // want: writes plan.Plan
	return decided
}

func setsSnapshot(s *plan.Snapshot) {
	s.Pulls.Listed = nil      // want: writes plan.Snapshot
	delete(s.Trials, "class") // want: writes plan.Snapshot
	s.Starts++                // want: writes plan.Snapshot
	_ = plan.Snapshot{Starts: 1}
}

func setsResults(done *results) { done.more = true } // want: writes its parameter done

func returnsResults() *results {
	done := results{}
	done.more = true
	return &done
}

func (s *state) newest() *int {
	s.answer = nil // want: newest sounds like a query
	return s.answer
}

func (s *state) drained(key string) int {
	delete(s.kept, key) // want: drained sounds like a query
	return s.kept[key]
}

func (s *state) keepAnswer(answer *int) { s.answer = answer }
