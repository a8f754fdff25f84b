// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

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
		to := metav1.NewTime(o.To.Add(time.Second - 1).Truncate(time.Second))
		status.To = &to
	}
	return status
}
