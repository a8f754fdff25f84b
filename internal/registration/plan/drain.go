// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// Defaults of spec.drain, for objects that were stored without them.
const (
	// DefaultPropagation is how long callers may use an entry that is gone.
	DefaultPropagation = 5 * time.Second
	// DefaultDeadline is how long a drain may take.
	DefaultDeadline = 5 * time.Minute
)

// Record is the annotation usher.dev/drain: the progress of a Pod's drain. It outlives the
// process: the next one waits what was left when it was written.
type Record struct {
	// Gate that the drain is for.
	Gate Gate `json:"gate"`
	// Entered is when the Pod entered its state, by its own annotation. A drain that was
	// taken back and begins again is another one, with its own deadline.
	Entered string `json:"entered,omitempty"`
	// Began is when a pass first saw the drain.
	Began time.Time `json:"began"`
	// Gone is when a listing first showed that the Pod is not there, by
	// "registration@registry/prefix/service".
	Gone map[string]time.Time `json:"gone,omitempty"`
	// Until is when callers know of all entries that are gone so far. It holds the Pod even
	// when nobody knows any more where they were.
	Until time.Time `json:"until,omitzero"`
	// Open means that another registry lists the Pod, or does not answer. A change of it
	// alone is not written.
	Open bool `json:"open,omitempty"`
	// Free is since when no caller chooses the Pod any more, so that it is asked whether anything is under way.
	Free time.Time `json:"free,omitzero"`
	// UnderWay is how many requests were, when that was last written; nil if the Pod did not say so.
	UnderWay *int64 `json:"underWay,omitempty"`
	// Forced means that a deadline has released one of the drain's keys, and Counted that its result is known:
	// the deletion that the guard is asked about next continues the same drain.
	Forced  bool `json:"forced,omitempty"`
	Counted bool `json:"counted,omitempty"`
	// Process is by whose clock these times are, and At when it wrote them.
	Process string    `json:"process,omitempty"`
	At      time.Time `json:"at,omitzero"`
}

// adopt moves the times of another process to our clock. However far the two are apart, the wait that remained when the
// record was written remains now. Began and Free bound what follows them, and stay unless they are yet to come.
func (r *Record) adopt(process string, now time.Time) {
	if r.Process == process || r.At.IsZero() {
		return
	}
	ahead := now.UTC().Sub(r.At)
	for key, gone := range r.Gone {
		r.Gone[key] = gone.Add(ahead)
	}
	if !r.Until.IsZero() {
		r.Until = r.Until.Add(ahead)
	}
	if r.Began.After(now) {
		r.Began = now.UTC()
	}
	if r.Free.After(now) {
		r.Free = now.UTC()
	}
}

// End is when the drain ends if nothing else happens; zero if that is not known.
func (r *Record) End() time.Time {
	if r == nil || r.Open {
		return time.Time{}
	}
	return r.Until
}

// recordKey is the key of Record.Gone.
func recordKey(registration string, t Target) string {
	return registration + "@" + t.Registry + "/" + t.Prefix + "/" + t.Service
}

// ReadRecord returns a Pod's drain record. It returns nil if the Pod has no record, or an unreadable one: a drain that
// starts over waits longer, never too short.
func ReadRecord(pod *corev1.Pod) *Record {
	text, ok := pod.Annotations[usherv1alpha1.AnnotationDrain]
	if !ok {
		return nil
	}
	var record Record
	if err := json.Unmarshal([]byte(text), &record); err != nil || !record.plausible() {
		return nil
	}
	return &record
}

// plausible reports whether times can be moved and written again: somebody else may have written
// the record, and JSON has no year beyond 9999.
func (r *Record) plausible() bool {
	times := slices.AppendSeq([]time.Time{r.At, r.Began, r.Until, r.Free}, maps.Values(r.Gone))
	return !slices.ContainsFunc(times, func(at time.Time) bool { return at.Year() > 9000 })
}

// saidBy reports whether the other record says the same, and holds the Pod as long.
func (r *Record) saidBy(other *Record) bool {
	return other != nil && r.Process == other.Process && r.Gate == other.Gate && r.Entered == other.Entered && r.Began.Equal(other.Began) &&
		r.Free.Equal(other.Free) && r.saysEnough(other) && r.Forced == other.Forced && r.Counted == other.Counted &&
		maps.EqualFunc(r.Gone, other.Gone, time.Time.Equal) && !r.Until.After(other.Until)
}

// continued returns the record of a drain for the gate, continued from the one on the Pod
// or new, and the one on the Pod. A new one still holds until the other one would have.
func (ix *index) continued(pod *corev1.Pod, gate Gate) (next, stored *Record) {
	now := ix.Now.UTC()
	next = &Record{Gate: gate, Entered: pod.Annotations[appsv1alpha1.AnnotationLifecycleTimestamp], Began: now, Process: ix.Process, At: now}
	if stored = ReadRecord(pod); stored != nil {
		before := *stored
		before.Gone = maps.Clone(stored.Gone)
		before.adopt(ix.Process, now)
		next.Until = before.Until
		if gate.continues(before.Gate) && before.Entered == next.Entered {
			next.Began, next.Gone, next.Forced, next.Counted = before.Began, before.Gone, before.Forced, before.Counted
			next.Free = before.Free
		}
	}
	if next.Gone == nil {
		next.Gone = map[string]time.Time{}
	}
	return next, stored
}

// continues reports whether a drain for the gate is the same as one for another gate: what a
// CloneSet's hook has let go is deleted, and the guard asks for a drain.
func (g Gate) continues(before Gate) bool {
	return g == before || g == GateRequested && before == GatePreDelete
}

// DurationOf is a field of the API that has a default.
func DurationOf(field *metav1.Duration, absent time.Duration) time.Duration {
	if field == nil || field.Duration < 0 {
		return absent
	}
	return field.Duration
}

func propagation(r *usherv1alpha1.Registration) time.Duration {
	return DurationOf(r.Spec.Drain.Propagation, DefaultPropagation)
}

func afterOutage(r *usherv1alpha1.Registration) time.Duration {
	return min(DurationOf(r.Spec.Drain.AfterOutage, DefaultAfterOutage), maxAfterOutage)
}

// limit is how long registries may keep a Pod waiting at a gate, and what happens then. The zero
// value is none.
type limit struct {
	after  time.Duration
	policy usherv1alpha1.DeadlinePolicy
}

// limitOf finds the Registration's limit for a gate. A registry that is away delays an update that
// nobody needs at once, but must not keep Pods, nodes and namespaces from going for ever.
func limitOf(r *usherv1alpha1.Registration, gate Gate) limit {
	var own *usherv1alpha1.HookDeadline
	drains, policy := gate.leaves(), usherv1alpha1.DeadlineBlock
	switch gate {
	case GateCreated:
		own = r.Spec.Deadlines.Created
	case GatePreNormal:
		own = r.Spec.Deadlines.PreNormal
	case GateInPlaceUpdate, GateUpdated:
		own = r.Spec.Deadlines.InPlaceUpdate
	case GatePreDelete, GateRequested, GateDeletion:
		own, policy = r.Spec.Deadlines.PreDelete, usherv1alpha1.DeadlineProceed
	case GateLeaving:
		drains = false
	}
	switch {
	case own != nil:
		return limit{own.After.Duration, cmp.Or(own.OnDeadline, policy)}
	case drains:
		return limit{DurationOf(r.Spec.Drain.Deadline, DefaultDeadline), cmp.Or(r.Spec.Drain.OnDeadline, policy)}
	}
	return limit{}
}

// end is when a wait that began at since exceeds the limit; zero if it never does.
func (l limit) end(since time.Time) time.Time {
	if l.policy == "" || since.IsZero() {
		return time.Time{}
	}
	return since.Add(l.after)
}

const (
	// DefaultAfterOutage is spec.drain.afterOutage of objects that were stored
	// without it.
	DefaultAfterOutage = 30 * time.Second
	// maxAfterOutage is its largest value: after that all callers are back.
	maxAfterOutage = 10 * time.Minute
	// MaxSkew is how far apart the clocks of two processes may be when they tell of an outage.
	MaxSkew = 10 * time.Second
)

// Outage is the last time that a registry did not answer; zero if none is known.
type Outage struct {
	// From is when it last answered before, as far as is known.
	From time.Time
	// To is when it answered again, zero while it does not.
	To time.Time
	// Recalled means that an earlier process noted one of them, by its own clock.
	Recalled bool
}

// heard is when all callers know of an entry that went at gone, and whether the outage made
// that later than propagation after it. Callers that have lost the registry retry with
// back-off: they are all back after as long again as it was away, and after reconnect at
// the latest. Then they learn what they missed. now stands for the end of an outage that
// goes on.
func (o Outage) heard(gone time.Time, propagation, reconnect time.Duration, now time.Time) (at time.Time, late bool) {
	if o == (Outage{}) {
		return gone.Add(propagation), false
	}
	o = o.widest()
	to := o.To
	if to.IsZero() {
		to = now
	}
	back := to.Add(min(to.Sub(o.From), reconnect))
	if !back.After(gone) {
		return gone.Add(propagation), false
	}
	return back.Add(propagation), true
}

// widest is the outage as long as it may have been by our clock.
func (o Outage) widest() Outage {
	if o.Recalled {
		o.From = o.From.Add(-MaxSkew)
	}
	if o.Recalled && !o.To.IsZero() {
		o.To = o.To.Add(MaxSkew)
	}
	return o
}

// Ended is the outage that ends now.
func (o Outage) Ended(now time.Time) Outage { return Outage{From: o.widest().From, To: now} }

// Next is the outage that begins now, if the registry last answered at from. If callers had
// not yet come back from the previous one, both are one outage.
func (o Outage) Next(from time.Time) Outage {
	if w := o.widest(); !o.To.IsZero() && from.Before(w.To.Add(min(w.To.Sub(w.From), maxAfterOutage))) {
		return Outage{From: o.From, Recalled: o.Recalled}
	}
	return Outage{From: from}
}

// String says when it was, for people.
func (o Outage) String() string {
	if o.To.IsZero() {
		return "does not answer since " + o.From.UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf("was away from %s to %s", o.From.UTC().Format(time.RFC3339), o.To.UTC().Format(time.RFC3339))
}

// Status is the outage for Registry.status, which has whole seconds: rounded so that it
// does not look shorter.
func (o Outage) Status() *usherv1alpha1.Outage {
	if o == (Outage{}) {
		return nil
	}
	status := &usherv1alpha1.Outage{From: metav1.NewTime(o.From.Truncate(time.Second))}
	if !o.To.IsZero() {
		status.To = new(metav1.NewTime(o.To.Add(time.Second - 1).Truncate(time.Second)))
	}
	return status
}
