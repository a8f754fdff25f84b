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
	"github.com/usher-dev/usher/internal/cloneset/write"
	"github.com/usher-dev/usher/internal/list"
)

// pullsKey is the key of indexOwner for the pull Pods of a set.
func pullsKey(set string) string { return "pulls/" + set }

// pullsFor returns the UID of the set for which a Pod pulls an image; "" if it is none.
func pullsFor(object client.Object) string { return object.GetLabels()[apps.LabelPullsFor] }

// prepareAll prepares a pass with the set's pull Pods.
func (r *Reconciler) prepareAll(ctx context.Context, set *apps.CloneSet, now time.Time) (*plan.Snapshot, *revisions, error) {
	pods, err := r.ListPods(ctx, set.Namespace, pullsKey(string(set.UID)))
	if err != nil {
		return nil, nil, err
	}
	s, known, err := r.prepare(ctx, set, now)
	if err != nil {
		return nil, nil, err
	}
	s.Pulls = plan.Pulls{Possible: r.Options.PullImage != "", RefusedUntil: r.passState(keyOf(set)).pullsRefusedUntil, GivenUp: r.passState(keyOf(set)).pullsGivenUp, Pods: pods}
	return s, known, r.listImages(ctx, s)
}

// listImages reads which images the nodes of Pods that may be updated list.
func (r *Reconciler) listImages(ctx context.Context, s *plan.Snapshot) error {
	if !s.Pulls.Possible || s.Spec.Pull.Off || s.Deletion != plan.NotDeleted {
		return nil
	}
	s.Pulls.Listed = map[string][]corev1.ContainerImage{}
	old := list.Only(s.PodInfos, func(pod *plan.PodInfo) bool { return pod.Revision() != s.Update.Name })
	remedy := ", or the annotation " + apps.AnnotationImagesFirst + "=false on the CloneSet"
	return r.readNodes(ctx, list.Map(old, (*plan.PodInfo).Pod), "", remedy, func(node *corev1.Node) { s.Pulls.Listed[node.Name] = node.Status.Images })
}

// pullImages creates and deletes pull Pods.
func (r *Reconciler) pullImages(ctx context.Context, set *apps.CloneSet, decided *plan.Plan) error {
	ended, created := make([]error, len(decided.EndPulls)), make([]error, len(decided.Pulls))
	r.Each(r.Width.Now, len(ended), func(i int) {
		if pod := decided.EndPulls[i]; pod.DeletionTimestamp == nil {
			ended[i] = client.IgnoreNotFound(r.remove(ctx, pod, client.Preconditions{UID: &pod.UID}))
		}
	})
	r.Each(r.Width.Now, len(created), func(i int) { created[i] = r.createPull(ctx, set, &decided.Pulls[i]) })
	kept := r.passState(keyOf(set))
	kept.pullsGivenUp = givenUpAfter(kept.pullsGivenUp, decided.PullsGivenUp, r.Clock.Now())
	for i, err := range created {
		if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
			// The update goes on as if there were no pull Pods.
			kept.pullsRefusedUntil, decided.More = r.Clock.Now().Add(refusedFor), true
			decided.PullsSkipped = []string{fmt.Sprintf("the API server refuses the Pod that pulls image %s: %v", decided.Pulls[i].Image, err)}
			created[i] = nil
		}
	}
	if skipped := strings.Join(decided.PullsSkipped, "; "); skipped != "" && skipped != kept.reported.pullsSkipped {
		kept.reported.pullsSkipped = skipped
		r.normal(set, "ImagePullSkipped", "Pull", "Pods leave service before their node has the new image: %s", skipped)
	}
	return errors.Join(slices.Concat(ended, created)...)
}

// givenUpFor is how long a node is not asked again to pull an image whose pull Pod did not run.
const givenUpFor = 10 * time.Minute

// givenUpAfter returns until when nodes do not pull images: those of before that still count, and more
// that a plan has given up.
func givenUpAfter(before map[plan.ImageOnNode]time.Time, more []plan.ImageOnNode, now time.Time) map[plan.ImageOnNode]time.Time {
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
