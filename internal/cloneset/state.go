// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
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
	"github.com/usher-dev/usher/internal/pace"
	"github.com/usher-dev/usher/internal/podread"
)

// setState has what this process knows of the set with a name, beyond the cache. pass belongs to the
// passes over the set, which never overlap, and has no lock. shared has one: event handlers and writes
// in the background use it too.
type setState struct {
	pass   passState
	shared *sharedState
}

// passState has the state that one pass keeps for the next one. Only a pass may touch it.
type passState struct {
	// templateRefusal and claimRefusal are the API server's answers about the Pod template and the
	// claim templates.
	templateRefusal, claimRefusal refusal
	// failures are the revisions whose Pods failed early, as the last pass found them.
	failures map[string]plan.Failure
	// rollout records what was logged about the rollout and the waits of Pods.
	rollout rolloutLog
	status  statusState
	// lastEvents holds what the last events said, so that no event is repeated.
	lastEvents lastEvents
	// pace is when the next pass may begin.
	pace pace.Pace
	// pullsRefusedUntil is until when no pull Pod is created.
	pullsRefusedUntil time.Time
	// pullsGivenUp is until when nodes do not pull images, because their pull Pods did not run.
	pullsGivenUp map[plan.ImageOnNode]time.Time
	// podInfos are the PodInfos after the last pass, so that the next one reads only Pods that have
	// changed. An idle set has none.
	podInfos []*plan.PodInfo
	// revisions are those of the last pass; an idle set has none.
	revisions *revisions
	// adoptionsRefused are the objects that the API server refused to have adopted or released, and
	// until when it is not asked again.
	adoptionsRefused map[types.UID]time.Time
	// orphans is the list of ownerless Pods that the set was last compared with, without a match.
	orphans orphanList
	// deferrals are the deletions that the API server has deferred.
	deferrals deferrals
	// uid is the UID of the set that the last pass read, gone that of one which the API server
	// no longer has; "" once the cache has caught up.
	uid, gone types.UID
	// namespaceEnds is the UID of a set whose namespace is being deleted; "" if none is known.
	namespaceEnds types.UID
	// stale means that the cache may lack the effect of a request: one that timed out may
	// have created a Pod, or taken one out of service.
	stale bool
}

// statusState has the state that a pass keeps about writes of the status.
type statusState struct {
	// lastStatus is when the status was last written.
	lastStatus time.Time
	// deadline is by when a postponed "rollout began" must be written; zero if none was postponed.
	deadline time.Time
	// pending are the outcomes since then that no event has reported.
	pending []outcome
}

// lastEvents holds what the last events said.
type lastEvents struct {
	// wait identifies the longest wait.
	wait string
	// updateRefused is the message about an update that the API server refuses.
	updateRefused string
	// pullsSkipped is the message about images for which Pods do not wait.
	pullsSkipped string
}

// sharedState has the state that passes share with event handlers and with background writes. Its
// methods lock.
type sharedState struct {
	// executor runs the actions of passes, and puts Pods back into service outside passes.
	executor *executor

	mu sync.Mutex
	// answer is the set as the API server last returned it; nil if the cache has caught up.
	answer *apps.CloneSet
	// deletions are the instances whose Pod the controller asked to delete, until their
	// claims are gone too: the answer may have been lost, or the API server too busy for the
	// remaining deletions. They hold the claims as they were at the decision.
	deletions map[string][]*corev1.PersistentVolumeClaim
	// trials are the API server's answers about updates in place, by the class of Pods.
	trials map[string]plan.Trial
	// drains are since when Pods are known to be out of service for an update, by UID. The time
	// in their condition is when the write was sent; a slow API server may have applied it much
	// later, and the grace period counts from then.
	drains map[types.UID]drain
}

// stateOf returns the state of a set, by name.
func (r *Reconciler) stateOf(set types.NamespacedName) *setState {
	value, known := r.states.Load(set)
	if !known {
		value, _ = r.states.LoadOrStore(set, &setState{
			pass: passState{adoptionsRefused: map[types.UID]time.Time{}, pace: pace.Pace{Slack: shortestPause}},
			shared: &sharedState{
				deletions: map[string][]*corev1.PersistentVolumeClaim{}, drains: map[types.UID]drain{},
				trials: map[string]plan.Trial{}, executor: r.newExecutor(),
			},
		})
	}
	return value.(*setState)
}

// passState returns what passes over a set keep. Only a pass over that set may call it.
func (r *Reconciler) passState(set types.NamespacedName) *passState { return &r.stateOf(set).pass }

// shared returns what passes over a set share with event handlers and background writes.
func (r *Reconciler) shared(set types.NamespacedName) *sharedState { return r.stateOf(set).shared }

// forget frees what is kept about a set that is gone, except what the cache does not show yet.
func (r *Reconciler) forget(set types.NamespacedName) {
	kept := r.passState(set)
	r.pods.Drop(kept.uid)
	r.claims.Drop(kept.uid)
	r.revisions.Drop(kept.uid)
	r.metrics.sets.Forget(set)
	r.states.Delete(set)
	if kept.gone != "" {
		r.passState(set).gone = kept.gone
	}
}

// keepAnswer keeps an answer, which must not change any more.
func (s *sharedState) keepAnswer(answer *apps.CloneSet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

// newest returns the later of the cached set and the answer.
func (s *sharedState) newest(cached *apps.CloneSet) *apps.CloneSet {
	s.mu.Lock()
	defer s.mu.Unlock()
	if overtaken(s.answer, cached) {
		return cached
	}
	return s.answer
}

// overtaken reports whether the cached set is later than an answer, or another set.
func overtaken(answer, cached *apps.CloneSet) bool {
	return answer == nil || answer.UID != cached.UID ||
		answer.ResourceVersion != cached.ResourceVersion && !kube.Newer(answer, cached)
}

// answered reports whether the cached set is no later than the last answer.
func (s *sharedState) answered(cached *apps.CloneSet) bool { return s.newest(cached) != cached }

// confirmAnswer forgets the answer once the cache has overtaken it. A cached set that is the same takes
// its place, so that there is only one of them. It keeps a later answer even if the caller got it from
// here: the cache may still be older in the next pass.
func (s *sharedState) confirmAnswer(cached *apps.CloneSet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case overtaken(s.answer, cached):
		s.answer = nil
	case s.answer.ResourceVersion == cached.ResourceVersion:
		s.answer = cached
	}
}

// recordDeletion keeps that the Pod of an instance is to be deleted, and its claims after it.
func (s *sharedState) recordDeletion(id string, claims []*corev1.PersistentVolumeClaim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deletions[id] = claims
}

func (s *sharedState) forgetDeletion(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.deletions, id)
}

// deletedInstances returns the set's instances that are being deleted. It leaves out those whose
// Pod lives on after all, and those whose claims are gone or belong to the next Pod.
func (s *sharedState) deletedInstances(
	set *apps.CloneSet, pods []*corev1.Pod, claims []*corev1.PersistentVolumeClaim,
) map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	deleted, over := map[string]bool{}, map[string]bool{}
	for _, claim := range claims {
		id := plan.InstanceOfClaim(set.Name, claim)
		if s.deletions[id] == nil || claim.DeletionTimestamp != nil {
			continue
		}
		lives := slices.ContainsFunc(pods, func(pod *corev1.Pod) bool {
			return pod.DeletionTimestamp == nil && pod.Name == plan.PodName(set.Name, id)
		})
		same := slices.ContainsFunc(s.deletions[id], func(was *corev1.PersistentVolumeClaim) bool {
			return sameUse(was, claim)
		})
		deleted[id] = true
		over[id] = over[id] || lives || !same
	}
	maps.DeleteFunc(deleted, func(id string, _ bool) bool { return over[id] })
	return deleted
}

// forgetDeletionsExcept forgets all deletions with other ids.
func (s *sharedState) forgetDeletionsExcept(ids map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.deletions, func(id string, _ []*corev1.PersistentVolumeClaim) bool { return !ids[id] })
}

// readSet reads a CloneSet at least as new as the previous pass left it; nil if there is
// none.
func (r *Reconciler) readSet(ctx context.Context, name types.NamespacedName) (*apps.CloneSet, error) {
	set, kept, shared := &apps.CloneSet{}, r.passState(name), r.shared(name)
	var reader client.Reader = r.Client
	if kept.stale {
		reader = r.Reader
	}
	err := reader.Get(ctx, name, set, client.UnsafeDisableDeepCopy) // nobody changes a set that has been read
	switch {
	case apierrors.IsNotFound(err):
		kept.gone = ""
		if kept.stale {
			kept.gone = kept.uid // the cache may still show it
		}
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get CloneSet: %w", err)
	case kept.gone != "" && kept.gone == set.UID:
		return nil, nil
	}
	kept.uid = set.UID
	if kept.stale {
		shared.keepAnswer(set) // the cache may still show an older one in the next pass
		return set, nil
	}
	shared.confirmAnswer(set)
	return shared.newest(set), nil
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
	r.passState(keyOf(set)).stale = false
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
	keep := func(pod *corev1.Pod) (*corev1.Pod, bool) { return r.pods.Kept(pod), true }
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
	live, err := kube.List[*corev1.PersistentVolumeClaim](
		ctx, r.Reader, "claims after a lost answer", &corev1.PersistentVolumeClaimList{},
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

// recordDrain keeps since when the Pod in an answer is known to be drained.
func (s *sharedState) recordDrain(pod *corev1.Pod, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known, out := s.drains[pod.UID].after(pod, now); out {
		s.drains[pod.UID] = known
	} else {
		delete(s.drains, pod.UID)
	}
}

// recordDrains keeps since when each of the set's Pods is known to be drained, and returns that. It
// forgets Pods in service and those that are gone.
func (s *sharedState) recordDrains(pods []*plan.PodInfo, now time.Time) map[types.UID]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	drains, since := map[types.UID]drain{}, map[types.UID]time.Time{}
	for _, info := range pods {
		if !info.Drained() {
			continue
		}
		uid := info.Pod().UID
		if known, out := s.drains[uid].after(info.Pod(), now); out {
			drains[uid], since[uid] = known, known.since
		}
	}
	s.drains = drains
	return since
}

// after returns the drain of a Pod as an answer or the cache shows it, and whether it has one. A drain
// that another process began counts, at the latest, from when its request must have ended.
func (d drain) after(pod *corev1.Pod, now time.Time) (drain, bool) {
	recorded, out := drainOf(pod)
	if !out || d.recorded.Equal(&recorded) && !d.since.IsZero() {
		return d, out
	}
	return drain{recorded: recorded, since: list.Earliest(now, recorded.Add(maxFlight))}, true
}

func drainOf(pod *corev1.Pod) (recorded metav1.Time, out bool) {
	c := ptr.Deref(podread.Condition(pod, apps.ConditionInPlaceUpdateReady), corev1.PodCondition{})
	return c.LastTransitionTime, c.Status == corev1.ConditionFalse
}
