// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
)

// A Pod that names Usher as an eviction responder leaves its registries when Usher's turn comes: Kubernetes'
// object says so, in each pass anew, and nothing is written to the Pod that repeats it
// (docs/design/0005-eviction-requests.md). When nobody wants the eviction any more, the Pod comes back. Budgets
// have a say before the drain begins.

// Turn is how far an eviction has come for Usher among its responders.
type Turn string

// Turns are the states that Kubernetes' controller gives a responder. TurnNone means that the eviction does not name
// Usher.
const (
	TurnNone        Turn = ""
	TurnInactive    Turn = "Inactive"
	TurnActive      Turn = "Active"
	TurnInterrupted Turn = "Interrupted"
	TurnCanceled    Turn = "Canceled"
	TurnCompleted   Turn = "Completed"
)

// Eviction is what a plan reads of an Eviction of lifecycle.k8s.io in its namespace.
type Eviction struct {
	Name string
	UID  types.UID
	// Pod and PodUID are its target.
	Pod    string
	PodUID types.UID
	// Turn is Usher's, and Over means that the eviction is not under way: it has failed, was canceled, or the Pod is gone.
	Turn Turn
	Over bool
	// Requesters are those who still want the Pod to go, sorted.
	Requesters []string
	// Started is when Usher's turn came; zero before.
	Started time.Time
	Response
}

// Response is what Usher says of an eviction, in whole seconds of its clock.
type Response struct {
	// Heartbeat is when Usher last said something; zero if it has not.
	Heartbeat time.Time
	// Expected is when the drain ends if nothing else happens; zero if that is not known.
	Expected time.Time
	// Completed is when Usher's turn has ended; zero before.
	Completed time.Time
	// Message is for people.
	Message string
}

// Responding is a response to be written.
type Responding struct {
	Eviction *Eviction
	Response
}

const (
	// heartbeatAfter is how soon Usher repeats what it has said: the next responder's turn comes after 20 minutes
	// without a word.
	heartbeatAfter = 3 * time.Minute
	// wordAfter is how soon it says something else: Kubernetes asks for no more than that of all responders.
	wordAfter = 20 * time.Second
	// maxWord bounds a message, in bytes: the API takes 4000 characters.
	maxWord = 1000
	// maxRequesters is how many requesters a message names.
	maxRequesters = 3
)

// underWay reports whether the Pod is to stay out of its registries: Usher's turn has come, and whoever comes after it
// goes on.
func (e *Eviction) underWay() bool {
	switch e.Turn {
	case TurnActive, TurnCompleted, TurnInterrupted:
		return !e.Over
	case TurnNone, TurnInactive, TurnCanceled:
	}
	return false
}

// since is when the Pod was to go.
func (e *Eviction) since() metav1.MicroTime { return metav1.NewMicroTime(e.Started) }

// requesters names who wants the Pod to go.
func (e *Eviction) requesters() string {
	named := e.Requesters[:min(len(e.Requesters), maxRequesters)]
	text := strings.Join(named, ", ")
	if more := len(e.Requesters) - len(named); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return cmp.Or(text, "nobody who is known")
}

// evictionsUnderWay are those of the snapshot, by the Pod. Of several the first by name counts: Kubernetes fails the
// others.
func (ix *index) evictionsUnderWay() map[types.UID]*Eviction {
	all := map[types.UID]*Eviction{}
	for i := range ix.Evictions {
		if e := &ix.Evictions[i]; e.underWay() && all[e.PodUID] == nil {
			all[e.PodUID] = e
		}
	}
	return all
}

// evicts reports whether the eviction is of this Pod, and not of another one with its name.
func (e *Eviction) evicts(p *pod) bool {
	return e != nil && p != nil && e.PodUID == p.UID && e.Pod == p.Name
}

// requestOf stands for the request that nobody has written to the Pod.
func (e *Eviction) requestOf() *usherv1alpha1.DeletionRequest {
	return &usherv1alpha1.DeletionRequest{By: e.requesters(), Since: e.since(), At: e.since(), Eviction: true}
}

// text is why the Pod leaves.
func (e *Eviction) text() string { return "its eviction is requested by " + e.requesters() }

// keepEvicted has the requests of Pods last as long as Kubernetes' evictions of them are under way, whoever else has
// asked.
func (ix *index) keepEvicted(p *pod) {
	e := ix.evictions[p.UID]
	if p.request == nil || !e.evicts(p) || p.cause.lasts {
		return
	}
	p.cause.lasts, p.cause.ended = true, false
	p.cause.text = cmp.Or(p.cause.text, e.text())
}

// respond plans the responses to the evictions in which Usher is the active responder, and when the next ones are due.
func (ix *index) respond(plan *Plan) {
	for i := range ix.Evictions {
		e := &ix.Evictions[i]
		if e.Turn != TurnActive || e.Over || !e.Completed.IsZero() {
			continue
		}
		next := ix.responseTo(e, plan)
		due := ix.dueOf(e, next)
		if ix.Now.Before(due) {
			plan.RequeueAt = list.Earliest(plan.RequeueAt, due)
			continue
		}
		plan.Responses = append(plan.Responses, Responding{e, next})
		plan.RequeueAt = list.Earliest(plan.RequeueAt, next.again())
	}
}

// dueOf is when a response is written.
func (ix *index) dueOf(e *Eviction, next Response) time.Time {
	switch {
	case e.Heartbeat.IsZero(), !next.Completed.IsZero():
		return time.Time{}
	case e.Message != next.Message, !e.Expected.Equal(next.Expected):
		return e.Heartbeat.Add(wordAfter)
	}
	return e.again()
}

// again is when Usher repeats what it has said; zero if its turn has ended.
func (r *Response) again() time.Time {
	if !r.Completed.IsZero() {
		return time.Time{}
	}
	return r.Heartbeat.Add(heartbeatAfter)
}

// responseTo is what Usher says of an eviction now. The API takes no time before the start of its turn or before the
// last one, whatever the clocks say.
func (ix *index) responseTo(e *Eviction, plan *Plan) Response {
	now := list.Latest(ix.Now.UTC().Truncate(time.Second), e.Started, e.Heartbeat)
	next := Response{Heartbeat: now}
	done, message := ix.progress(e, plan)
	next.Message = Shorten(message, maxWord)
	if done {
		next.Completed, next.Expected = now, now
		return next
	}
	if end := ix.endOf(e, plan); end.After(now) {
		next.Expected = end.UTC().Add(time.Second - 1).Truncate(time.Second)
	}
	return next
}

// endOf is when the drain of the eviction's Pod ends, by the record that this plan writes or that the Pod has.
func (ix *index) endOf(e *Eviction, plan *Plan) time.Time {
	p := ix.byUID[e.PodUID]
	if !e.evicts(p) {
		return time.Time{}
	}
	for i := range plan.Patches {
		if patch := &plan.Patches[i]; patch.Pod.UID == e.PodUID && (patch.Drain != nil || patch.DropDrain) {
			return patch.Drain.End()
		}
	}
	return ReadRecord(p.Pod).End()
}

// progress reports whether Usher has done its part: no registry has the Pod, and none gets it.
func (ix *index) progress(e *Eviction, plan *Plan) (done bool, message string) {
	p := ix.byUID[e.PodUID]
	switch {
	case !e.evicts(p):
		return true, "The Pod is gone."
	case p.hasFinalizer() && p.queued && p.DeletionTimestamp == nil:
		return false, "Waits until a PodDisruptionBudget allows the Pod to leave its registries."
	case p.hasFinalizer():
		return false, cmp.Or(waitOf(plan.Waiting, p.Name), "The Pod leaves its registries.")
	case p.queued && len(p.selectedBy) > 0 && p.DeletionTimestamp == nil:
		return false, "Waits until a PodDisruptionBudget allows the Pod to go."
	}
	return true, "No registry has the Pod."
}

// waitOf is what a Pod waits for; empty if it waits for nothing.
func waitOf(waiting []Waiting, pod string) string {
	of := list.Only(waiting, func(w Waiting) bool { return w.Pod == pod })
	if len(of) == 0 {
		return ""
	}
	return "Waits " + of[0].head(true) + ": " + of[0].Message
}
