// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/plan"
)

// indexOwner indexes objects by the UID of their controller, and Pods without
// one under orphanKey.
const (
	indexOwner = "usher.dev/owner"
	orphanKey  = "orphan"
)

func ownerOf(object client.Object) []string {
	if owner := metav1.GetControllerOf(object); owner != nil {
		return []string{string(owner.UID)}
	}
	return []string{orphanKey}
}

// observe reads all that a plan is made from.
func (r *Reconciler) observe(ctx context.Context, set *apps.CloneSet, now time.Time) (*plan.Snapshot, *revisions, error) {
	spec, err := specOf(set)
	if err != nil {
		return nil, nil, invalid(err)
	}
	known, err := r.syncRevisions(ctx, set)
	if err != nil {
		return nil, nil, err
	}
	pods, err := r.ownPods(ctx, set, now)
	if err != nil {
		return nil, nil, err
	}
	read := plan.Read(pods, r.readings.of(keyOf(set)))
	for _, pod := range read {
		if err := r.findRevision(ctx, set, known, pod.Revision()); err != nil {
			return nil, nil, err
		}
	}
	claims, err := r.ownClaims(ctx, set, pods, now)
	if err != nil {
		return nil, nil, err
	}
	elsewhere, err := r.elsewhere(ctx, set, pods, claims)
	if err != nil {
		return nil, nil, err
	}
	nodes, err := r.nodeLabels(ctx, spec.Spread, pods)
	if err != nil {
		return nil, nil, err
	}
	// What was read after the pass began counts from its reading, not from before.
	drained := r.drains.of(read, r.Clock.Now())
	refused, claimsRefused := r.tryTemplate(ctx, set, known, read), r.tryClaims(ctx, set)
	return &plan.Snapshot{
		Now: now, Set: set.Name, Deleting: set.DeletionTimestamp != nil,
		ExcludePreparingDelete: set.Labels[apps.LabelScalingExcludePreparingDelete] == "true",
		Spec:                   spec,
		Current:                known.current, Update: known.update, Revisions: known.byHash,
		UpdateRefused: refused.message, RefusedUntil: refused.until,
		Pods: pods, Readings: read, Drained: drained, Nodes: nodes,
		Claims: claims, Departed: r.departures.of(set, pods, claims), Elsewhere: elsewhere,
		ClaimsRefused: claimsRefused.message, ClaimsRefusedUntil: claimsRefused.until,
		Starts: r.Options.Parallel,
	}, known, nil
}

// ownPods are the set's Pods as the cache shows them, with what this controller
// wrote last laid over.
func (r *Reconciler) ownPods(ctx context.Context, set *apps.CloneSet, now time.Time) ([]*corev1.Pod, error) {
	if err := r.adoptOrphans(ctx, set); err != nil {
		return nil, err
	}
	cached, err := r.ListPods(ctx, set.Namespace, string(set.UID))
	if err != nil {
		return nil, err
	}
	if r.answers.lost(client.ObjectKeyFromObject(set)) {
		if err := r.lookAround(ctx, set, cached, now); err != nil {
			return nil, err
		}
		// Listed anew: the watch may have shown a removal meanwhile, and forgotten the
		// answer that hides the Pod in the older list.
		if cached, err = r.ListPods(ctx, set.Namespace, string(set.UID)); err != nil {
			return nil, err
		}
	}
	pods, doubtful := r.writes.merge(set.UID, cached, now)
	for _, entry := range doubtful {
		if err := r.lookUp(ctx, set, entry, now); err != nil {
			return nil, err
		}
	}
	if len(doubtful) > 0 {
		// Laid over anew: a Pod that was looked up in vain, or is somebody else's,
		// must not count in the budgets of the very pass that found it out. And listed
		// anew, since the watch may have forgotten an answer in the meantime that an
		// older list needs.
		if cached, err = r.ListPods(ctx, set.Namespace, string(set.UID)); err != nil {
			return nil, err
		}
		pods, _ = r.writes.merge(set.UID, cached, now)
	}
	return r.releaseStrays(ctx, set, pods)
}

// lookUp settles what the cache has contradicted for too long: a lost watch
// event must not freeze the set.
func (r *Reconciler) lookUp(ctx context.Context, set *apps.CloneSet, entry written, now time.Time) error {
	live := &corev1.Pod{}
	err := r.Reader.Get(ctx, client.ObjectKeyFromObject(entry.object), live)
	switch {
	case apierrors.IsNotFound(err) || (err == nil && live.UID != entry.object.UID):
		// Gone: not there until the cache has seen it go, whatever older version
		// the cache still shows.
		r.writes.forget(entry.object.UID)
		r.writes.note(set.UID, written{object: entry.object, created: entry.created, deleted: true, at: now})
	case err != nil:
		return fmt.Errorf("look up Pod %s: %w", entry.object.Name, err)
	default:
		r.writes.forget(entry.object.UID)
		ours := metav1.IsControlledBy(live, set)
		r.writes.note(set.UID, written{object: live, created: entry.created, deleted: !ours, at: now})
	}
	return nil
}

// adoptOrphans takes over Pods that match the selector and belong to nobody.
// Pods of other owners are never touched.
func (r *Reconciler) adoptOrphans(ctx context.Context, set *apps.CloneSet) error {
	if set.DeletionTimestamp != nil {
		return nil
	}
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector.AsMeta())
	if err != nil {
		return invalid(fmt.Errorf("spec.selector: %w", err))
	}
	orphans, err := r.ListPods(ctx, set.Namespace, orphanKey)
	if err != nil {
		return err
	}
	for _, pod := range orphans {
		if !adoptable(pod, selector) {
			continue
		}
		if err := r.adopt(ctx, set, selector, pod); err != nil {
			return fmt.Errorf("adopt Pod %s: %w", pod.Name, err)
		}
	}
	return nil
}

func adoptable(pod *corev1.Pod, selector labels.Selector) bool {
	return pod.DeletionTimestamp == nil && metav1.GetControllerOfNoCopy(pod) == nil && selector.Matches(labels.Set(pod.Labels))
}

// adopt takes a Pod over. One that has changed is read again: a kubelet writes
// status all the time, and such a change brings the set here no second time.
func (r *Reconciler) adopt(ctx context.Context, set *apps.CloneSet, selector labels.Selector, pod *corev1.Pod) error {
	err := r.tryAdopt(ctx, set, pod)
	if !apierrors.IsConflict(err) {
		return err
	}
	live := &corev1.Pod{}
	if err := r.Reader.Get(ctx, client.ObjectKeyFromObject(pod), live); err != nil {
		return client.IgnoreNotFound(err)
	}
	if live.UID != pod.UID || !adoptable(live, selector) {
		return nil // the watch shows it, and brings the set here again
	}
	return r.tryAdopt(ctx, set, live)
}

func (r *Reconciler) tryAdopt(ctx context.Context, set *apps.CloneSet, pod *corev1.Pod) error {
	patch, err := r.adoption(ctx, set, pod)
	if patch == nil || err != nil {
		return err
	}
	adopted := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
	err = r.Client.Patch(ctx, adopted, client.RawPatch(types.StrategicMergePatchType, patch))
	if apierrors.IsNotFound(err) {
		// It may have been adopted before, and the cache may lag behind that too.
		r.learnGone(set, pod)
		return nil
	}
	if err != nil {
		return err
	}
	r.writes.note(set.UID, written{object: adopted, created: true, at: r.Clock.Now()})
	return nil
}

// adoption is the patch that makes an object the set's; nil if the set must not
// adopt it.
func (r *Reconciler) adoption(ctx context.Context, set *apps.CloneSet, object client.Object) ([]byte, error) {
	// The cache may be old: a set of this name that is being deleted, or is
	// another one by now, adopts nothing.
	live := &apps.CloneSet{}
	if err := r.Reader.Get(ctx, client.ObjectKeyFromObject(set), live); err != nil {
		return nil, fmt.Errorf("get CloneSet before an adoption: %w", err)
	}
	r.answers.note(live)
	if live.UID != set.UID || live.DeletionTimestamp != nil {
		return nil, nil
	}
	return encode(map[string]any{"metadata": map[string]any{
		"uid": object.GetUID(), "resourceVersion": object.GetResourceVersion(),
		"ownerReferences": []metav1.OwnerReference{*metav1.NewControllerRef(set, apps.KindCloneSet)},
	}})
}
