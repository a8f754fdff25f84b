// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/kube"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/podread"
)

// memory is what this process knows of the set with a name, beyond the cache. Passes over one
// set never overlap, so a pass may change it; others may call the methods.
type memory struct {
	// refusal and claimRefusal are those of the Pod template and of the claim templates.
	refusal, claimRefusal refusal
	// failures are the revisions whose Pods came to nothing, as the last pass found them.
	failures map[string]plan.Failure
	// reported is the wait of the last event.
	reported string
	rollout  rolloutLog
	// updateRefused is what the last event said of an update that the API server refuses.
	updateRefused string
	// told is when the status was last written, untold what no event has reported since then, and
	// late when a beginning that was left to a later pass has to be told; zero if none was.
	told   time.Time
	late   time.Time
	untold []outcome
	// next is when the next pass may begin.
	next time.Time
	// pullsRefused is until when no pull Pod is created, pullsSkipped what the last event said
	// of those that nobody waits for.
	pullsRefused time.Time
	pullsSkipped string
	// pullsGivenUp is until when nodes do not pull images, because their pull Pods did not run.
	pullsGivenUp map[plan.ImageOnNode]time.Time
	// podInfos are what the last pass read of the Pods, as it left them, so that the next
	// pass reads only Pods that have changed. An idle set has none.
	podInfos []*plan.PodInfo
	// revisions are those of the last pass; an idle set has none.
	revisions *revisions
	// refused are objects that the API server has refused to have adopted or released, and until when it is not
	// asked again.
	refused map[types.UID]time.Time
	// strangers are the Pods without an owner that it has looked at and does not select.
	strangers strangers
	// deferrals are the deletions that the API server has deferred.
	deferrals deferrals
	// returns are the Pods that come back beside the pass; events of Pods add to them.
	returns returns

	// uid is the UID of the set that the last pass read, gone that of one which the API server
	// no longer has; "" once the cache has caught up.
	uid, gone types.UID
	// ends is the UID of a set whose namespace is being deleted; "" if none is known.
	ends types.UID
	// stale means that the cache may lack the effect of a request: one that timed out may
	// have created a Pod, or taken one out of service.
	stale bool

	mu sync.Mutex
	// answer is the set as the API server last returned it; nil if the cache has caught up.
	answer *apps.CloneSet
	// deletions are the instances whose Pod the controller asked to delete, until their
	// claims are gone too: the answer may have been lost, or the API server too busy for the
	// rest. They hold the claims as they were at the decision.
	deletions map[string][]*corev1.PersistentVolumeClaim
	// trials are what the API server said of updates in place, by the class of Pods.
	trials map[string]plan.Trial
	// drains are since when Pods are known to be out of service for an update, by UID. The time
	// in their condition is when the write was sent; a slow API server may have applied it much
	// later, and the grace period counts from then.
	drains map[types.UID]drain
}

// memory returns what is known of a set, by name.
func (r *Reconciler) memory(set types.NamespacedName) *memory {
	value, known := r.memories.Load(set)
	if !known {
		value, _ = r.memories.LoadOrStore(set, &memory{
			deletions: map[string][]*corev1.PersistentVolumeClaim{}, drains: map[types.UID]drain{}, trials: map[string]plan.Trial{},
			refused: map[types.UID]time.Time{}, returns: returns{busy: map[types.UID]*corev1.Pod{}},
		})
	}
	return value.(*memory)
}

// forget frees what is kept about a set that is gone, except what the cache does not show yet.
func (r *Reconciler) forget(set types.NamespacedName) {
	m := r.memory(set)
	r.pods.drop(m.uid)
	r.claims.drop(m.uid)
	r.revisions.drop(m.uid)
	r.metrics.sets.Forget(set)
	r.memories.Delete(set)
	if m.gone != "" {
		r.memory(set).gone = m.gone
	}
}

// note keeps an answer, which must not change any more.
func (m *memory) note(answer *apps.CloneSet) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.answer = answer
}

// newest returns the later of the cached set and the answer. It keeps the answer until
// something later appears: a caller that passes the answer itself must not make the next
// pass believe an older cache.
func (m *memory) newest(cached *apps.CloneSet) *apps.CloneSet {
	m.mu.Lock()
	defer m.mu.Unlock()
	same := m.answer != nil && m.answer.UID == cached.UID
	if !same || (m.answer.ResourceVersion != cached.ResourceVersion && !kube.Newer(m.answer, cached)) {
		m.answer = nil
	}
	return cmp.Or(m.answer, cached)
}

// answered reports whether the cached set is no later than the last answer. One that is the same
// takes its place, so that there is only one of them.
func (m *memory) answered(cached *apps.CloneSet) bool {
	newest := m.newest(cached)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.answer != nil && m.answer.ResourceVersion == cached.ResourceVersion {
		m.answer = cached
	}
	return newest != cached
}

// noteDeletion keeps that the Pod of an instance is to go, and its claims after it.
func (m *memory) noteDeletion(id string, claims []*corev1.PersistentVolumeClaim) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.deletions[id] = claims
}

func (m *memory) forgetDeletion(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.deletions, id)
}

// deletedInstances returns the set's instances that are being deleted. It forgets those whose
// Pod lives on after all, and those whose claims are gone or belong to the next Pod.
func (m *memory) deletedInstances(set *apps.CloneSet, pods []*corev1.Pod, claims []*corev1.PersistentVolumeClaim) map[string]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	shown := map[string]bool{}
	for _, claim := range claims {
		id := plan.InstanceOfClaim(set.Name, claim)
		if m.deletions[id] == nil || claim.DeletionTimestamp != nil {
			continue
		}
		lives := slices.ContainsFunc(pods, func(pod *corev1.Pod) bool {
			return pod.DeletionTimestamp == nil && pod.Name == plan.PodName(set.Name, id)
		})
		same := slices.ContainsFunc(m.deletions[id], func(was *corev1.PersistentVolumeClaim) bool { return sameUse(was, claim) })
		if shown[id] = !lives && same; !shown[id] {
			delete(m.deletions, id)
		}
	}
	maps.DeleteFunc(m.deletions, func(id string, _ []*corev1.PersistentVolumeClaim) bool { return !shown[id] })
	return shown
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

// readSet reads a CloneSet at least as new as the previous pass left it; nil if there is
// none.
func (r *Reconciler) readSet(ctx context.Context, name types.NamespacedName) (*apps.CloneSet, error) {
	set, m := &apps.CloneSet{}, r.memory(name)
	var reader client.Reader = r.Client
	if m.stale {
		reader = r.Reader
	}
	err := reader.Get(ctx, name, set, client.UnsafeDisableDeepCopy) // nobody changes a set that has been read
	switch {
	case apierrors.IsNotFound(err):
		m.gone = ""
		if m.stale {
			m.gone = m.uid // the cache may still show it
		}
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get CloneSet: %w", err)
	case m.gone != "" && m.gone == set.UID:
		return nil, nil
	}
	m.uid = set.UID
	if m.stale {
		m.note(set) // the cache may still show an older one in the next pass
		return set, nil
	}
	return m.newest(set), nil
}

// relistAll asks the API server for the set's Pods and claims after an answer was lost, so
// that the effect of the lost request is known before the next decision.
func (r *Reconciler) relistAll(ctx context.Context, set *apps.CloneSet, now time.Time) error {
	cached, err := r.ListPods(ctx, set.Namespace, string(set.UID))
	if err != nil {
		return err
	}
	live, err := r.livePods(ctx, set)
	if err != nil {
		return err
	}
	if err := relist(ctx, r.Reader, r.pods, set, cached, live, now); err != nil {
		return err
	}
	if err := r.relistClaims(ctx, set, now); err != nil {
		return err
	}
	r.memory(keyOf(set)).stale = false
	return nil
}

// livePods lists the Pods that a set selects, its own and others, as the API server has them. Of
// a set that is being deleted the selector may be unreadable: whatever it is, it can be deleted.
func (r *Reconciler) livePods(ctx context.Context, set *apps.CloneSet) ([]*corev1.Pod, error) {
	selector, err := selectorOf(set)
	switch {
	case err != nil && set.DeletionTimestamp == nil:
		return nil, err
	case err != nil:
		selector = labels.Everything()
	}
	keep := func(pod *corev1.Pod) (*corev1.Pod, bool) { return r.pods.keep(pod), true }
	return kube.ListKept(ctx, r.Reader, "the set's Pods at the API server", &corev1.PodList{}, keep,
		client.InNamespace(set.Namespace), client.MatchingLabelsSelector{Selector: selector})
}

func (r *Reconciler) relistClaims(ctx context.Context, set *apps.CloneSet, now time.Time) error {
	cached, err := r.listClaims(ctx, set.Namespace, string(set.UID))
	if err != nil {
		return err
	}
	if len(cached) == 0 && len(set.Spec.VolumeClaimTemplates) == 0 {
		return nil
	}
	live, err := kube.List[*corev1.PersistentVolumeClaim](ctx, r.Reader, "claims after a lost answer", &corev1.PersistentVolumeClaimList{},
		client.InNamespace(set.Namespace), client.HasLabels{apps.LabelInstanceID})
	if err != nil {
		return err
	}
	return relist(ctx, r.Reader, r.claims, set, cached, live, now)
}

// maxFlight bounds how long a request can be in flight before it takes effect: the API
// server gives up after a minute, its default --request-timeout.
const maxFlight = time.Minute

// drain is since when a Pod is known to be drained.
type drain struct {
	// recorded is the time in the condition; it distinguishes drains.
	recorded metav1.Time
	since    time.Time
}

// noteDrain looks at the answer to a write, or at a cached Pod, and returns when its drain was
// first known; zero if it is in service. A drain that another process began counts, at the
// latest, from when its request must have ended.
func (m *memory) noteDrain(pod *corev1.Pod, now time.Time) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	recorded, out := drainOf(pod)
	switch known, ok := m.drains[pod.UID]; {
	case !out:
		delete(m.drains, pod.UID)
	case !ok || !known.recorded.Equal(&recorded):
		m.drains[pod.UID] = drain{recorded: recorded, since: list.Earliest(now, recorded.Add(maxFlight))}
	}
	return m.drains[pod.UID].since
}

// drained returns since when each of the set's Pods is known to be drained. It leaves out Pods
// in service, and forgets them and those that are gone.
func (m *memory) drained(pods []*plan.PodInfo, now time.Time) map[types.UID]time.Time {
	out := map[types.UID]time.Time{}
	for _, info := range pods {
		if pod := info.Pod(); info.Drained() {
			out[pod.UID] = m.noteDrain(pod, now)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.drains, func(pod types.UID, _ drain) bool { return out[pod].IsZero() })
	return out
}

func drainOf(pod *corev1.Pod) (recorded metav1.Time, out bool) {
	c := ptr.Deref(podread.Condition(pod, apps.ConditionInPlaceUpdateReady), corev1.PodCondition{})
	return c.LastTransitionTime, c.Status == corev1.ConditionFalse
}
