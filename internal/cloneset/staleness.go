// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// answers remembers the CloneSets as the API server last returned them, and the sets for
// which an answer was lost: a request that timed out may have created a Pod, or taken one
// out of service, and the cache may not show it yet.
type answers struct {
	mu    sync.Mutex
	sets  map[types.NamespacedName]*apps.CloneSet
	stale map[types.NamespacedName]bool
	// uids are the UIDs of the sets, by name.
	uids map[types.NamespacedName]types.UID
	// made are each set's new revisions that the cache may not show yet.
	made map[types.NamespacedName][]*appsv1.ControllerRevision
}

func newAnswers() *answers {
	return &answers{
		sets: map[types.NamespacedName]*apps.CloneSet{}, stale: map[types.NamespacedName]bool{}, uids: map[types.NamespacedName]types.UID{},
		made: map[types.NamespacedName][]*appsv1.ControllerRevision{},
	}
}

// note keeps an answer, which must not change any more.
func (a *answers) note(set *apps.CloneSet) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sets[client.ObjectKeyFromObject(set)] = set
}

// newest returns the later of the cached set and the answer. It keeps the answer until
// something later appears: a caller that passes the answer itself must not make the next
// pass believe an older cache.
func (a *answers) newest(cached *apps.CloneSet) *apps.CloneSet {
	a.mu.Lock()
	defer a.mu.Unlock()
	name := client.ObjectKeyFromObject(cached)
	answered, ok := a.sets[name]
	if !ok {
		return cached
	}
	order, err := resourceversion.CompareResourceVersion(answered.ResourceVersion, cached.ResourceVersion)
	if err != nil || order < 0 || answered.UID != cached.UID {
		delete(a.sets, name)
		return cached
	}
	return answered
}

// markStale notes that the cache may lack the effect of a request; markFresh notes that the
// API server has been asked.
func (a *answers) markStale(set types.NamespacedName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stale[set] = true
}

func (a *answers) markFresh(set types.NamespacedName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.stale, set)
}

func (a *answers) isStale(set types.NamespacedName) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stale[set]
}

// forget drops a set that is gone, and returns its UID.
func (a *answers) forget(set types.NamespacedName) types.UID {
	a.mu.Lock()
	defer a.mu.Unlock()
	uid := a.uids[set]
	delete(a.sets, set)
	delete(a.stale, set)
	delete(a.made, set)
	delete(a.uids, set)
	return uid
}

// named keeps the UID of a set.
func (a *answers) named(set *apps.CloneSet) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.uids[client.ObjectKeyFromObject(set)] = set.UID
}

// noteRevision keeps a revision as the API server returned it.
func (a *answers) noteRevision(set *apps.CloneSet, object *appsv1.ControllerRevision) {
	a.mu.Lock()
	defer a.mu.Unlock()
	name := client.ObjectKeyFromObject(set)
	others := slices.DeleteFunc(a.made[name], func(o *appsv1.ControllerRevision) bool { return o.Name == object.Name })
	a.made[name] = append(others, object)
}

// revisions overlays the cache with the answers. It forgets an answer once the cache has
// the same version or a later one.
func (a *answers) revisions(set *apps.CloneSet, cached []*appsv1.ControllerRevision) []*appsv1.ControllerRevision {
	a.mu.Lock()
	defer a.mu.Unlock()
	name := client.ObjectKeyFromObject(set)
	out := slices.Clone(cached)
	a.made[name] = slices.DeleteFunc(a.made[name], func(made *appsv1.ControllerRevision) bool {
		i := slices.IndexFunc(out, func(o *appsv1.ControllerRevision) bool { return o.Name == made.Name })
		switch {
		case !metav1.IsControlledBy(made, set):
			return true
		case i < 0:
			out = append(out, made)
			return false
		}
		order, err := resourceversion.CompareResourceVersion(made.ResourceVersion, out[i].ResourceVersion)
		if err != nil || order <= 0 {
			return true
		}
		out[i] = made
		return false
	})
	return out
}

// unanswered reports whether nobody knows if a request took effect: there is an error,
// and it is not the API server's refusal.
func unanswered(err error) bool {
	if err == nil || isConflict(err) {
		return false
	}
	refusals := []func(error) bool{
		apierrors.IsConflict, apierrors.IsNotFound, apierrors.IsAlreadyExists, apierrors.IsInvalid, apierrors.IsForbidden,
		apierrors.IsBadRequest, apierrors.IsTooManyRequests, apierrors.IsUnauthorized,
	}
	return !slices.ContainsFunc(refusals, func(refused func(error) bool) bool { return refused(err) })
}

// anyUnanswered reports whether the answer to a write of the pass was lost.
func anyUnanswered(outcomes []outcome) bool {
	return slices.ContainsFunc(outcomes, func(o outcome) bool { return unanswered(o.err) })
}

// readSet reads a CloneSet at least as new as the previous pass left it; nil if there is
// none.
func (r *Reconciler) readSet(ctx context.Context, name types.NamespacedName) (*apps.CloneSet, error) {
	set := &apps.CloneSet{}
	var reader client.Reader = r.Client
	stale := r.answers.isStale(name)
	if stale {
		reader = r.Reader
	}
	if err := reader.Get(ctx, name, set); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("get CloneSet: %w", err)
	}
	r.answers.named(set)
	if stale {
		r.answers.note(set) // the cache may still show an older one in the next pass
		return set, nil
	}
	return r.answers.newest(set), nil
}

// relistPods asks the API server for the set's Pods after an answer was lost, so that the
// effect of the lost request is known before the next decision.
func (r *Reconciler) relistPods(ctx context.Context, set *apps.CloneSet, cached []*corev1.Pod, now time.Time) error {
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector.AsMeta())
	if err != nil {
		return invalid(fmt.Errorf("spec.selector: %w", err))
	}
	var live corev1.PodList
	if err := r.Reader.List(ctx, &live, client.InNamespace(set.Namespace), client.MatchingLabelsSelector{Selector: selector}); err != nil {
		return fmt.Errorf("list Pods after a lost answer: %w", err)
	}
	found := map[types.UID]*corev1.Pod{}
	for i := range live.Items {
		found[live.Items[i].UID] = &live.Items[i]
	}
	// Include created Pods that the cache has not shown: it may never show them.
	seen := append(r.writes.all(set.UID), cached...)
	if err := r.getUnlisted(ctx, seen, found); err != nil {
		return err
	}
	// Note them all at once: if the watch reports the removal of a Pod meanwhile, that
	// Pod would be forgotten, while the list from the cache still shows it.
	for _, pod := range found {
		if metav1.IsControlledBy(pod, set) {
			r.writes.note(set.UID, written{object: pod, created: true, at: now})
		}
	}
	for _, pod := range seen {
		switch live := found[pod.UID]; {
		case live == nil:
			r.noteGone(set, pod)
		case !metav1.IsControlledBy(live, set):
			r.noteLive(set, live)
		}
	}
	if err := r.relistClaims(ctx, set, now); err != nil {
		return err
	}
	r.answers.markFresh(client.ObjectKeyFromObject(set))
	return nil
}

// getUnlisted asks for each Pod that the selector did not find: it is gone, or its labels
// have changed and it may still belong to the set.
func (r *Reconciler) getUnlisted(ctx context.Context, cached []*corev1.Pod, found map[types.UID]*corev1.Pod) error {
	for _, pod := range cached {
		if found[pod.UID] != nil {
			continue
		}
		live := &corev1.Pod{}
		err := r.Reader.Get(ctx, client.ObjectKeyFromObject(pod), live)
		switch {
		case client.IgnoreNotFound(err) != nil:
			return fmt.Errorf("look up Pod %s after a lost answer: %w", pod.Name, err)
		case err == nil && live.UID == pod.UID:
			found[pod.UID] = live
		}
	}
	return nil
}

// noteLive keeps the API server's version of a Pod after a write met a change, so that the
// next pass does not decide on the outdated cache.
func (r *Reconciler) noteLive(set *apps.CloneSet, live *corev1.Pod) {
	r.writes.note(set.UID, written{object: live, deleted: !metav1.IsControlledBy(live, set), at: r.Clock.Now()})
}

// noteGone records that the API server no longer has a Pod.
func (r *Reconciler) noteGone(set *apps.CloneSet, pod *corev1.Pod) {
	r.writes.note(set.UID, written{object: pod, deleted: true, at: r.Clock.Now()})
}
