// SPDX-License-Identifier: Apache-2.0

package idle

import (
	"cmp"
	"context"
	"maps"
	"math"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/podhttp"
)

const (
	// every is how often a Pod is asked at most, for each request that it takes.
	every = time.Second
	// mostAtOnce and mostOfNamespace bound the Pods that are being asked, each for podhttp.MaxTime and place at most: Pods that do
	// not answer keep those of other namespaces from nothing.
	mostAtOnce, mostOfNamespace = 128, 16
	// mostServing bounds those of a namespace that are in service: they keep none that leaves from being asked.
	mostServing = 8
	// reportAfter is how often answers that let nobody go have a pass made over a namespace.
	reportAfter = 10 * time.Second
)

// Room asks all Pods that wait until they are idle. Create one with NewRoom.
type Room struct {
	clock  clock.PassiveClock
	client *http.Client
	// wake has a pass made over a namespace. It must not block.
	wake func(namespace string)
	// again has a value while somebody may be due.
	again chan struct{}

	mu sync.Mutex
	// asked are the Pods that are asked, by whom it is for. pods is when each Pod may be asked again.
	asked map[plan.AskKey]*asked
	pods  map[types.UID]time.Time
	// turns counts the Pods that are being asked, by namespace; "" has all of them. serving counts those in service.
	turns, serving map[string]int
	// reported is when answers last had a pass made over a namespace.
	reported map[string]time.Time
}

// asked is a Pod that is asked, on behalf of one Registration.
type asked struct {
	plan.Ask
	namespace string
	// answer is the last one, and reported the last one that a pass was made for.
	answer, reported plan.Answer
	// busy means that it is being asked. again is when it may be asked again, if it is in service.
	busy  bool
	again time.Time
}

// NewRoom returns a Room that tells the time by c, and has passes made by wake. It connects to Pods by dial; nil stands
// for the network. Start has it begin.
func NewRoom(c clock.PassiveClock, dial podhttp.Dial, wake func(namespace string)) *Room {
	return &Room{
		clock: c, client: podhttp.NewClient(dial), wake: wake, again: make(chan struct{}, 1), asked: map[plan.AskKey]*asked{},
		pods: map[types.UID]time.Time{}, turns: map[string]int{}, serving: map[string]int{},
		reported: map[string]time.Time{},
	}
}

// Want has these Pods of a namespace asked from now on, and no others. What Pods have answered to other checks is
// forgotten.
func (r *Room) Want(namespace string, asks []plan.Ask) {
	r.mu.Lock()
	defer r.mu.Unlock()
	wanted := list.By(asks, func(a plan.Ask) plan.AskKey { return a.AskKey })
	maps.DeleteFunc(r.asked, func(key plan.AskKey, a *asked) bool {
		return a.namespace == namespace && !sameChecks(a.Ask, wanted[key])
	})
	for _, ask := range asks {
		if known := r.asked[ask.AskKey]; known != nil {
			known.Every = ask.Every
		} else {
			r.asked[ask.AskKey] = &asked{Ask: ask, namespace: namespace}
		}
	}
	r.forget()
	r.hurry()
}

// sameChecks reports whether two Asks find out the same, however often.
func sameChecks(a, b plan.Ask) bool {
	a.Every = b.Every
	return reflect.DeepEqual(a, b)
}

// forget drops what is known of Pods that nobody asks any more, once they may be asked again.
func (r *Room) forget() {
	pods, namespaces, now := map[types.UID]bool{}, map[string]bool{}, r.clock.Now()
	for key, a := range r.asked {
		pods[key.Pod], namespaces[a.namespace] = true, true
	}
	maps.DeleteFunc(r.pods, func(pod types.UID, again time.Time) bool { return !pods[pod] && again.Before(now) })
	maps.DeleteFunc(r.reported, func(namespace string, _ time.Time) bool { return !namespaces[namespace] })
}

// hurry has Start look who is due.
func (r *Room) hurry() {
	select {
	case r.again <- struct{}{}:
	default: // it will
	}
}

// Answers are the last answers of the Pods of a namespace that have answered.
func (r *Room) Answers(namespace string) map[plan.AskKey]plan.Answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	answers := map[plan.AskKey]plan.Answer{}
	for key, a := range r.asked {
		if a.namespace == namespace && !a.answer.At.IsZero() {
			answers[key] = a.answer
		}
	}
	return answers
}

// Start asks until the context ends. It returns nil.
func (r *Room) Start(ctx context.Context) error {
	for {
		due, next := r.take()
		for _, one := range due {
			go func() { r.note(one, r.askPod(ctx, one.Checks)) }()
		}
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-r.again:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// turn is a Pod to be asked now.
type turn struct {
	plan.Ask
	of *asked
}

// take returns the Pods to be asked now, whose turns end with note, and after how long the next one is due. Those that
// wait longest come first, those in service after those that leave.
func (r *Room) take() (due []turn, next time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	next = math.MaxInt64
	for key, a := range r.asked {
		if wait := list.Latest(r.pods[key.Pod], a.again).Sub(now); wait > 0 {
			next = min(next, wait)
		} else if !a.busy {
			due = append(due, turn{a.Ask, a})
		}
	}
	slices.SortFunc(due, func(a, b turn) int {
		return cmp.Or(last(a.Serves, b.Serves), r.pods[a.Pod].Compare(r.pods[b.Pod]),
			cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Registration, b.Registration))
	})
	due = slices.DeleteFunc(due, func(t turn) bool { return !r.begin(t, now) })
	return due, next
}

// begin begins the turn of a Pod, if there is a place for it. Another Registration may have begun one.
func (r *Room) begin(t turn, now time.Time) bool {
	namespace := t.of.namespace
	if r.turns[""] >= mostAtOnce || r.turns[namespace] >= mostOfNamespace || r.pods[t.Pod].After(now) {
		return false
	}
	if t.Serves {
		if r.serving[namespace] >= mostServing {
			return false
		}
		r.serving[namespace]++
		t.of.again = now.Add(t.of.Every)
	}
	places, _ := placesOf(t.Checks)
	t.of.busy, r.pods[t.Pod] = true, now.Add(every*time.Duration(len(places)))
	r.turns[""]++
	r.turns[namespace]++
	return true
}

// end ends the turn of a Pod.
func (r *Room) end(t turn) {
	t.of.busy = false
	if t.Serves {
		if r.serving[t.of.namespace]--; r.serving[t.of.namespace] == 0 {
			delete(r.serving, t.of.namespace)
		}
	}
	for _, counted := range []string{"", t.of.namespace} {
		if r.turns[counted]--; r.turns[counted] == 0 {
			delete(r.turns, counted)
		}
	}
	r.hurry()
}

// result is what came of a turn.
type result struct {
	said
	problem string
}

// askPod makes the requests of one turn, one after another. A panic is an answer that nobody understands.
func (r *Room) askPod(ctx context.Context, checks []plan.Check) (all result) {
	defer func() {
		if recover() != nil {
			all = result{problem: "its answer cannot be read"}
		}
	}()
	places, of := placesOf(checks)
	all.idle = true
	for _, p := range places {
		one, err := ask(ctx, r.client, p, of[p])
		if err != nil {
			return result{problem: err.Error()}
		}
		all.said = all.and(one)
	}
	return all
}

// note notes an answer, and has a pass made if it matters: if it is the first one, or by now the Pod has been idle for
// long enough. Others have one made every reportAfter at most: if they say something else than passes know, or if the Pod
// could go and has not.
func (r *Room) note(t turn, got result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end(t)
	before, now, namespace := t.of.answer, r.clock.Now(), t.of.namespace
	next := plan.Answer{At: now, UnderWay: got.underWay, Problem: got.problem}
	if got.idle {
		next.IdleSince = now
		if !before.IdleSince.IsZero() {
			next.IdleSince = before.IdleSince
		}
	}
	t.of.answer = next
	late := now.Sub(r.reported[namespace]) >= reportAfter
	if r.asked[t.AskKey] == t.of && t.matters(before, late) { // else nobody asks any more
		r.report(namespace, now)
	}
}

// matters reports whether the last answer of a Pod, after another one, has a pass made. late means that none
// was made for answers for a while.
func (t turn) matters(before plan.Answer, late bool) bool {
	next := t.of.answer
	switch {
	case t.Serves:
		return late && ranksOtherwise(t.of.reported, next, t.For)
	case before.At.IsZero(), idleFor(next, t.For) && !idleFor(before, t.For):
		return true
	}
	return late && (idleFor(next, t.For) || !same(t.of.reported, next))
}

// last orders what is so after what is not.
func last(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// idleFor reports whether a Pod had been idle for so long when it gave the answer.
func idleFor(a plan.Answer, long time.Duration) bool {
	return !a.IdleSince.IsZero() && a.At.Sub(a.IdleSince) >= long
}

// ranksOtherwise reports whether an answer may give a Pod in service another place among its owner's Pods.
func ranksOtherwise(before, now plan.Answer, long time.Duration) bool {
	return before.At.IsZero() || before.Load() != now.Load() || before.Problem != now.Problem ||
		idleFor(before, long) != idleFor(now, long)
}

// report has a pass made that finds the answers of a namespace.
func (r *Room) report(namespace string, now time.Time) {
	for _, a := range r.asked {
		if a.namespace == namespace {
			a.reported = a.answer
		}
	}
	r.reported[namespace] = now
	r.wake(namespace)
}

// same reports whether two answers say the same.
func same(a, b plan.Answer) bool {
	return a.IdleSince.IsZero() == b.IdleSince.IsZero() && a.Problem == b.Problem &&
		ptr.Deref(a.UnderWay, -1) == ptr.Deref(b.UnderWay, -1)
}
