// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/podread"
)

const (
	// reportAfter is how long a Pod waits, if nothing is wrong, before its condition reports
	// it: a write for each Pod that drains would cost more than it is worth.
	reportAfter = 10 * time.Second
	// maxMessage bounds the detail of a condition's message, in bytes.
	maxMessage = 1000
)

// planCondition sets the Pod's condition, and the wait that it reports. What is not known
// changes nothing, or is Unknown. A Pod that has left gets False once, so that the Pod
// itself shows that nothing is left to do.
func (ix *index) planCondition(p *pod, waiting []Waiting, patch *PodPatch) {
	released := len(patch.RemoveFinalizers) > 0
	if !ix.hasCondition(p, released) {
		return
	}
	now, next := podread.Condition(p.Pod, usherv1alpha1.ConditionRegistered), ix.conditionWithoutWait(p, released)
	first, head := ix.summarize(waiting)
	switch {
	case first != nil:
		next.Reason, next.Message = string(first.Reason), head+Shorten(": "+first.Message, maxMessage)
		if sameStatus(now, &next) && now.Reason == next.Reason && strings.HasPrefix(now.Message, head) {
			return
		}
	case patch.forced() != "":
		next.Reason, next.Message = ReasonForced, fmt.Sprintf("Released at its deadline before %s confirmed; requests may be lost.", patch.forced())
	case p.upToDate(now, &next):
		return
	}
	if sameStatus(now, &next) {
		next.LastTransitionTime = now.LastTransitionTime
	}
	patch.Condition = &next
}

func sameStatus(now, next *corev1.PodCondition) bool { return now != nil && now.Status == next.Status }

// upToDate reports whether the condition of a Pod that waits for nothing need not be
// written: the next one says the same, or nobody needs to know.
func (p *pod) upToDate(now, next *corev1.PodCondition) bool {
	switch {
	case next.Status == corev1.ConditionUnknown:
		return true
	case now == nil:
		return next.Status == corev1.ConditionFalse && (p.wanted() || !p.hasFinalizer())
	case now.Status != next.Status:
		return false
	}
	// A wait that is over must not be reported any longer.
	return now.Reason == ReasonRegistered || now.Reason == ReasonDeregistered || now.Reason == ""
}

// hasCondition reports whether the condition is of use: not on a Pod that is let go, and on
// one that no Registration selects only while the finalizer is there, or the gate holds it back.
func (ix *index) hasCondition(p *pod, released bool) bool {
	switch {
	case p.DeletionTimestamp != nil:
		return !released && len(p.ownFinalizers()) > 0
	case len(p.selectedBy) == 0:
		return p.hasFinalizer() || ix.abandons(p)
	}
	return true
}

// conditionWithoutWait is the condition of a Pod that waits for nothing. One that no
// Registration selects any more keeps its status until it is released.
func (ix *index) conditionWithoutWait(p *pod, released bool) corev1.PodCondition {
	c := corev1.PodCondition{
		Type: usherv1alpha1.ConditionRegistered, Status: podread.Status(p.Pod, usherv1alpha1.ConditionRegistered),
		LastTransitionTime: metav1.NewTime(ix.Now),
	}
	if status, decided := ix.turn(p); decided {
		c.Status = status
	} else if listed, known := ix.listedEverywhere(p); known && (released || len(p.selectedBy) > 0) {
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

// summarize returns the first wait that is worth reporting, nil if none is, and how a message
// about it begins, which counts the others. That stays the same while the rest of the message,
// such as an error, may change with every attempt.
func (ix *index) summarize(waiting []Waiting) (first *Waiting, head string) {
	reported := list.Only(waiting, ix.worthReporting)
	if len(reported) == 0 {
		return nil, ""
	}
	head = "Waits " + reported[0].head(true)
	if more := len(reported) - 1; more > 0 {
		head += fmt.Sprintf(", and for %d more", more)
	}
	return &reported[0], head
}

// worthReporting leaves out Pods that are not ready themselves, and for a while those that
// make progress.
func (ix *index) worthReporting(wait Waiting) bool {
	switch wait.Reason {
	case ReasonPodNotReady, ReasonNotAsked:
		return false
	case ReasonNotListed, ReasonStillListed, ReasonPropagation, ReasonRateLimited:
		return wait.Overdue || !wait.Since.IsZero() && ix.Now.Sub(wait.Since) >= reportAfter
	}
	return true
}

// listedEverywhere reports whether every registry lists the Pod. One that is known not to
// settles the question.
func (ix *index) listedEverywhere(p *pod) (listed, known bool) {
	listed, known = len(p.selectedBy) > 0, true
	for _, r := range p.selectedBy {
		switch {
		case len(r.missing) == 0:
		case p.gate: // The registry that is missing may be the one that the gate stands for.
			known = false
		default:
			listed = false
		}
		for _, t := range r.current {
			there, certain := ix.listedIn(r, t, p)
			listed, known = listed && (there || !certain), known && certain
		}
	}
	return listed, known || !listed
}

// listedIn reports whether a target lists the Pod. A Service will, once the gate is on.
func (ix *index) listedIn(r *registration, t Target, p *pod) (listed, known bool) {
	serves := p.unfit(r) == ""
	if ix.gated(t) {
		return !p.gate || serves && p.protected(), true
	}
	found := ix.presence(r, t, p)
	if found.err != nil || !serves && found.listed {
		// The condition does not report an entry that is about to go.
		return false, false
	}
	return found.serving, true
}

// Shorten cuts a text to that many bytes, between characters.
func Shorten(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "")
}
