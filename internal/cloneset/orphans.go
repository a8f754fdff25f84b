// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// adoptRevisions takes over the revisions of this set's name and labels that
// belong to nobody: a set of this name was deleted without its Pods. The Pods are
// adopted too, and one whose revision the set does not know would be recreated.
func (r *Reconciler) adoptRevisions(ctx context.Context, set *apps.CloneSet) error {
	if set.DeletionTimestamp != nil {
		return nil
	}
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector.AsMeta())
	if err != nil {
		return invalid(fmt.Errorf("spec.selector: %w", err))
	}
	var orphans appsv1.ControllerRevisionList
	err = r.Client.List(ctx, &orphans, client.InNamespace(set.Namespace),
		client.MatchingFields{indexOwner: orphanKey}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return fmt.Errorf("list orphaned revisions: %w", err)
	}
	for i := range orphans.Items {
		object := &orphans.Items[i]
		hash, named := strings.CutPrefix(object.Name, set.Name+"-")
		if !named || strings.Contains(hash, "-") || object.DeletionTimestamp != nil || !selector.Matches(labels.Set(object.Labels)) {
			continue
		}
		if _, err := r.adoptRevision(ctx, set, object); err != nil {
			return err
		}
	}
	return nil
}

// adoptRevision returns nil if the set is gone or going, or the revision has
// changed since it was seen.
func (r *Reconciler) adoptRevision(ctx context.Context, set *apps.CloneSet, object *appsv1.ControllerRevision) (*appsv1.ControllerRevision, error) {
	patch, err := r.adoption(ctx, set, object)
	if err != nil || patch == nil {
		return nil, err
	}
	adopted := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: object.Namespace, Name: object.Name}}
	err = r.Client.Patch(ctx, adopted, client.RawPatch(types.StrategicMergePatchType, patch))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil, nil // findRevision and the next pass ask for it again
	}
	if err != nil {
		return nil, fmt.Errorf("adopt revision %s: %w", object.Name, err)
	}
	r.answers.noteRevision(set, adopted)
	return adopted, nil
}
