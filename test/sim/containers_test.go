// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
)

// containerMutants break the steps between the writes of one update.
func containerMutants() []mutant {
	careless := func(c *Config) { c.Process.Careless = true }
	return []mutant{
		{name: "believes a resize done at once", change: careless, caught: []string{ruleDone},
			before: eachRecord(func(record map[string]any) { delete(record, "containerResources") })},
		{name: "never resizes", caught: []string{ruleConverges, ruleSettles},
			after: eachAction(func(a *plan.Action) bool { return a.Reason != plan.ReasonResize && !resizes(a) })},
		{name: "resizes what is in service", change: careless, caught: []string{ruleDrain},
			after: eachAction(func(a *plan.Action) bool {
				if resizes(a) {
					a.Conditions = nil
				}
				return true
			})},
		{name: "does not wait for the first containers", change: careless, caught: []string{ruleOrder},
			before: eachRecord(func(record map[string]any) { record["preCheckBeforeNext"] = map[string]any{} })},
		{name: "never comes to the next containers", caught: []string{ruleConverges, ruleSettles},
			after: eachAction(func(a *plan.Action) bool { return a.Reason != plan.ReasonNextContainers })},
		{name: "forgets the next containers", change: careless, caught: []string{ruleDone, ruleConverges},
			before: eachRecord(func(record map[string]any) { delete(record, "nextContainerImages") })},
	}
}

func resizes(a *plan.Action) bool { return a.Change != nil && len(a.Change.Resources) > 0 }

// eachRecord changes the record of every Pod that the planner sees.
func eachRecord(change func(map[string]any)) func(*Process, *plan.Snapshot) {
	return func(_ *Process, s *plan.Snapshot) {
		pods := make([]*corev1.Pod, 0, len(s.Pods))
		for _, pod := range s.Pods {
			var record map[string]any
			if json.Unmarshal([]byte(pod.Annotations[apps.AnnotationInPlaceUpdateState]), &record) == nil {
				change(record)
				if data, err := json.Marshal(record); err == nil {
					pod = pod.DeepCopy()
					pod.Annotations[apps.AnnotationInPlaceUpdateState] = string(data)
				}
			}
			pods = append(pods, pod)
		}
		s.Pods = pods
	}
}
