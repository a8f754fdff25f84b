// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"reflect"

	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/plan"
)

// status is what a pass writes of a Registration. One that has vanished has no status.
type status struct {
	plan.Outcome
	next usherv1alpha1.RegistrationStatus
}

// statusesOf are the statuses that follow from a pass; none if it has ended early.
func statusesOf(done stage) []status {
	if done.stopped {
		return nil
	}
	var all []status
	unrecorded := done.unrecorded()
	for _, o := range done.decided.Outcomes {
		if unrecorded[o.Registration.Name] { // a Pod's record may lack what this pass has seen: its targets are still needed
			o.Released, o.Kept = false, o.Registration.Status.Targets
		}
		s := status{Outcome: o}
		if !vanished(o.Registration) {
			s.next = plan.Status(o, done.seen.snapshot.Registries, done.seen.snapshot.Now)
		}
		all = append(all, s)
	}
	return all
}

// writeStatuses writes statuses, and removes the finalizers of Registrations that are done.
func (r *Reconciler) writeStatuses(ctx context.Context, done stage, statuses []status) stage {
	for i := range statuses {
		seen, err := r.finishOne(ctx, done.seen, &statuses[i])
		done = done.seeing(seen).with(r.failed(statuses[i].Registration, err))
	}
	return done
}

// finishOne writes the status of a Registration, or removes its finalizer.
func (r *Reconciler) finishOne(ctx context.Context, o *observation, s *status) (*observation, error) {
	registration := s.Registration
	if vanished(registration) {
		return r.dropUsers(ctx, o, registration.Name, s.Kept)
	}
	var err error
	// Most statuses are the same in memory, which is seen sooner.
	same := reflect.DeepEqual(s.next, registration.Status) || equality.Semantic.DeepEqual(s.next, registration.Status)
	if !s.Released && !same {
		next := registration.DeepCopy()
		next.Status = s.next
		if o, err = r.write(ctx, o, "write the status of Registration", registration, next, true); err != nil {
			return o, client.IgnoreNotFound(err)
		}
	}
	if o, err = r.dropUsers(ctx, o, registration.Name, s.Kept); err != nil || !s.Released {
		return o, client.IgnoreNotFound(err)
	}
	next := registration.DeepCopy()
	if !controllerutil.RemoveFinalizer(next, usherv1alpha1.Finalizer) {
		return o, nil
	}
	o, err = r.write(ctx, o, "remove the finalizer from Registration", registration, next, false)
	return o, client.IgnoreNotFound(err)
}
