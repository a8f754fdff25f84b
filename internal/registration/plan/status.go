// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
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
		if wait.Reason == ReasonRegistryRefuses || wait.Reason == ReasonRegistryUnavailable {
			one.Error = cmp.Or(one.Error, wait.Message)
		}
	}
	for _, leaves := range leaving {
		one.Waiting++
		if leaves {
			one.Draining++
		}
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

// head is what stays the same while the message may change with every attempt. Messages
// name the registry themselves.
func (w Waiting) head(registry bool) string {
	head := "at " + string(w.Gate)
	if w.Key != "" {
		head += " (" + w.Key + ")"
	}
	if registry && w.Registry != "" {
		head += " for Registry " + w.Registry
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

func joinMessages[T any](all []T, message func(T) string) string {
	parts := list.Map(all[:min(len(all), maxNamed)], message)
	if more := len(all) - maxNamed; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, "; ")
}
