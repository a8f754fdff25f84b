// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
)

// A drain ends when callers no longer choose the Pod. What they have begun may last longer: long requests, streams, jobs.
// With spec.drain.until the Pod itself says when that has ended. It is asked only once all registries have let it go and
// the propagation has passed: from then on, nothing new begins. Somebody else asks it, between passes; a plan names
// the Pods to be asked, and decides on what they have answered.

// Defaults of spec.drain.until, for objects that were stored without them.
const (
	// DefaultUntilTimeout is how long a Pod may stay busy.
	DefaultUntilTimeout = 10 * time.Minute
	// DefaultUntilFor is how long it has to be idle.
	DefaultUntilFor = 5 * time.Second
)

const (
	// maxAnswerAge is how old an answer may be that lets a Pod go: a Pod that was idle may be busy again.
	maxAnswerAge = 15 * time.Second
	// recountAfter is how often a Pod's record says anew how many requests are under way. Each is a write.
	recountAfter = 10 * time.Second
)

// Ask is a Pod that is to be asked whether anything is under way there.
type Ask struct {
	AskKey
	// For is how long it has to be idle.
	For time.Duration
	// Checks have to agree.
	Checks []Check
	// Serves means that it is in service, and asked for the order of a scale-in; Every is how often it is asked then.
	Serves bool
	Every  time.Duration
}

// AskKey is the Pod, by its UID, and on whose behalf it is asked.
type AskKey struct {
	Pod          types.UID
	Registration string
}

// Check is one way to find out how much is under way.
type Check struct {
	// At is the Pod's own address, Path what is asked for.
	At   netip.AddrPort
	Path string
	// JSONField is where the answer has the number; empty if the status code decides. Metric is read instead, if it
	// is not nil.
	JSONField string
	Metric    *usherv1alpha1.UntilMetric
}

// Answer is what a Pod has answered.
type Answer struct {
	// At is when it was asked last.
	At time.Time
	// IdleSince is when it first said so without a break; zero while it is busy.
	IdleSince time.Time
	// UnderWay is how many requests are; nil if it did not say so.
	UnderWay *int64
	// Problem is why it is not known whether it is busy; empty if it is.
	Problem string
}

// busyPod is a Pod that goes although its Registration does not find it idle, at the timeout.
type busyPod struct {
	registration, message string
}

// String is for people.
func (b busyPod) String() string { return "Registration " + b.registration + ": " + b.message }

// awaitIdle holds a Pod that no caller chooses any more until nothing is under way there, or until the timeout. A Pod
// that has been asked is asked on while it waits for something else, such as the next listing of a followed target:
// otherwise its answers would begin anew.
func (ix *index) awaitIdle(p *pod, h hook, record *Record, v *verdict) {
	if ended(p.Pod) || !v.passes() && record.Free.IsZero() {
		return
	}
	if !v.passes() {
		var others verdict
		ix.askFor(p, h, record, &others)
		v.asks = others.asks
		return
	}
	ix.askFor(p, h, record, v)
}

// askFor asks the Pod on behalf of each Registration, and holds it for those that do not find it idle.
func (ix *index) askFor(p *pod, h hook, record *Record, v *verdict) {
	record.UnderWay = nil
	for _, r := range slices.Concat(h.answerers, p.deselected()) {
		stays := h.gate == GateInPlaceUpdate && r.Spec.OnInPlaceUpdate == usherv1alpha1.InPlaceUpdateStay
		if until := r.Spec.Drain.Until; until != nil && !stays {
			if record.Free.IsZero() {
				record.Free = ix.Now.UTC()
			}
			ix.awaitIdleFor(r, until, p, h, record, v)
		}
	}
}

// ended reports whether the Pod's containers run no more: nothing is under way there.
func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// awaitIdleFor holds a Pod on behalf of one Registration. Whether it waits or not, the Pod is asked until it has gone.
func (ix *index) awaitIdleFor(
	r *registration, until *usherv1alpha1.Until, p *pod, h hook, record *Record, v *verdict,
) {
	end, policy := untilEnd(r.Registration, h.gate, record.Free)
	base := Waiting{
		Registration: r.Name, Pod: p.Name, Gate: h.gate, Key: h.key.name, Since: record.Free, Overdue: !ix.Now.Before(end),
	}
	waits, underWay := ix.busyBy(r, until, p, base, v)
	if len(waits) == 0 {
		return
	}
	if base.Overdue && policy == usherv1alpha1.DeadlineProceed {
		for _, w := range waits {
			v.busy = append(v.busy, busyPod{r.Name, w.Message})
			if w.Registry != "" {
				v.forced = append(v.forced, w.Registry)
			}
		}
		return
	}
	if !base.Overdue {
		v.next = list.Earliest(v.next, end)
	}
	record.Open, record.UnderWay = true, Answer{UnderWay: underWay}.more(record.UnderWay)
	v.waiting = append(v.waiting, waits...)
}

// busyBy is what a Pod waits for on behalf of one Registration, that nobody calls since base.Since: for its own answers
// and for registries that count connections. It has the Pod asked.
func (ix *index) busyBy(
	r *registration, until *usherv1alpha1.Until, p *pod, base Waiting, v *verdict,
) (waits []Waiting, underWay *int64) {
	if until.Connections != nil {
		waits, underWay = ix.connected(r, p, base)
	}
	if until.HTTP == nil && len(until.Metrics) == 0 {
		return waits, underWay
	}
	ask := Ask{AskKey: AskKey{p.uid, r.Name}, For: DurationOf(until.For, DefaultUntilFor)}
	checks, problem := ix.checksOf(p.Pod, until)
	answer := Answer{At: ix.Now}
	if problem != nil {
		answer.Problem = problem.Error()
	} else {
		ask.Checks = checks
		v.asks, answer = append(v.asks, ask), ix.Answers[ask.AskKey]
	}
	if !answer.idle(ask.For, base.Since, ix.Now) {
		waits = append(waits, answer.explain(base, ask.For, ix.Now))
	}
	return waits, answer.fresh(ix.Now).more(underWay)
}

// countsAt reports whether a wait for connections to end there is one of drain.until.
func (ix *index) countsAt(r *registration, t Target) bool {
	until := r.Spec.Drain.Until
	return until != nil && until.Connections != nil && ix.Registries[t.Registry].Counts
}

// leavesToUntil reports whether no caller chooses the Pod any more that a target still lists: the registry
// counts the connections that are left, and drain.until waits for their end. It waits as well if the registry
// does not answer any more.
func (ix *index) leavesToUntil(r *registration, t Target, found presence, record *Record) bool {
	if !ix.countsAt(r, t) {
		return false
	}
	_, left := record.Gone[recordKey(r.Name, t)]
	return found.connections != nil || found.err != nil && left
}

// connected are the registries that still count connections to the Pod, and how many. One that does not answer,
// or lists the Pod as before, counts as one that does: nobody knows.
func (ix *index) connected(r *registration, p *pod, base Waiting) (waits []Waiting, n *int64) {
	var counted bool
	for _, t := range r.targets() {
		base.Registry = t.Registry
		if !ix.countsAt(r, t) {
			continue
		}
		counted = true
		found := ix.presence(r, t, p)
		switch {
		case found.absent, found.err == nil && !found.listed:
		case found.err != nil:
			waits = append(waits, base.because(ReasonUnderWayUnknown,
				fmt.Sprintf("it counts as busy: Registry %s: %v", t.Registry, found.err)))
		case found.connections == nil:
			waits = append(waits, base.stillListed(found))
		default:
			waits = append(waits, base.because(ReasonUnderWay, fmt.Sprintf("Registry %s: %s", t.Registry, found.unsettled)))
			n = Answer{UnderWay: found.connections}.more(n)
		}
	}
	if !counted {
		base.Registry = ""
		waits = append(waits, base.because(ReasonUnderWayUnknown, "it counts as busy: "+nobodyCounts))
	}
	return waits, n
}

// nobodyCounts is what is wrong with a Registration that waits for connections which no registry of it counts.
const nobodyCounts = "no Registry of spec.registries counts connections: use one of the kind haproxy, or take " +
	"spec.drain.until.connections out"

// uncounted is that problem; none if a registry counts.
func (ix *index) uncounted(r *registration) []Waiting {
	until := r.Spec.Drain.Until
	counts := func(t Target) bool { return ix.countsAt(r, t) }
	if until == nil || until.Connections == nil || slices.ContainsFunc(r.current, counts) {
		return nil
	}
	return []Waiting{{Registration: r.Name, Reason: ReasonRegistryUnsuited, Message: nobodyCounts}}
}

// untilTimeout is how long a Registration lets Pods stay busy; 0 if it does not ask them.
func untilTimeout(r *usherv1alpha1.Registration) time.Duration {
	if r.Spec.Drain.Until == nil {
		return 0
	}
	return DurationOf(r.Spec.Drain.Until.Timeout, DefaultUntilTimeout)
}

// untilEnd is when a Pod has been busy for too long that nobody calls since free, and what happens then. Nobody waits
// for a Pod that no hook holds.
func untilEnd(
	r *usherv1alpha1.Registration, gate Gate, free time.Time,
) (end time.Time, policy usherv1alpha1.DeadlinePolicy) {
	return free.Add(untilTimeout(r)), cmp.Or(limitOf(r, gate).policy, usherv1alpha1.DeadlineProceed)
}

// idle reports whether the Pod has been idle for long enough since nobody calls it any more, as its last answer shows.
func (a Answer) idle(long time.Duration, free, now time.Time) bool {
	return !a.IdleSince.IsZero() && now.Sub(a.At) <= maxAnswerAge && a.At.Sub(list.Latest(a.IdleSince, free)) >= long
}

// fresh is an answer that still counts; the zero value if it is too old.
func (a Answer) fresh(now time.Time) Answer {
	if now.Sub(a.At) > maxAnswerAge {
		return Answer{}
	}
	return a
}

// more is how many requests are under way of which others know already; nil if nobody knows.
func (a Answer) more(known *int64) *int64 {
	if a.UnderWay == nil || known != nil && *known > *a.UnderWay {
		return known
	}
	return a.UnderWay
}

// explain says what a Pod waits for that has answered so.
func (a Answer) explain(w Waiting, long time.Duration, now time.Time) Waiting {
	switch a = a.fresh(now); {
	case a.Problem != "":
		return w.because(ReasonUnderWayUnknown, "it counts as busy: "+a.Problem)
	case a.At.IsZero():
		return w.because(ReasonUnderWay, "it is asked whether requests are under way")
	case !a.IdleSince.IsZero():
		return w.because(ReasonUnderWay, fmt.Sprintf("nothing is under way, and has to be for %s", long))
	case a.UnderWay == nil:
		return w.because(ReasonUnderWay, "requests are under way")
	}
	return w.because(ReasonUnderWay, Requests(*a.UnderWay)+" under way")
}

// Requests counts requests for people.
func Requests(n int64) string {
	if n == 1 {
		return "1 request"
	}
	return fmt.Sprintf("%d requests", n)
}

// checksOf are the checks of a Pod, or why it cannot be asked.
func (ix *index) checksOf(pod *corev1.Pod, until *usherv1alpha1.Until) (checks []Check, err error) {
	if until.HTTP != nil {
		at, err := ix.whereToAsk(pod, until.HTTP.Port, "spec.drain.until.http.port")
		if err != nil {
			return nil, err
		}
		checks = append(checks, Check{At: at, Path: cmp.Or(until.HTTP.Path, "/"), JSONField: until.HTTP.JSONField})
	}
	for i := range until.Metrics {
		metric := &until.Metrics[i]
		at, err := ix.whereToAsk(pod, metric.Port, fmt.Sprintf("spec.drain.until.metrics[%d].port", i))
		if err != nil {
			return nil, err
		}
		checks = append(checks, Check{At: at, Path: cmp.Or(metric.Path, "/metrics"), Metric: metric})
	}
	return checks, nil
}

// whereToAsk is the Pod's own address with the port that a field names. Of a Pod in its node's network only ports are
// asked that a container names: no Registration reaches a kubelet.
func (ix *index) whereToAsk(
	pod *corev1.Pod, port intstr.IntOrString, field string,
) (at netip.AddrPort, err error) {
	if pod.Status.PodIP == "" {
		return at, errors.New("it has no address yet")
	}
	address, err := ix.ownAddress(pod.Status.PodIP)
	if err != nil {
		return at, err
	}
	if inNodeNetwork(pod, address) && port.Type == intstr.Int {
		return at, fmt.Errorf("it is in its node's network, where only ports are asked that a container names, "+
			"and %d has no name: correct %s", port.IntVal, field)
	}
	number, err := portToCall(pod, port, field)
	return netip.AddrPortFrom(address, number), err
}

// recount is when the record is to say anew how many requests are under way; zero if it says so, or is written now.
func (r *Record) recount(stored *Record) time.Time {
	if r == nil || stored == nil || r.sameCount(stored) || !r.saysEnough(stored) {
		return time.Time{}
	}
	return stored.At.Add(recountAfter)
}

func (r *Record) sameCount(other *Record) bool {
	return r.UnderWay == nil || other.UnderWay != nil && *r.UnderWay == *other.UnderWay
}

// saysEnough reports whether another record says how much is under way, or has said so a moment ago.
func (r *Record) saysEnough(other *Record) bool {
	return r.sameCount(other) || r.At.Sub(other.At) < recountAfter
}
