// Package broken breaks each rule of TestRules.
package broken

import (
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/usher-dev/usher/internal/registration/plan"
)

type observation struct {
	snapshot plan.Snapshot
	objects  map[string]int
}

type results struct{ due []plan.Target }

type stage struct {
	seen    *observation
	decided plan.Plan
	results
}

type state struct {
	turn string
	kept map[string]int
}

func setsPlan(s stage) stage {
	s.decided.Unlisted = nil // want: writes plan.Plan
	return s
}

func (o *observation) setsSnapshot() {
	o.snapshot.Pods[0] = nil          // want: writes plan.Snapshot
	o.snapshot.Known["demo/a"] = true // want: writes plan.Snapshot
	o.snapshot = plan.Snapshot{}      // want: setsSnapshot sounds like a query
}

func setsStages(s stage) stage {
	s.seen.objects["a"] = 1  // want: writes its parameter s
	s.due[0] = plan.Target{} // want: writes its parameter s
	s.seen = &observation{}  // a copy
	s.due = append(s.due, plan.Target{Registry: "a"})
	return s
}

func (s stage) with(due plan.Target) stage {
	s.due = append(s.due, due)
	return s
}

func (s stage) without(due plan.Target) stage {
	s.due[0] = due // want: without sounds like a query
	return s
}

func (k *state) next() string {
	k.turn = "a" // want: next sounds like a query
	return k.turn
}

func (k *state) remember(turn string) { k.turn, k.kept[turn] = turn, 1 }

func retry() ctrl.Result {
	return ctrl.Result{RequeueAfter: 1} // want: retry decides when the next pass is due
}

func next() ctrl.Result { return ctrl.Result{RequeueAfter: 1} }
