// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/finishing"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// finishPods deletes the Pods that have drained and whose reason holds. Whoever asked may have given
// up, may come back in minutes only, or may be refused because the drain itself has made the Pod
// unready.
func (r *Reconciler) finishPods(ctx context.Context, s stage) stage {
	finishes := s.decided.Finishes
	if len(finishes) == 0 {
		return s
	}
	byOwner := list.Only(finishes, func(f plan.Finish) bool { return f.OfOwner })
	seen, done := r.confirmReasons(ctx, s.seen, list.Map(byOwner, func(f plan.Finish) *corev1.Pod { return f.Pod }))
	changed := !reflect.DeepEqual(s.seen.snapshot.Owners, seen.snapshot.Owners)
	s = s.seeing(seen).with(done)
	if changed { // before the Pods are confirmed: a Pod that was to be finished as well may count now
		s, finishes = r.finishesAgain(s)
	}
	seen, gone, err := r.confirmPods(ctx, s.seen, plan.MayBeGone(s.seen.snapshot, finishes))
	if err != nil {
		unknown := trouble{message: "Cannot tell whether the owners of drained Pods still have others", err: err}
		s = s.with(r.setBack(refused)).with(results{troubles: []trouble{unknown}})
		finishes = list.Only(finishes, func(f plan.Finish) bool { return !f.OfOwner })
	} else if s = s.seeing(seen); gone {
		s, finishes = r.finishesAgain(s)
	}
	deletions := make([]deletion, len(finishes))
	workqueue.ParallelizeUntil(context.WithoutCancel(ctx), r.options.Workers, len(finishes), func(i int) {
		f := finishes[i]
		err := finishing.Delete(ctx, r.client, f.Pod, f.Request, f.PastBudget)
		deletions[i] = deletion{f, err, isOver(ctx), r.clock.Now()}
	})
	return s.with(results{deletions: deletions, setbacks: setbacksOf(deletions)})
}

// finishesAgain decides again which Pods are deleted; all else stays as it was decided.
func (r *Reconciler) finishesAgain(s stage) (stage, []plan.Finish) {
	again := r.decide(s)
	s.unlisted, s.departures, s.results = again.unlisted, again.departures, again.results
	return s, again.decided.Finishes
}

// setbacksOf are the Pods that could not be deleted as the pass has seen them. One that is gone is none.
func setbacksOf(deletions []deletion) (setbacks []setback) {
	for _, d := range deletions {
		switch {
		case apierrors.IsConflict(d.err):
			setbacks = append(setbacks, setback{raced, d.at})
		case d.err != nil && !apierrors.IsNotFound(d.err):
			setbacks = append(setbacks, setback{refused, d.at})
		}
	}
	return setbacks
}

// confirmReturns reads the owners from the API server that seem to want their Pods again: if the caches are old,
// and the requester asks no more, a Pod would come back for good that nobody wants.
func (r *Reconciler) confirmReturns(ctx context.Context, o *observation) (*observation, results) {
	if len(o.snapshot.Owners) == 0 {
		return o, results{}
	}
	pods, took := timed(r, func() []*corev1.Pod { return plan.Returns(o.snapshot) })
	o, done := r.confirmReasons(ctx, o, pods)
	return o, took.and(done)
}

// confirmReasons reads from the API server the owners that decide about these Pods.
func (r *Reconciler) confirmReasons(ctx context.Context, o *observation, pods []*corev1.Pod) (*observation, results) {
	known := maps.Clone(o.snapshot.Owners)
	for _, pod := range pods {
		if ref := plan.OwnerOf(pod); ref != nil {
			delete(known, *ref)
		}
	}
	owners := r.newOwners(ownerSource{r.reader, true}, known)
	for _, pod := range pods {
		owners.add(ctx, pod)
	}
	return o.with(o.snapshot.WithOwners(owners.found, o.snapshot.Nodes)), owners.results
}

// confirmPods reads Pods from the API server, and reports whether one of them differs from what the caches showed.
func (r *Reconciler) confirmPods(
	ctx context.Context, o *observation, pods []*corev1.Pod,
) (next *observation, changed bool, err error) {
	live := make([]corev1.Pod, len(pods))
	failed := registry.Each(ctx, len(pods), r.options.Workers, func(i int) error {
		return client.IgnoreNotFound(r.reader.Get(ctx, client.ObjectKeyFromObject(pods[i]), &live[i]))
	})
	if err := errors.Join(failed...); err != nil {
		return o, false, fmt.Errorf("read Pods of the same owner: %w", err)
	}
	fresh := make([]plan.ReadPod, len(pods))
	for i, pod := range pods {
		fresh[i] = plan.ReadPod{Name: pod.Name, UID: pod.UID, Pod: &live[i]}
	}
	next, changed = o.refreshing(fresh)
	return next, changed, nil
}
