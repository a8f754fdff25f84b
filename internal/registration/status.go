// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"maps"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/plan"
)

// settle forgets targets that were written to and are in order. It forgets none while the
// patch of a Pod has failed: the next pass must list them again.
func (p *pass) settle(decided plan.Plan) {
	wrong := map[plan.Target]bool{}
	for _, c := range decided.Changes {
		wrong[c.Target] = !c.Empty()
	}
	if p.unpatched {
		for target := range p.snapshot.Listings {
			p.notes.dirty[target] = true
		}
		return
	}
	maps.DeleteFunc(p.notes.dirty, func(target plan.Target, _ bool) bool {
		listing, ok := p.snapshot.Listings[target]
		return ok && listing.Err == nil && !wrong[target]
	})
}

// finish writes statuses, and removes the finalizers of Registrations that are done.
func (p *pass) finish(ctx context.Context, decided plan.Plan) {
	// Include what failed in this pass.
	for name, state := range p.snapshot.Registries {
		_, state.Err = p.pool.down(name)
		p.snapshot.Registries[name] = state
	}
	var shown []prometheus.Metric
	for _, o := range decided.Outcomes {
		if p.unpatched { // a Pod's record may lack what this pass has seen: its targets are still needed
			o.Released, o.Kept = false, o.Registration.Status.Targets
		}
		if vanished(o.Registration) {
			p.errs = append(p.errs, p.ignoreConflict(p.dropUsers(ctx, o.Registration.Name, o.Kept)))
			continue
		}
		status := plan.Status(o, p.snapshot.Registries, p.snapshot.Now)
		shown = append(shown, metricsOf(p.snapshot.Namespace, o, status)...)
		p.errs = append(p.errs, p.ignoreConflict(client.IgnoreNotFound(p.finishOne(ctx, o, status))))
	}
	p.metrics.registrations.show(p.snapshot.Namespace, shown)
}

func (p *pass) finishOne(ctx context.Context, o plan.Outcome, status usherv1alpha1.RegistrationStatus) error {
	r, next := o.Registration, o.Registration.DeepCopy()
	if !o.Released && !equality.Semantic.DeepEqual(status, r.Status) {
		next.Status = status
		if err := p.write(ctx, "write the status of Registration", r, next, true); err != nil {
			return err
		}
	}
	err := p.dropUsers(ctx, r.Name, o.Kept)
	if err != nil || !o.Released || !controllerutil.RemoveFinalizer(next, usherv1alpha1.Finalizer) {
		return err
	}
	return p.write(ctx, "remove the finalizer from Registration", r, next, false)
}

// ignoreConflict leaves an object that changed during the pass to the next one.
func (p *pass) ignoreConflict(err error) error {
	if apierrors.IsConflict(err) {
		p.again(soon)
		return nil
	}
	return err
}
