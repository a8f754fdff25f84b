// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// setOverlay overlays the cache with CloneSets as the API server last returned them. It
// also knows the sets whose cache is stale: a request that timed out may have created a
// Pod, or taken one out of service, and the cache may not show it yet.
type setOverlay struct {
	mu   sync.Mutex
	sets map[types.NamespacedName]*setEntry
}

type setEntry struct {
	// answer is the set; nil if the cache has caught up.
	answer *apps.CloneSet
	stale  bool
	uid    types.UID
	// gone is the UID of a set that the API server no longer has; "" once the cache has
	// caught up.
	gone types.UID
}

func newSetOverlay() *setOverlay {
	return &setOverlay{sets: map[types.NamespacedName]*setEntry{}}
}

// entry reads or changes the entry of a set.
func (o *setOverlay) entry(set types.NamespacedName, do func(*setEntry)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.sets[set] == nil {
		o.sets[set] = &setEntry{}
	}
	do(o.sets[set])
}

// note keeps an answer, which must not change any more.
func (o *setOverlay) note(set *apps.CloneSet) {
	o.entry(keyOf(set), func(e *setEntry) { e.answer = set })
}

// noteUID keeps the UID of a set.
func (o *setOverlay) noteUID(set *apps.CloneSet) {
	o.entry(keyOf(set), func(e *setEntry) { e.uid = set.UID })
}

// newest returns the later of the cached set and the answer. It keeps the answer until
// something later appears: a caller that passes the answer itself must not make the next
// pass believe an older cache.
func (o *setOverlay) newest(cached *apps.CloneSet) *apps.CloneSet {
	o.mu.Lock()
	defer o.mu.Unlock()
	known := o.sets[keyOf(cached)]
	if known == nil || known.answer == nil {
		return cached
	}
	order, err := resourceversion.CompareResourceVersion(known.answer.ResourceVersion, cached.ResourceVersion)
	if err != nil || order < 0 || known.answer.UID != cached.UID {
		known.answer = nil
		return cached
	}
	return known.answer
}

// markStale notes that the cache may lack the effect of a request; markFresh notes that the
// API server has been asked.
func (o *setOverlay) markStale(set types.NamespacedName) {
	o.entry(set, func(e *setEntry) { e.stale = true })
}

func (o *setOverlay) markFresh(set types.NamespacedName) {
	o.entry(set, func(e *setEntry) { e.stale = false })
}

func (o *setOverlay) isStale(set types.NamespacedName) (stale bool) {
	o.entry(set, func(e *setEntry) { stale = e.stale })
	return stale
}

// forget drops a set that is gone, and returns its UID. It remembers what the cache does
// not show yet.
func (o *setOverlay) forget(set types.NamespacedName) (uid types.UID) {
	o.entry(set, func(e *setEntry) {
		delete(o.sets, set)
		if e.gone != "" {
			o.sets[set] = &setEntry{gone: e.gone}
		}
		uid = e.uid
	})
	return uid
}

// noteGone keeps that there is no set of that name: at the API server or, later, in the cache.
func (o *setOverlay) noteGone(set types.NamespacedName, cached bool) {
	o.entry(set, func(e *setEntry) {
		e.gone = e.uid
		if cached {
			e.gone = ""
		}
	})
}

// isGone reports whether the cache shows a set that the API server no longer has.
func (o *setOverlay) isGone(cached *apps.CloneSet) (gone bool) {
	o.entry(keyOf(cached), func(e *setEntry) { gone = e.gone != "" && e.gone == cached.UID })
	return gone
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
	stale := r.sets.isStale(name)
	if stale {
		reader = r.Reader
	}
	if err := reader.Get(ctx, name, set); err != nil {
		if apierrors.IsNotFound(err) {
			r.sets.noteGone(name, !stale)
			return nil, nil
		}
		return nil, fmt.Errorf("get CloneSet: %w", err)
	}
	if r.sets.isGone(set) {
		return nil, nil
	}
	r.sets.noteUID(set)
	if stale {
		r.sets.note(set) // the cache may still show an older one in the next pass
		return set, nil
	}
	return r.sets.newest(set), nil
}

// relistAll asks the API server for the set's Pods and claims after an answer was lost, so
// that the effect of the lost request is known before the next decision.
func (r *Reconciler) relistAll(ctx context.Context, set *apps.CloneSet, now time.Time) error {
	selector, err := selectorOf(set)
	switch {
	case err != nil && set.DeletionTimestamp == nil:
		return err
	case err != nil:
		selector = labels.Everything() // whatever the set is, it can be deleted
	}
	cached, err := r.ListPods(ctx, set.Namespace, string(set.UID))
	if err != nil {
		return err
	}
	var live corev1.PodList
	if err := r.Reader.List(ctx, &live, client.InNamespace(set.Namespace), client.MatchingLabelsSelector{Selector: selector}); err != nil {
		return fmt.Errorf("list Pods after a lost answer: %w", err)
	}
	if err := relist(ctx, r.Reader, r.pods, set, cached, pointersTo(live.Items), now); err != nil {
		return err
	}
	if err := r.relistClaims(ctx, set, now); err != nil {
		return err
	}
	r.sets.markFresh(keyOf(set))
	return nil
}

func (r *Reconciler) relistClaims(ctx context.Context, set *apps.CloneSet, now time.Time) error {
	cached, err := r.listClaims(ctx, set.Namespace, string(set.UID))
	if err != nil {
		return err
	}
	if len(cached) == 0 && len(set.Spec.VolumeClaimTemplates) == 0 {
		return nil
	}
	var live corev1.PersistentVolumeClaimList
	if err := r.Reader.List(ctx, &live, client.InNamespace(set.Namespace), client.MatchingLabelsSelector{Selector: instanceClaims()}); err != nil {
		return fmt.Errorf("list claims after a lost answer: %w", err)
	}
	return relist(ctx, r.Reader, r.claims, set, cached, pointersTo(live.Items), now)
}
