// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/cloneset/write"
	"github.com/usher-dev/usher/internal/list"
)

// pullsKey returns the key of indexOwner for the pull Pods of a set.
func pullsKey(set string) string { return "pulls/" + set }

// pullsFor returns the UID of the set for which a pull Pod pulls an image; "" for other objects.
func pullsFor(object client.Object) string { return object.GetLabels()[apps.LabelPullsFor] }

// pullsOf returns what a plan needs to know of the set's pull Pods.
func (r *Reconciler) pullsOf(set *apps.CloneSet, pods []*corev1.Pod) plan.Pulls {
	kept := r.passState(keyOf(set))
	return plan.Pulls{
		Possible: r.Options.PullImage != "", RefusedUntil: kept.pullsRefusedUntil, GivenUp: kept.pullsGivenUp, Pods: pods,
	}
}

// listImages returns, by node, the images that a node lists. It reads the nodes of Pods that may be
// updated.
func (r *Reconciler) listImages(
	ctx context.Context, update *revision.Revision, pods []*plan.PodInfo,
) (map[string][]corev1.ContainerImage, error) {
	old := list.Only(pods, func(pod *plan.PodInfo) bool { return pod.Revision() != update.Name })
	remedy := ", or the annotation " + apps.AnnotationImagesFirst + "=false on the CloneSet"
	listed := map[string][]corev1.ContainerImage{}
	err := r.readNodes(ctx, list.Map(old, (*plan.PodInfo).Pod), "", remedy, func(node *corev1.Node) {
		listed[node.Name] = node.Status.Images
	})
	return listed, err
}

// pullResults are the results of the pull Pods of a plan.
type pullResults struct {
	// skipped says for which images Pods do not wait, and why.
	skipped []string
	// refusedUntil is until when no pull Pod is created, because the API server has refused one; zero if it
	// has not.
	refusedUntil time.Time
	// givenUp are the images that nodes do not pull, and until when.
	givenUp map[plan.ImageOnNode]time.Time
	err     error
}

// refused reports whether the API server has refused a pull Pod: the update goes on as if there were none.
func (p *pullResults) refused() bool { return !p.refusedUntil.IsZero() }

// pullImages creates and deletes pull Pods.
func (r *Reconciler) pullImages(ctx context.Context, before *observation, decided *plan.Plan) pullResults {
	ended, created := make([]error, len(decided.EndPulls)), make([]error, len(decided.Pulls))
	r.Each(r.Width.Now, len(ended), func(i int) {
		if pod := decided.EndPulls[i]; pod.DeletionTimestamp == nil {
			ended[i] = client.IgnoreNotFound(r.remove(ctx, pod, client.Preconditions{UID: &pod.UID}))
		}
	})
	r.Each(r.Width.Now, len(created), func(i int) { created[i] = r.createPull(ctx, before.set, &decided.Pulls[i]) })
	now := r.Clock.Now()
	done := pullResults{
		skipped: decided.PullsSkipped, givenUp: givenUpAfter(before.snapshot.Pulls.GivenUp, decided.PullsGivenUp, now),
	}
	for i, err := range created {
		if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
			done.refusedUntil = now.Add(refusedFor)
			done.skipped = []string{fmt.Sprintf("the API server refuses the Pod that pulls image %s: %v", decided.Pulls[i].Image, err)}
			created[i] = nil
		}
	}
	done.err = errors.Join(slices.Concat(ended, created)...)
	return done
}

// reportPulls records in an event for which images Pods do not wait, once.
func (r *Reconciler) reportPulls(set *apps.CloneSet, pulls *pullResults) {
	last, skipped := &r.passState(keyOf(set)).lastEvents, strings.Join(pulls.skipped, "; ")
	if skipped != "" && skipped != last.pullsSkipped {
		last.pullsSkipped = skipped
		r.normal(set, "ImagePullSkipped", "Pull", "Pods leave service before their node has the new image: %s", skipped)
	}
}

// givenUpFor is the time after which a node is asked again to pull an image whose pull Pod did not run.
const givenUpFor = 10 * time.Minute

// givenUpAfter returns the images that nodes do not pull, and until when: earlier ones that still
// count, and the ones that the plan gives up.
func givenUpAfter(
	before map[plan.ImageOnNode]time.Time, more []plan.ImageOnNode, now time.Time,
) map[plan.ImageOnNode]time.Time {
	until := map[plan.ImageOnNode]time.Time{}
	for on, at := range before {
		if now.Before(at) {
			until[on] = at
		}
	}
	for _, on := range more {
		until[on] = now.Add(givenUpFor)
	}
	return until
}

// createPull creates a pull Pod, unless there is one.
func (r *Reconciler) createPull(ctx context.Context, set *apps.CloneSet, pull *plan.Pull) error {
	pod, err := write.PullManifest(set, pull, r.Options.PullImage)
	if err != nil {
		return err
	}
	err = r.send("create", func() error { return r.Client.Create(ctx, pod) })
	if apierrors.IsAlreadyExists(err) {
		return nil // the cache does not show it yet, or its deletion will cause a pass
	}
	if err == nil {
		note := ""
		if pull.Policy == corev1.PullAlways {
			note = "imagePullPolicy is Always: the kubelet asks the registry again when it starts the container"
		}
		log.FromContext(ctx).Info("Pulling image", "image", pull.Image, "node", pull.Node, "pod", pod.Name, "note", note)
	}
	return err
}
