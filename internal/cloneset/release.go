// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// releaseStrays lets go of the set's Pods that its selector does not match any
// more, and gives the others. Somebody took them out to look at them: they are
// left running as they are, and replaced. A Pod on its way out of the cluster
// goes with its set.
func (r *Reconciler) releaseStrays(ctx context.Context, set *apps.CloneSet, pods []*corev1.Pod) ([]*corev1.Pod, error) {
	if set.DeletionTimestamp != nil {
		return pods, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector.AsMeta())
	if err != nil {
		return nil, invalid(fmt.Errorf("spec.selector: %w", err))
	}
	kept := make([]*corev1.Pod, 0, len(pods))
	for _, pod := range pods {
		if pod.DeletionTimestamp != nil || selector.Matches(labels.Set(pod.Labels)) {
			kept = append(kept, pod)
			continue
		}
		if err := r.release(ctx, set, pod); err != nil {
			return nil, err
		}
	}
	return kept, nil
}

// release takes the set out of the Pod's owners. What meets a change fails the
// pass: whether the Pod still holds a place is to be known before another one is
// made for it.
func (r *Reconciler) release(ctx context.Context, set *apps.CloneSet, pod *corev1.Pod) error {
	err := r.retryUnchanged(ctx, set, pod, func(pod *corev1.Pod) error {
		data, err := releasePatch(pod, set.UID)
		if err != nil {
			return err
		}
		released := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
		if err := r.Client.Patch(ctx, released, client.RawPatch(types.JSONPatchType, data)); err != nil {
			return err
		}
		r.writes.note(set.UID, written{object: released, deleted: true, at: r.Clock.Now()})
		return nil
	})
	if apierrors.IsNotFound(err) {
		return nil // gone, as the pass knows by now
	}
	if err != nil {
		return fmt.Errorf("release Pod %s, which spec.selector does not match any more: %w", pod.Name, err)
	}
	r.normal(set, "PodReleased", "Release", "Pod %s does not match spec.selector any more: it is left running, and replaced", pod.Name)
	return nil
}

// releasePatch takes an owner off a Pod. It rests on the labels that do not match.
func releasePatch(pod *corev1.Pod, owner types.UID) ([]byte, error) {
	p := basis(pod)
	i := slices.IndexFunc(pod.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == owner })
	switch {
	case i < 0: // nothing to take off; the tests say whether that is so
	case len(pod.OwnerReferences) == 1:
		p.remove("/metadata/ownerReferences")
	default:
		p.remove(fmt.Sprintf("/metadata/ownerReferences/%d", i))
	}
	return p.encode()
}
