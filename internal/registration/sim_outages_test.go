// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry/memory"
)

// absence is a time in which a registry was really away, for its callers as well.
type absence struct {
	name     string
	from, to time.Time
	// found are the processes that met it; recorded says that one of them has
	// written a status since.
	found    []*process
	recorded bool
}

// breaks gives a registry another fault.
func (s *simulation) breaks(name string, fault memory.Fault) {
	s.log("%s has fault %d", name, fault)
	s.stores[name].Break(fault)
	open := slices.IndexFunc(s.absences, func(a *absence) bool { return a.name == name && a.to.IsZero() })
	switch {
	case fault == memory.Down && open < 0:
		s.absences = append(s.absences, &absence{name: name, from: s.clock.Now()})
	case fault != memory.Down && open >= 0:
		s.absences[open].to = s.clock.Now()
	}
}

// finds notes that the process met an absence.
func (p *process) finds(name string, err error) {
	for _, a := range p.absences {
		if err != nil && a.name == name && a.to.IsZero() {
			a.found = append(a.found, p)
		}
	}
}

// records notes that a process wrote down what it knows of a registry.
func (p *process) records(o client.Object, err error) {
	if _, ok := o.(*usherv1alpha1.Registry); !ok || err != nil {
		return
	}
	for _, a := range p.absences {
		a.recorded = a.recorded || a.name == o.GetName() && slices.Contains(a.found, p)
	}
}

// judgeOutages looks whether callers have heard of a Pod whose hook is released
// though they had lost the registry: they need as long again as it was away, and no
// longer than plan.DefaultAfterOutage, to find it.
func (s *simulation) judgeOutages(key string, pod *corev1.Pod) {
	s.Helper()
	for _, a := range s.absences {
		known := a.recorded || slices.Contains(a.found, s.process)
		if !known || a.to.IsZero() {
			continue
		}
		back := a.to.Add(min(a.to.Sub(a.from), plan.DefaultAfterOutage))
		if late := s.clock.Now().Sub(back); back.After(s.lastSeen[pod.UID]) && late < simPropagation {
			s.fail("%s of %s was released %s after callers were back at %s", key, pod.Name, late, a.name)
		}
	}
}
