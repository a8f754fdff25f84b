// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// tellAfter is how long a Pod waits, where nothing is wrong, before its condition
// says so: a write for each Pod that drains would cost more than it tells.
const tellAfter = 10 * time.Second

// maxMessage bounds the detail of a condition's message, in bytes.
const maxMessage = 1000

// planCondition says on the Pod whether every registry lists it, and what it waits
// for. What is not known changes nothing, or is Unknown. False is written on a Pod
// that has left, once, so that the Pod itself tells that nothing is left to do.
func (w *world) planCondition(s *subject, waiting []Waiting, patch *PodPatch) {
	if !w.tells(s, patch) {
		return
	}
	now, next := condition(s.pod, usherv1alpha1.ConditionRegistered), w.plainCondition(s, len(patch.RemoveFinalizers) > 0)
	line, told := w.line(waiting)
	switch {
	case told:
		next.Reason, next.Message = line.reason, line.head+line.detail
		if sameStatus(now, &next) && now.Reason == next.Reason && strings.HasPrefix(now.Message, line.head) {
			return
		}
	case s.saysEnough(now, &next):
		return
	}
	if sameStatus(now, &next) {
		next.LastTransitionTime = now.LastTransitionTime
	}
	patch.Condition = &next
}

func sameStatus(now, next *corev1.PodCondition) bool { return now != nil && now.Status == next.Status }

// saysEnough says whether the condition of a Pod that waits for nothing need not be
// written: the next one is no news, or nobody needs to know.
func (s *subject) saysEnough(now, next *corev1.PodCondition) bool {
	switch {
	case next.Status == corev1.ConditionUnknown:
		return true
	case now == nil:
		return next.Status == corev1.ConditionFalse && (s.wanted() || !s.finalized())
	case now.Status != next.Status:
		return false
	}
	// A wait that is over is not to be told any longer.
	return now.Reason == ReasonRegistered || now.Reason == ReasonDeregistered || now.Reason == ""
}

// tells says whether the condition is of use: not on a Pod that is let go, and
// on one that nobody registers only when it is.
func (w *world) tells(s *subject, patch *PodPatch) bool {
	released := len(patch.RemoveFinalizers) > 0
	switch {
	case s.pod.DeletionTimestamp != nil:
		return !released && len(s.ownFinalizers()) > 0
	case len(s.members) == 0:
		return s.finalized()
	}
	return true
}

// plainCondition is the condition of a Pod that waits for nothing. One that nobody
// registers any more keeps its status until it is released.
func (w *world) plainCondition(s *subject, released bool) corev1.PodCondition {
	c := corev1.PodCondition{
		Type: usherv1alpha1.ConditionRegistered, Status: conditionStatus(s.pod, usherv1alpha1.ConditionRegistered),
		LastTransitionTime: metav1.NewTime(w.Now),
	}
	if listed, known := w.listed(s); known && (released || len(s.members) > 0) {
		c.Status = corev1.ConditionFalse
		if listed {
			c.Status = corev1.ConditionTrue
		}
	}
	c.Reason, c.Message = ReasonDeregistered, "At least one registry does not list the Pod."
	if c.Status == corev1.ConditionTrue {
		c.Reason, c.Message = ReasonRegistered, "Every registry lists the Pod."
	}
	return c
}

// line is what a Pod's condition says of a wait. The head stays the same while the
// detail, such as an error, may change with every attempt.
type line struct{ reason, head, detail string }

// line tells of the first wait that is worth it, and how many more there are.
func (w *world) line(waiting []Waiting) (line, bool) {
	var told *Waiting
	more := 0
	for i := range waiting {
		switch {
		case !w.worthTelling(&waiting[i]):
		case told == nil:
			told = &waiting[i]
		default:
			more++
		}
	}
	if told == nil {
		return line{}, false
	}
	l := line{reason: string(told.Reason), head: "Waits at " + string(told.Gate), detail: ": " + told.Message}
	if told.Key != "" {
		l.head += " (" + told.Key + ")"
	}
	if told.Registry != "" {
		l.head += " for Registry " + told.Registry
	}
	if !told.Since.IsZero() {
		l.head += " since " + told.Since.UTC().Format(time.RFC3339)
	}
	if told.Overdue {
		l.head += ", past its deadline"
	}
	if more > 0 {
		l.head += fmt.Sprintf(", and for %d more", more)
	}
	l.detail = Shorten(l.detail, maxMessage)
	return l, true
}

// worthTelling leaves out Pods that are not ready themselves, and for a while
// those that are on their way.
func (w *world) worthTelling(wait *Waiting) bool {
	switch wait.Reason {
	case ReasonPodNotReady, ReasonNotAsked:
		return false
	case ReasonNotListed, ReasonStillListed, ReasonPropagation, ReasonRateLimited:
		return wait.Overdue || !wait.Since.IsZero() && w.Now.Sub(wait.Since) >= tellAfter
	}
	return true
}

// listed says whether every registry lists the Pod. One that surely does not
// settles the question.
func (w *world) listed(s *subject) (listed, known bool) {
	listed, known = len(s.members) > 0, true
	for _, m := range s.members {
		serves, _ := s.serves(m)
		listed = listed && len(m.missing) == 0
		for _, place := range m.current {
			p := w.presence(m, place, s)
			switch {
			case p.err != nil, !serves && p.listed:
				// An entry that is about to go is no news.
				known = false
			case !p.serving:
				listed = false
			}
		}
	}
	return listed, known || !listed
}
