// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/kube"
)

// This file holds what is different in a pass over a CloneSet that is being deleted.

// observeDeleted observes a set that is being deleted. It reads only fields of the spec that even an
// old, illegal spec has, adopts nothing and creates no revision: an error there must not hold up the
// deletion. The garbage collector deletes the claims.
func (r *Reconciler) observeDeleted(
	ctx context.Context, set *apps.CloneSet, pulling []*corev1.Pod, now time.Time,
) (*observation, error) {
	pods, err := r.ownPods(ctx, set, now)
	if err != nil {
		return nil, err
	}
	r.claims.Drop(set.UID) // no pass looks at them again
	known := &revisions{
		current:    &revision.Revision{Name: set.Status.CurrentRevision},
		update:     &revision.Revision{Name: set.Status.UpdateRevision},
		collisions: ptr.Deref(set.Status.CollisionCount, 0),
	}
	how, _ := plan.DeletionOf(set)
	kept := r.passState(keyOf(set))
	return &observation{set: set, revisions: known, adoptAt: kept.adoptAt(), snapshot: &plan.Snapshot{
		Now: now, Set: set.Name, Deletion: how, Starts: r.starts(len(pods)),
		Spec: plan.Spec{
			Hooks: lifecycle.FromSpec(set.Spec.Lifecycle), MinReady: time.Duration(set.Spec.MinReadySeconds) * time.Second,
		},
		Current: known.current, Update: known.update,
		Pods: pods, PodInfos: plan.ReadPods(pods, kept.podInfos), Deferred: kept.deferrals.observed(pods),
		Pulls: r.pullsOf(set, pulling),
	}}, nil
}

// syncFinalizer adds the finalizer to a set that needs it, or removes it. It returns the
// set as it is then; nil if it is gone.
func (r *Reconciler) syncFinalizer(ctx context.Context, set *apps.CloneSet) (*apps.CloneSet, error) {
	_, hold := plan.DeletionOf(set)
	if slices.Contains(set.Finalizers, apps.FinalizerPreDelete) != hold {
		return r.setFinalizer(ctx, set, hold)
	}
	return existing(set), nil
}

// existing returns nil for a deleted set without finalizers: it is gone, and the cache does not show
// that yet.
func existing(set *apps.CloneSet) *apps.CloneSet {
	if set != nil && set.DeletionTimestamp != nil && len(set.Finalizers) == 0 {
		return nil
	}
	return set
}

// setFinalizer adds or removes the finalizer. It depends on the version of the set: the hook
// may have come or gone, and the finalizers are a list.
func (r *Reconciler) setFinalizer(ctx context.Context, set *apps.CloneSet, hold bool) (*apps.CloneSet, error) {
	finalizers := slices.DeleteFunc(slices.Clone(set.Finalizers), func(f string) bool { return f == apps.FinalizerPreDelete })
	if hold {
		finalizers = append(finalizers, apps.FinalizerPreDelete)
	}
	written, err := r.writeSet(ctx, "", set, map[string]any{"metadata": map[string]any{"finalizers": finalizers}})
	if err != nil {
		return nil, fmt.Errorf("write the finalizer %s: %w", apps.FinalizerPreDelete, err)
	}
	return existing(written), nil
}

// endDeletion removes the finalizer from a deleted set whose Pods have all passed the preDelete hook.
// It asks the API server first: a Pod that the cache does not show yet, such as one that another
// process created, would be deleted without the hook.
//
// found means that there are such Pods, so another pass has to follow. With more, the caller has
// further actions, and the finalizer stays.
func (r *Reconciler) endDeletion(ctx context.Context, after *observation, more bool) (found bool, err error) {
	set := r.shared(keyOf(after.set)).newest(after.set)
	if _, hold := plan.DeletionOf(set); !hold || !after.snapshot.AllTerminating() {
		return false, nil
	}
	live, err := r.livePods(ctx, set)
	if err != nil {
		return false, err
	}
	for _, pod := range live {
		if pod.DeletionTimestamp == nil && metav1.IsControlledBy(pod, set) {
			r.pods.noteCreated(set, pod, r.Clock.Now())
			found = true
		}
	}
	if found || more {
		return found, nil
	}
	_, err = r.setFinalizer(ctx, set, false)
	return false, err
}

// The rest of this file handles deletions of Pods that are answered with 429 Too Many Requests, as
// Usher's guard does until a Pod is drained.

// deferredError means that a Pod is to be deleted later.
type deferredError struct {
	error
	// after is the time to wait.
	after time.Duration
}

func (e *deferredError) Unwrap() error { return e.error }

// deferral returns the error as a deferredError if it asks to wait.
func deferral(err error) error {
	if delay, waits := kube.Delay(err); waits {
		return &deferredError{error: err, after: delay}
	}
	return err
}

// deferred returns the deferral of an outcome; nil if there is none.
func (o outcome) deferred() *deferredError {
	wait, _ := errors.AsType[*deferredError](o.err)
	return wait
}

// deferrals are the deferred deletions of a set, by the Pod's UID.
type deferrals map[types.UID]plan.Deferral

// observed returns the deferrals for the planner.
func (d deferrals) observed(pods []*corev1.Pod) deferrals {
	if len(d) == 0 {
		return nil
	}
	out := make(deferrals, len(d))
	for _, pod := range pods {
		if known, ok := d[pod.UID]; ok {
			if !plan.Alike(pod, known.Pod) {
				known.Until = time.Time{}
			}
			out[pod.UID] = known
		}
	}
	return out
}

// deferralsAfter returns the deferrals after a pass: those of its outcomes, and earlier ones that still
// last.
func deferralsAfter(s *plan.Snapshot, outcomes []outcome, now time.Time) deferrals {
	remaining := deferrals{}
	maps.Copy(remaining, s.Deferred)
	maps.DeleteFunc(remaining, func(_ types.UID, known plan.Deferral) bool { return !s.Now.Before(known.Until) })
	for _, o := range outcomes {
		if wait := o.deferred(); wait != nil {
			pod := o.action.Pod
			remaining[pod.UID] = plan.Deferral{
				Since: cmp.Or(s.Deferred[pod.UID].Since, now), Until: now.Add(wait.after), Message: wait.Error(), Pod: pod,
			}
		}
	}
	return remaining
}

// withPromptDeletes returns a client like the manager's, except that a deletion of a Pod returns with
// the API server's first answer. client-go would itself repeat such a request up to ten times, and the
// worker would wait meanwhile.
func withPromptDeletes(mgr ctrl.Manager) (client.Client, error) {
	config := rest.CopyConfig(mgr.GetConfig())
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return promptDeletes{next} })
	return client.New(config, client.Options{
		Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), Cache: &client.CacheOptions{Reader: mgr.GetCache()},
	})
}

// promptDeletes drops the header Retry-After when a Pod is deleted; the answer's body has
// the time too.
type promptDeletes struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t promptDeletes) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(request)
	if err == nil && response.StatusCode == http.StatusTooManyRequests &&
		request.Method == http.MethodDelete && path.Base(path.Dir(request.URL.Path)) == "pods" {
		response.Header.Del("Retry-After")
	}
	return response, err
}
