// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// Who deletes a Pod with a shorter grace period than the Pod's own has a deadline of its own: the node goes at a
// certain time, drained or not. Each second that the guard holds such a Pod is one that its containers do not get. So
// the guard takes a share of that time for callers, and leaves the rest to the containers. An eviction is no deadline:
// whoever evicts has agreed to be refused, and has a timer for that.

const (
	// holdShare is the part of a deadline that the guard may take: a sixth, which is 5 s of 30 s.
	holdShare = 6
	// longestGrace bounds a grace period, so that it can be added to a time.
	longestGrace = 365 * 24 * time.Hour
)

// spares returns the grace period that the request gives the Pod, if it is shorter than the Pod's own; false otherwise.
func (r Request) spares() (grace time.Duration, short bool) {
	own := ptr.Deref(r.Pod.Spec.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)
	if r.Eviction || r.GracePeriodSeconds == nil || *r.GracePeriodSeconds >= own {
		return 0, false
	}
	seconds := min(max(*r.GracePeriodSeconds, 0), int64(longestGrace/time.Second))
	return time.Duration(seconds) * time.Second, true
}

// limits returns when the Pod is to have ended, and until when it may be held: the earliest of this request and of the
// stored one; nil if neither has a deadline. A stored one that is over binds only those who have one, too: others ask
// for something else.
func (r Request) limits(stored *usherv1alpha1.DeletionRequest) (deadline, letGo *metav1.MicroTime) {
	grace, short := r.spares()
	if stored != nil && stored.Deadline != nil && (short || r.Now.Before(stored.Deadline.Time)) {
		deadline, letGo = stored.Deadline, stored.LetGo
	}
	if short {
		deadline, letGo = earlier(deadline, r.Now.Add(grace)), earlier(letGo, r.Now.Add(grace/holdShare))
	}
	return deadline, letGo
}

func earlier(known *metav1.MicroTime, at time.Time) *metav1.MicroTime {
	if known != nil && !at.Before(known.Time) {
		return known
	}
	return new(metav1.NewMicroTime(at.UTC()))
}

// late reports whether the Pod has to go now: a client that comes again could do so only after the time to let it go.
func (r Request) late(stored *usherv1alpha1.DeletionRequest) bool {
	_, letGo := r.limits(stored)
	return letGo != nil && r.Now.Add(minRetry).After(letGo.Time)
}

// hurried lets a Pod go for its deadline. The request is written on the Pod, unless it is there: so the operator knows
// that API servers have asked the guard.
func (r Request) hurried(stored *usherv1alpha1.DeletionRequest, controller bool) Decision {
	deadline, _ := r.limits(stored)
	d := Decision{Allowed: true, Hurried: true, Message: fmt.Sprintf(
		"the Pod is to have ended by %s, and its containers need the rest of that time", deadline.UTC().Format(time.RFC3339))}
	if r.tightens(stored) {
		d.Patch = r.patch(stored, false, controller)
	}
	return d
}

// tightens reports whether the request lets the Pod go earlier than the stored one. Clients round to whole seconds, so
// the deadlines of two requests differ although they mean the same.
func (r Request) tightens(stored *usherv1alpha1.DeletionRequest) bool {
	_, letGo := r.limits(stored)
	return letGo != nil && (stored == nil || stored.LetGo == nil || stored.LetGo.Sub(letGo.Time) >= time.Second)
}

// comesAgain returns the time until the request is to be repeated: before the Pod is let go, if it is. It is 0 for
// those who do not wait in their requests.
func (r Request) comesAgain(stored *usherv1alpha1.DeletionRequest, letGo *metav1.MicroTime, patient bool) time.Duration {
	if !r.waits() {
		return 0
	}
	wait := r.retryAfter(stored, patient)
	if letGo == nil {
		return wait
	}
	return min(wait, letGo.Sub(r.Now).Truncate(time.Second))
}
