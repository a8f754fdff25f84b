// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/podread"
	"github.com/usher-dev/usher/internal/printable"
)

// maxNamed bounds how many waits or findings one condition's message names.
const maxNamed = 3

const (
	// maxError bounds a registry's error in a status, in bytes.
	maxError = 512
	// MaxCondition bounds the message of a condition, in bytes. The API server takes 32 KiB.
	MaxCondition = 4 << 10
)

// Status returns the status of one Registration after a plan.
func Status(o Outcome, registries map[string]RegistryState, now time.Time) usherv1alpha1.RegistrationStatus {
	r := o.Registration
	next := *r.Status.DeepCopy()
	next.ObservedGeneration = r.Generation
	next.Pods, next.Registered, next.Draining = o.Pods, o.Registered, o.Draining
	next.Registries = registryPods(o, registries)
	next.Targets = o.Kept
	set := func(c metav1.Condition) {
		c.ObservedGeneration = r.Generation
		c.LastTransitionTime = metav1.NewTime(now)
		meta.SetStatusCondition(&next.Conditions, c)
	}
	set(readyCondition(o, registries))
	set(waitingCondition(o))
	set(matchedCondition(o))
	set(validCondition(o))
	if condition := scaleInCondition(o); condition.Type != "" {
		set(condition)
	} else {
		meta.RemoveStatusCondition(&next.Conditions, usherv1alpha1.ConditionScaleInOrdered)
	}
	return next
}

// registryPods sums up the Pods of each of the Registration's registries.
func registryPods(o Outcome, registries map[string]RegistryState) []usherv1alpha1.RegistryPods {
	all := make([]usherv1alpha1.RegistryPods, 0, len(o.Registries))
	for _, name := range slices.Sorted(maps.Keys(o.Registries)) {
		one := *o.Registries[name]
		if err := registries[name].Err; err != nil {
			one.Error = err.Error()
		}
		for _, missing := range o.Missing {
			if missing.Registry == name {
				one.Error = missing.Message
			}
		}
		countWaits(&one, o.Waiting)
		one.Error = Shorten(one.Error, maxError)
		all = append(all, one)
	}
	return all
}

// countWaits adds the Pods that wait for the registry.
func countWaits(one *usherv1alpha1.RegistryPods, waits []Waiting) {
	leaving := map[string]bool{}
	for _, wait := range waits {
		if wait.Registry != one.Name || wait.Pod == "" {
			continue
		}
		leaving[wait.Pod] = leaving[wait.Pod] || wait.Gate.leaves()
		switch wait.Reason {
		case ReasonRegistryRefuses, ReasonRegistryUnavailable, ReasonClusterCopied:
			one.Error = cmp.Or(one.Error, wait.Message)
		}
	}
	one.Waiting = int32(len(leaving))
	for _, leaves := range leaving {
		one.Draining += oneIf(leaves)
	}
}

func conditionOf(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: Shorten(message, MaxCondition)}
}

func readyCondition(o Outcome, registries map[string]RegistryState) metav1.Condition {
	problems := slices.Clone(o.Missing)
	for _, name := range o.Registration.Spec.Registries {
		if err := registries[name].Err; err != nil && len(o.Missing) == 0 {
			problems = append(problems, Waiting{Registry: name}.failed(err))
		}
	}
	// Pods lack the same in several registries.
	problems = slices.CompactFunc(problems, func(a, b Waiting) bool { return a.Message == b.Message })
	if len(problems) > 0 {
		return conditionOf(usherv1alpha1.ConditionReady, metav1.ConditionFalse, string(problems[0].Reason),
			joinMessages(problems, func(w Waiting) string { return w.Message }))
	}
	return conditionOf(usherv1alpha1.ConditionReady, metav1.ConditionTrue, ReasonReady, "Every registry can be used.")
}

// waitingCondition names Pods that wait for a registry. A Pod that waits until it is ready,
// or for callers' caches, makes progress.
func waitingCondition(o Outcome) metav1.Condition {
	waits := list.Only(o.Waiting, func(w Waiting) bool { return w.Overdue || !w.Reason.onItsWay() })
	if len(waits) == 0 {
		return conditionOf(usherv1alpha1.ConditionWaiting, metav1.ConditionFalse, ReasonNothingWaits, "No Pod waits for a registry.")
	}
	reason := ReasonWaiting
	if slices.ContainsFunc(waits, func(w Waiting) bool { return w.Overdue }) {
		reason = ReasonDeadlineExceeded
	}
	return conditionOf(usherv1alpha1.ConditionWaiting, metav1.ConditionTrue, reason, joinMessages(waits, Waiting.String))
}

// onItsWay reports whether the Pod makes progress without anybody's attention.
func (r Reason) onItsWay() bool {
	return slices.Contains([]Reason{
		ReasonPodNotReady, ReasonPropagation, ReasonReconnecting, ReasonNotListed, ReasonNotAsked, ReasonRateLimited}, r)
}

// String describes the wait for people.
func (w Waiting) String() string {
	return fmt.Sprintf("%s %s: %s", cmp.Or(w.Pod, "the Registration"), w.head(false), w.Message)
}

// registryInHead is before the name of the registry.
const registryInHead = " for Registry "

// head is what stays the same while the message may change with every attempt. Messages
// name the registry themselves.
func (w Waiting) head(registry bool) string {
	head := "at " + string(w.Gate)
	if w.Key != "" {
		head += " (" + w.Key + ")"
	}
	if registry && w.Registry != "" {
		head += registryInHead + w.Registry
	}
	if !w.Since.IsZero() {
		head += " since " + w.Since.UTC().Format(time.RFC3339)
	}
	if w.Overdue {
		head += ", past its deadline"
	}
	return head
}

func matchedCondition(o Outcome) metav1.Condition {
	switch {
	case len(o.Findings) > 0:
		return conditionOf(usherv1alpha1.ConditionHooksMatched, metav1.ConditionFalse, o.Findings[0].Reason,
			joinMessages(o.Findings, func(f Finding) string { return f.Message }))
	case !o.HasCloneSet && o.Registration.Spec.Hooks != usherv1alpha1.Hooks{}:
		return conditionOf(usherv1alpha1.ConditionHooksMatched, metav1.ConditionUnknown, ReasonNoCloneSet,
			"No CloneSet makes Pods that spec.selector matches: nothing to compare spec.hooks with.")
	}
	return conditionOf(usherv1alpha1.ConditionHooksMatched, metav1.ConditionTrue, ReasonHooksMatched, "Every hook is used and answered.")
}

// validCondition names values of Pods that cannot be used.
func validCondition(o Outcome) metav1.Condition {
	if len(o.InvalidValues) > 0 {
		return conditionOf(usherv1alpha1.ConditionInstancesValid, metav1.ConditionFalse, ReasonInstanceInvalid,
			joinMessages(o.InvalidValues, func(v InvalidValue) string { return "Pod " + v.Pod.Name + ": " + v.Message }))
	}
	return conditionOf(usherv1alpha1.ConditionInstancesValid, metav1.ConditionTrue, ReasonValid, "All values that are taken from Pods can be used.")
}

// scaleInCondition names Pods that cannot be ordered for a scale-in; the zero value if nobody wants that.
func scaleInCondition(o Outcome) metav1.Condition {
	switch {
	case o.Registration.Spec.ScaleInOrder == "":
		return metav1.Condition{}
	case len(o.Silent) > 0:
		return conditionOf(usherv1alpha1.ConditionScaleInOrdered, metav1.ConditionFalse, string(ReasonUnderWayUnknown),
			"Pods count as busy that do not say how much is under way: "+joinMessages(o.Silent, SilentPod.String))
	}
	return conditionOf(usherv1alpha1.ConditionScaleInOrdered, metav1.ConditionTrue, ReasonOrdered,
		"All Pods in service that have been asked say how much is under way.")
}

func joinMessages[T any](all []T, message func(T) string) string {
	parts := list.Map(all[:min(len(all), maxNamed)], message)
	if more := len(all) - maxNamed; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, "; ")
}

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
	case len(patch.busy()) > 0:
		next.Reason = ReasonBusy
		next.Message = "Released at its timeout; requests may be lost. " + Shorten(strings.Join(patch.busy(), "; "), maxMessage)
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
	same := now.Reason == next.Reason && now.Message == next.Message
	return same || slices.Contains([]string{ReasonRegistered, ReasonDeregistered, ""}, now.Reason)
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
	switch {
	case c.Status == corev1.ConditionTrue:
		c.Reason, c.Message = ReasonRegistered, "Every registry lists the Pod."
	case p.goes != "" && !p.queued:
		c.Reason, c.Message = p.leaves, "The Pod leaves its registries: "+p.goes
	}
	return c
}

// summarize returns the wait that is most worth reporting, nil if none is, and how a message
// about it begins, which counts the others. That stays the same while the rest of the message,
// such as an error, may change with every attempt.
func (ix *index) summarize(waiting []Waiting) (first *Waiting, head string) {
	reported := list.Only(waiting, ix.worthReporting)
	if len(reported) == 0 {
		return nil, ""
	}
	// A Service that does not list a ready Pod comes first: a registry that is down may come back by itself.
	slices.SortStableFunc(reported, func(a, b Waiting) int {
		return boolCompare(!slices.Contains(unlistedReasons, a.Reason), !slices.Contains(unlistedReasons, b.Reason))
	})
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
	case ReasonNotListed, ReasonNotRegistered, ReasonNotInService, ReasonStillListed, ReasonPropagation, ReasonRateLimited,
		ReasonUnderWay, ReasonUnderWayUnknown:
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
		case p.door: // The registry that is missing may be the one that the gate stands for.
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
		return !ix.steers(p, t) || serves && p.protected(), true
	}
	found := ix.presence(r, t, p)
	if found.err != nil || !serves && found.listed {
		// The condition does not report an entry that is about to go.
		return false, false
	}
	return found.serving, true
}

// Shorten makes a text fit for statuses and events: one line of at most that many bytes, cut between
// characters.
func Shorten(text string, limit int) string {
	text = printable.Line(text)
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "")
}
