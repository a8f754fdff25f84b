// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// lookedAtAfter is how long the hook operator may take to look at a new Registration.
const lookedAtAfter = 30 * time.Second

// Registers is what a Registration does for a workload.
type Registers struct {
	Registration string   `json:"registration"`
	Registries   []string `json:"registries"`
	// Pods are those of the workload that it selects, Registered those that its registries list.
	Pods       int `json:"pods"`
	Registered int `json:"registered"`
	// Reason and Message say why it registers nothing, or not everywhere; empty if all is well.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// registers has each Registration that selects Pods of the workload, by name.
func (o *Objects) registers(members []Pod) (out []Registers) {
	seen := map[string]bool{}
	for i := range members {
		seen[members[i].Name] = members[i].Registered == string(corev1.ConditionTrue)
	}
	for _, r := range o.Registrations {
		one := Registers{Registration: r.Name, Registries: r.Spec.Registries}
		for _, pod := range o.Pods {
			if !r.Selects(pod.Labels) {
				continue
			}
			one.Pods++
			if seen[pod.Name] {
				one.Registered++
			}
		}
		if one.Reason, one.Message = whyNot(o.Now, r); one.Pods > 0 {
			out = append(out, one)
		}
	}
	slices.SortFunc(out, func(a, b Registers) int { return strings.Compare(a.Registration, b.Registration) })
	return out
}

// whyNot is why a Registration cannot do its work; empty if it can.
func whyNot(now time.Time, r *usherv1alpha1.Registration) (reason, message string) {
	ready := meta.FindStatusCondition(r.Status.Conditions, usherv1alpha1.ConditionReady)
	switch {
	case ready != nil && ready.Status == metav1.ConditionFalse:
		return ready.Reason, ready.Message
	case r.DeletionTimestamp != nil:
		return "Deleted", "it is being deleted"
	case len(r.Status.Conditions) == 0 && !r.CreationTimestamp.IsZero() && now.Sub(r.CreationTimestamp.Time) > lookedAtAfter:
		return "NotSeen", "the hook operator has not looked at it: kubectl usher doctor"
	}
	return "", ""
}

// String says it in a line.
func (r *Registers) String() string {
	where := cmp.Or(strings.Join(r.Registries, ", "), "no registry")
	text := fmt.Sprintf("%d of %d Pods in %s (Registration %s)", r.Registered, r.Pods, where, r.Registration)
	if r.Reason != "" {
		text += ": " + r.Reason + ": " + r.Message
	}
	return text
}
