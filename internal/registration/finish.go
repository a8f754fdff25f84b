// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"fmt"
	"maps"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/usher-dev/usher/internal/registration/finishing"
	"github.com/usher-dev/usher/internal/registration/plan"
)

// finishPods deletes the Pods that have drained and whose reason holds. Whoever asked may have given
// up, may come back in minutes only, or may be refused because the drain itself has made the Pod
// unready.
func (p *pass) finishPods(ctx context.Context, decided plan.Plan) {
	finishes := decided.Finishes
	if len(finishes) == 0 {
		return
	}
	if p.confirmReasons(ctx, finishes) {
		finishes = p.decide().Finishes
	}
	workqueue.ParallelizeUntil(context.WithoutCancel(ctx), p.options.Workers, len(finishes), func(i int) { p.finishPod(ctx, &finishes[i]) })
}

// confirmReasons reads from the API server the owners whose objects are reasons, and reports whether one
// of them differs from what the caches showed.
func (p *pass) confirmReasons(ctx context.Context, finishes []plan.Finish) (changed bool) {
	before, owners := p.snapshot.Owners, ownersOfPods{pass: p, from: ownerSource{p.reader, true}, read: map[plan.OwnerRef]readOwner{}}
	p.snapshot.Owners = maps.Clone(before)
	for i := range finishes {
		if ref := plan.OwnerOf(finishes[i].Pod); finishes[i].OfOwner && ref != nil {
			delete(p.snapshot.Owners, *ref)
		}
	}
	for i := range finishes {
		if finishes[i].OfOwner {
			owners.add(ctx, finishes[i].Pod)
		}
	}
	return !reflect.DeepEqual(before, p.snapshot.Owners)
}

// finishPod deletes a Pod as the pass has seen it.
func (p *pass) finishPod(ctx context.Context, f *plan.Finish) {
	err := finishing.Delete(ctx, p.client, f.Pod, f.Request, f.PastBudget)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case apierrors.IsNotFound(err):
	case apierrors.IsConflict(err):
		p.again(batchDelay)
	case err != nil:
		p.again(refusedRetry)
		if ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "Cannot delete a Pod that has drained", keyPod, f.Pod.Name)
			p.announcer.warn(f.Pod, eventRefused, actionDelete, "The Pod has drained, and Usher cannot delete it: "+err.Error())
		}
	default:
		p.announcer.say(f.Pod, eventFinished, actionDelete, fmt.Sprintf(
			"The Pod has drained for %s, and %s: Usher deletes it.", f.Request.By, f.Because))
	}
}
