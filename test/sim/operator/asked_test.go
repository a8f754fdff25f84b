// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/usher-dev/usher/internal/podread"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// courier carries requests to the applications of Pods.
type courier struct{ *process }

// All implements registration.Applications.
func (c courier) All(_ context.Context, changes []registry.Change, calls map[string]plan.Call) error {
	c.judgeBudgets(changes)
	var errs []error
	for _, change := range changes {
		if c.defects.loses == change.Op {
			continue
		}
		err := c.write(fmt.Sprintf("asks %s", change), func() error { return c.asked(change, calls[change.Entry.ID]) })
		if err != nil {
			errs = append(errs, change.Refused(registry.Transient(err)))
		}
	}
	return errors.Join(errs...)
}

// asked is a request that has reached an address: the application refuses it, says yes and does nothing, does it and is not
// heard, or does it.
func (s *simulation) asked(change registry.Change, call plan.Call) error {
	pod := s.pod(change.Entry.Owner.Pod)
	switch {
	case pod == nil, string(pod.UID) != change.Entry.Owner.PodUID, pod.Status.PodIP != call.At.Addr().String():
		s.fail("%s asks %s, which is not at the address of %s", change.Op, call.At, change.Entry.Owner.Pod)
		return nil
	case !podread.IsTrue(pod, corev1.ContainersReady):
		return errors.New("nobody answers")
	}
	luck := s.random.IntN(8)
	if s.obliging {
		luck = 7
	}
	if luck > 1 {
		s.obey(pod, change.Op)
	}
	if luck == 0 || luck == 2 {
		return errors.New("no answer")
	}
	return nil
}

// obey has the Pod's application leave all registries, or come back. What it has registered since the operator last listed
// a registry stays there: nobody could know of it.
func (s *simulation) obey(pod *corev1.Pod, op registry.Op) {
	app := s.applications[pod.UID]
	if app == nil {
		return
	}
	for _, name := range registries {
		if op == registry.TakeOut {
			s.deregister(name, pod.UID)
		} else if s.registers(pod) {
			s.register(name, pod, false)
		}
	}
	app.out = op == registry.TakeOut
}
