// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// describeSpec describes the relevant parts of a CloneSet's spec.
func describeSpec(set *apps.CloneSet) string {
	u := &set.Spec.UpdateStrategy
	parts := []string{fmt.Sprintf("%d replicas", replicas(set)), templateText(set), string(u.Type)}
	add := func(name string, value *apps.Count) {
		if value != nil {
			parts = append(parts, name+" "+value.IntOrString().String())
		}
	}
	add("partition", u.Partition)
	add("maxUnavailable", u.MaxUnavailable)
	add("maxSurge", u.MaxSurge)
	add("scaleStrategy.maxUnavailable", set.Spec.ScaleStrategy.MaxUnavailable)
	if u.Paused {
		parts = append(parts, "paused")
	}
	if u.InPlaceUpdateStrategy != nil {
		parts = append(parts, fmt.Sprintf("grace %ds", u.InPlaceUpdateStrategy.GracePeriodSeconds))
	}
	if set.Spec.MinReadySeconds > 0 {
		parts = append(parts, fmt.Sprintf("minReady %ds", set.Spec.MinReadySeconds))
	}
	if names := set.Spec.ScaleStrategy.PodsToDelete; len(names) > 0 {
		parts = append(parts, "podsToDelete "+strings.Join(names, " "))
	}
	if set.Labels[apps.LabelScalingExcludePreparingDelete] == "true" {
		parts = append(parts, "PreparingDelete not counted")
	}
	if text := claimsText(set); text != "" {
		parts = append(parts, text)
	}
	return strings.Join(append(parts, hooksText(set.Spec.Lifecycle)), ", ")
}

func templateText(set *apps.CloneSet) string {
	template, err := set.Spec.Template.Decode()
	if err != nil || len(template.Spec.Containers) == 0 {
		return "no template"
	}
	var images []string
	for i := range template.Spec.Containers {
		images = append(images, template.Spec.Containers[i].Image)
	}
	text := strings.Join(images, "+")
	if tier := template.Labels["tier"]; tier != "" {
		text += " tier=" + tier
	}
	if cpu, ok := template.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU]; ok {
		text += " cpu " + cpu.String()
	}
	if env := template.Spec.Containers[0].Env; len(env) > 0 {
		text += " env " + env[0].Value
	}
	return text
}

func hooksText(l *apps.Lifecycle) string {
	if l == nil {
		return "no hooks"
	}
	var parts []string
	for _, h := range []struct {
		name string
		hook *apps.LifecycleHook
	}{{"preNormal", l.PreNormal}, {"inPlaceUpdate", l.InPlaceUpdate}, {"preDelete", l.PreDelete}} {
		if h.hook == nil {
			continue
		}
		keys := slices.Clone(h.hook.FinalizersHandler)
		for _, key := range sortedKeys(h.hook.LabelsHandler, nil) {
			keys = append(keys, key+"="+h.hook.LabelsHandler[key])
		}
		text := h.name + " by " + strings.Join(keys, " and ")
		if h.hook.MarkPodNotReady {
			text += " (marks not ready)"
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}
