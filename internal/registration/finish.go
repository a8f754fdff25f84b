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
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/finishing"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// finishPods deletes the Pods that have drained and whose reason holds. Whoever asked may have given
// up, may come back in minutes only, or may be refused because the drain itself has made the Pod
// unready.
func (p *pass) finishPods(ctx context.Context, decided plan.Plan) {
	finishes := decided.Finishes
	if len(finishes) == 0 {
		return
	}
	byOwner := list.Only(finishes, func(f plan.Finish) bool { return f.OfOwner })
	changed := p.confirmReasons(ctx, list.Map(byOwner, func(f plan.Finish) *corev1.Pod { return f.Pod }))
	gone, err := p.confirmPods(ctx, plan.MayBeGone(p.snapshot, finishes))
	if err != nil {
		p.again(refusedRetry)
		log.FromContext(ctx).Error(err, "Cannot tell whether the owners of drained Pods still have others")
		finishes = list.Only(finishes, func(f plan.Finish) bool { return !f.OfOwner })
	} else if changed || gone {
		finishes = p.decide().Finishes
	}
	workqueue.ParallelizeUntil(context.WithoutCancel(ctx), p.options.Workers, len(finishes), func(i int) { p.finishPod(ctx, &finishes[i]) })
}

// confirmReturns reads the owners from the API server that seem to want their Pods again: if the caches are old,
// and the requester asks no more, a Pod would come back for good that nobody wants.
func (p *pass) confirmReturns(ctx context.Context) {
	if len(p.snapshot.Owners) > 0 {
		p.confirmReasons(ctx, timed(p, func() []*corev1.Pod { return plan.Returns(p.snapshot) }))
	}
}

// confirmReasons reads from the API server the owners that decide about these Pods, and reports whether one
// of them differs from what the caches showed.
func (p *pass) confirmReasons(ctx context.Context, pods []*corev1.Pod) (changed bool) {
	before := p.snapshot.Owners
	owners := ownersOfPods{pass: p, from: ownerSource{p.reader, true}, read: map[plan.OwnerRef]readOwner{}}
	p.snapshot.Owners = maps.Clone(before)
	for _, pod := range pods {
		if ref := plan.OwnerOf(pod); ref != nil {
			delete(p.snapshot.Owners, *ref)
		}
	}
	for _, pod := range pods {
		owners.add(ctx, pod)
	}
	return !reflect.DeepEqual(before, p.snapshot.Owners)
}

// confirmPods reads Pods from the API server, and reports whether one of them differs from what the caches showed.
func (p *pass) confirmPods(ctx context.Context, pods []*corev1.Pod) (changed bool, err error) {
	live := make([]corev1.Pod, len(pods))
	failed := registry.Each(ctx, len(pods), p.options.Workers, func(i int) error {
		return client.IgnoreNotFound(p.reader.Get(ctx, client.ObjectKeyFromObject(pods[i]), &live[i]))
	})
	if err := errors.Join(failed...); err != nil {
		return false, fmt.Errorf("read Pods of the same owner: %w", err)
	}
	for i, pod := range pods {
		changed = p.refreshPod(pod.Name, pod.UID, &live[i]) || changed
	}
	return changed, nil
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
