// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/cloneset/write"
)

// resizeRefusal is the API server's refusal of a resize: only the user can fix it.
type resizeRefusal struct {
	pod        string
	containers []string
	err        error
}

// Error names what was refused and what to do.
func (r *resizeRefusal) Error() string {
	return fmt.Sprintf("the API server does not resize containers %s of Pod %s (%v): change the resources in spec.template, restore the previous ones, or delete the Pod so that it is recreated",
		strings.Join(r.containers, ", "), r.pod, r.err)
}

// Unwrap returns the API server's answer.
func (r *resizeRefusal) Unwrap() error { return r.err }

// patchResize writes the cpu and memory that an update asks for, on top of the answer to
// the write of its record. Only the subresource resize can change them.
func (r *Reconciler) patchResize(ctx context.Context, set *apps.CloneSet, pod *corev1.Pod, a plan.Action) (*corev1.Pod, error) {
	if a.Verb != plan.Update && a.Verb != plan.Continue {
		return pod, nil
	}
	data, err := write.Resize(pod, &a)
	if err != nil || data == nil {
		return pod, err
	}
	patched, err := sendPatch(ctx, r.Client, "resize", pod, types.JSONPatchType, data)
	if err == nil {
		r.pods.noteLive(set, patched, r.Clock.Now())
		return patched, nil
	}
	if err = r.unresizable(ctx, pod, err); isConflict(err) || !refusedForGood(err) {
		return nil, err
	}
	return nil, &resizeRefusal{pod: pod.Name, containers: slices.Sorted(maps.Keys(inplace.Resizes(pod))), err: err}
}

func refusedForGood(err error) bool { return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) }

// unresizable distinguishes an API server without resize from a Pod that is gone: both
// answer that something was not found.
func (r *Reconciler) unresizable(ctx context.Context, pod *corev1.Pod, err error) error {
	if apierrors.IsNotFound(err) {
		if _, exists, getErr := getLive(ctx, r.Reader, pod); getErr != nil || !exists {
			return cmp.Or(getErr, err)
		}
	} else if !apierrors.IsMethodNotSupported(err) {
		return err
	}
	return apierrors.NewForbidden(corev1.Resource("pods/resize"), pod.Name,
		fmt.Errorf("it has no subresource pods/resize, which Kubernetes has since 1.33: %w", err))
}
