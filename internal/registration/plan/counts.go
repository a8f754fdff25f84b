// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// maxError bounds a registry's error in a status, in bytes.
const maxError = 512

// perRegistry counts the member's Pods that callers find, by registry; names that
// the spec or a target has are there in any case.
func (w *world) perRegistry(m *member) map[string]int32 {
	found := map[string]int32{}
	for _, place := range m.places() {
		found[place.Registry] += 0
	}
	for _, missing := range m.missing {
		found[missing.name] += 0
	}
	for _, place := range m.current {
		for _, s := range m.pods {
			p := w.presence(m, place, s)
			if p.serving || p.err != nil && conditionStatus(s.pod, usherv1alpha1.ConditionRegistered) == corev1.ConditionTrue {
				found[place.Registry]++
			}
		}
	}
	return found
}

// registryPods sums up the Pods of each of the Registration's registries.
func registryPods(o Outcome, p Plan, registries map[string]RegistryState) []usherv1alpha1.RegistryPods {
	all := make([]usherv1alpha1.RegistryPods, 0, len(o.PerRegistry))
	for _, name := range slices.Sorted(maps.Keys(o.PerRegistry)) {
		one := usherv1alpha1.RegistryPods{Name: name, Registered: o.PerRegistry[name]}
		if err := registries[name].Err; err != nil {
			one.Error = err.Error()
		}
		for _, missing := range o.Missing {
			if missing.Registry == name {
				one.Error = missing.Message
			}
		}
		countWaits(&one, o.Registration.Name, p.Waiting)
		one.Error = Shorten(one.Error, maxError)
		all = append(all, one)
	}
	return all
}

// countWaits adds the Pods of a Registration that wait for the registry.
func countWaits(one *usherv1alpha1.RegistryPods, registration string, waits []Waiting) {
	leaving := map[string]bool{}
	for _, wait := range waits {
		if wait.Registration != registration || wait.Registry != one.Name || wait.Pod == "" {
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

// leaves says whether a Pod waits at the gate for its way out of a registry.
func (g Gate) leaves() bool {
	switch g {
	case GateInPlaceUpdate, GatePreDelete, GateLeaving, GateDeletion:
		return true
	}
	return false
}

// Shorten cuts a text to that many bytes, between characters.
func Shorten(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "")
}
