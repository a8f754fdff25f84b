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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/list"
)

// finished is the result of the last writes of a pass.
type finished struct {
	err error
	// more means that another pass has to follow at once.
	more bool
	// verifyAt is when the first answer that the cache has not confirmed must be looked up; zero if there
	// is none.
	verifyAt time.Time
}

// finish makes the writes that follow the status: it removes finished names from podsToDelete, and the
// finalizer from a deleted set without Pods. Then it ends the pass for the returns.
func (r *Reconciler) finish(ctx context.Context, after *observation, decided *plan.Plan, done *results) finished {
	set := after.set
	pruned := r.prunePodsToDelete(ctx, set, decided.PrunePodsToDelete, done.outcomes)
	verifyAt := list.Earliest(r.pods.VerifyAt(set.UID), r.claims.VerifyAt(set.UID))
	found, ended := r.endDeletion(ctx, after, decided.More || done.more())
	unfinished := r.shared(keyOf(set)).executor.Close(len(done.actions) > 0)
	return finished{err: errors.Join(pruned, ended), more: found || unfinished, verifyAt: verifyAt}
}

// prunePodsToDelete removes the names of deleted Pods from spec.scaleStrategy.podsToDelete. A concurrent
// edit by the user wins; the next pass prunes then.
func (r *Reconciler) prunePodsToDelete(ctx context.Context, set *apps.CloneSet, names []string, outcomes []outcome) error {
	done, err := r.doneWith(ctx, set, names, outcomes)
	if err != nil || len(done) == 0 {
		return err
	}
	set = r.shared(keyOf(set)).newest(set)
	remaining := slices.DeleteFunc(slices.Clone(set.Spec.ScaleStrategy.PodsToDelete), func(name string) bool {
		return slices.Contains(done, name)
	})
	change := map[string]any{"spec": map[string]any{"scaleStrategy": map[string]any{"podsToDelete": remaining}}}
	pruned, err := mergeVersion(ctx, r, "", set, change)
	if err != nil {
		return fmt.Errorf("prune podsToDelete: %w", err)
	}
	r.shared(keyOf(pruned)).keepAnswer(pruned)
	r.normal(set, "PodsToDeleteTrimmed", "Trim",
		"removed the names of Pods that are gone from scaleStrategy.podsToDelete: %s", strings.Join(done, ", "))
	return nil
}

// doneWith returns the names whose Pods are certainly gone: a delete may have failed, and
// the cache may not show a new Pod yet.
func (r *Reconciler) doneWith(ctx context.Context, set *apps.CloneSet, names []string, outcomes []outcome) ([]string, error) {
	var done []string
	for _, name := range names {
		i := slices.IndexFunc(outcomes, func(o outcome) bool { return o.action.Pod != nil && o.action.Pod.Name == name })
		if i >= 0 {
			if outcomes[i].err == nil {
				done = append(done, name)
			}
			continue
		}
		pod := &corev1.Pod{}
		err := r.Reader.Get(ctx, client.ObjectKey{Namespace: set.Namespace, Name: name}, pod)
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("look up Pod %s of podsToDelete: %w", name, err)
		}
		if err != nil || pod.DeletionTimestamp != nil || !metav1.IsControlledBy(pod, set) {
			done = append(done, name)
		}
	}
	return done, nil
}
