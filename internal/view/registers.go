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
	"github.com/usher-dev/usher/internal/list"
)

// lookedAtAfter is how long the hook operator may take to look at a new Registration.
const lookedAtAfter = 30 * time.Second

// Registers describes what a Registration does for a workload.
type Registers struct {
	Registration string   `json:"registration"`
	Registries   []string `json:"registries"`
	// Pods counts the workload's Pods that it selects, Registered those of them that its registries
	// list.
	Pods       int `json:"pods"`
	Registered int `json:"registered"`
}

// noteRegistrations adds the Registrations that select Pods of the workload, by name, and problems of
// those that cannot do their work.
func (o *Objects) noteRegistrations(w *Workload) {
	registered := map[string]bool{}
	for i := range w.Members {
		registered[w.Members[i].Name] = w.Members[i].Registered == string(corev1.ConditionTrue)
	}
	byName := func(a, b *usherv1alpha1.Registration) int { return strings.Compare(a.Name, b.Name) }
	for _, r := range slices.SortedFunc(slices.Values(o.Registrations), byName) {
		selected := list.Only(o.Pods, func(pod *corev1.Pod) bool { return r.Selects(pod.Labels) })
		if len(selected) == 0 {
			continue
		}
		listed := list.Only(selected, func(pod *corev1.Pod) bool { return registered[pod.Name] })
		w.Registers = append(w.Registers, Registers{
			Registration: r.Name, Registries: r.Spec.Registries, Pods: len(selected), Registered: len(listed)})
		if problem := problemOf(o.Now, r); problem != nil {
			w.Problems = append(w.Problems, *problem)
		}
	}
}

// problemOf returns why a Registration cannot do its work; nil if it can.
func problemOf(now time.Time, r *usherv1alpha1.Registration) *Problem {
	ready := meta.FindStatusCondition(r.Status.Conditions, usherv1alpha1.ConditionReady)
	switch {
	case ready != nil && ready.Status == metav1.ConditionFalse:
		return &Problem{Reason: ready.Reason, Message: "Registration " + r.Name + ": " + ready.Message, Since: ready.LastTransitionTime.Time}
	case len(r.Status.Conditions) == 0 && !r.CreationTimestamp.IsZero() && now.Sub(r.CreationTimestamp.Time) > lookedAtAfter:
		return &Problem{Reason: "NotSeen", Message: "Registration " + r.Name + ": the hook operator has not looked at it: kubectl usher doctor",
			Since: r.CreationTimestamp.Time}
	}
	return nil
}

// String returns a line for people.
func (r *Registers) String() string {
	where := cmp.Or(strings.Join(r.Registries, ", "), "no registry")
	return fmt.Sprintf("%d of %d Pods in %s (Registration %s)", r.Registered, r.Pods, where, r.Registration)
}
