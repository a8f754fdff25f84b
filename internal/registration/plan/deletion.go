// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/podread"
)

// DefaultRequestTimeout is how long a Pod whose deletion was asked for stays out of its
// registries if nobody deletes it.
const DefaultRequestTimeout = 2 * time.Minute

// DeletionCost is the deletion cost that makes a ReplicaSet choose a Pod again whose
// drain it has asked for.
var DeletionCost = strconv.Itoa(math.MinInt32)

// TakenBack is a deletion request that nobody came back for, or whose reason has ended.
type TakenBack struct {
	// By asked for the deletion; After is how long ago.
	By    string
	After time.Duration
	// Because is why the request has no reason any more; empty if its time is over.
	Because string
}

// readRequest finds the request that makes the Pod leave its registries, and whether someone
// evicts the Pod, by itself or through its CloneSet. A named request makes the CloneSet act,
// and one that cannot be read is replaced by the next.
func readRequest(pod *corev1.Pod) (request *usherv1alpha1.DeletionRequest, evicted bool) {
	request, err := usherv1alpha1.DeletionRequestOf(pod)
	switch {
	case err != nil || request == nil || pod.DeletionTimestamp != nil:
		return nil, false
	case request.Named:
		return nil, request.Eviction
	}
	return request, request.Eviction
}

// ReasonUnguarded is the reason of the event of a Pod that has passed the guard.
const ReasonUnguarded = "DeletedUnguarded"

// early is how much earlier than its time the guard lets a Pod go at most: a second in which no client comes again, and
// one for times in whole seconds.
const early = 2 * time.Second

// HasDeadline reports whether somebody deletes the Pod who gives it less time than its own grace period.
func HasDeadline(pod *corev1.Pod) bool {
	request, err := usherv1alpha1.DeletionRequestOf(pod)
	return err == nil && request != nil && request.LetGo != nil
}

// cutShort reports whether the guard has let a Pod go that is being deleted: somebody gives it less time than its own
// grace period.
func cutShort(pod *corev1.Pod) bool {
	request, err := usherv1alpha1.DeletionRequestOf(pod)
	return err == nil && request != nil && request.LetGo != nil &&
		!podread.DeletedSince(pod).Add(early).Before(request.LetGo.Time)
}

// Undrained is how a Pod has passed the guard that is being deleted while registries may list it: the guard
// lets no Pod go that still has Usher's finalizer, unless the Pod says so, and is not asked about deletions
// by force. Empty for every other Pod. One whose containers have all ended is deleted without a grace period,
// and serves nobody.
func Undrained(pod *corev1.Pod) DrainResult {
	ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	switch {
	case pod.DeletionTimestamp == nil, !slices.Contains(pod.Finalizers, usherv1alpha1.Finalizer):
		return ""
	case pod.Annotations[usherv1alpha1.AnnotationSkipDrain] == "true":
		return DrainSkipped
	case ptr.Deref(pod.DeletionGracePeriodSeconds, 0) > 0 && cutShort(pod):
		return DrainCutShort
	case ptr.Deref(pod.DeletionGracePeriodSeconds, 0) > 0:
		return DrainUnguarded
	case ended:
		return ""
	}
	return DrainForced
}

// Unguarded reports whether API servers let the Pod go without asking the guard, although a
// registry may list it: somebody has removed its label, or a version of Usher that does not know
// the label has registered it.
func Unguarded(pod *corev1.Pod) bool {
	_, labelled := pod.Labels[usherv1alpha1.LabelGuarded]
	return pod.DeletionTimestamp == nil && !labelled && slices.Contains(pod.Finalizers, usherv1alpha1.Finalizer)
}

// requested reports whether the Pod leaves its registries because someone wants to
// delete it.
func (p *pod) requested() bool { return p.request != nil && !p.queued }

// queueEvictions holds back evictions that PodDisruptionBudgets do not allow yet: the API
// server counts a Pod only when it is gone, and would let all Pods of a node drain at once.
func (ix *index) queueEvictions() {
	queued := sets.New[*pod]()
	for _, budget := range ix.Budgets {
		if selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector); err == nil {
			queued.Insert(ix.beyond(ix.allowed(budget, selector), selector)...)
		}
	}
	for _, p := range ix.pods {
		// One that is about to be taken back begins no drain any more.
		late := p.request != nil && !p.drains() && ix.expired(p)
		if held := (late || queued.Has(p)) && ix.Nodes[p.Spec.NodeName].Goes == ""; p.queued != held {
			p.queued = held
			p.hooks = hooksAt(p)
			p.settled = p.isSettled()
		}
	}
}

// allowed is how many Pods the budget allows to disrupt. Its status may be older than what the
// Pods show: those that have stopped being Ready since count already.
func (ix *index) allowed(budget *policyv1.PodDisruptionBudget, selector labels.Selector) int {
	healthy := list.Only(ix.pods, func(p *pod) bool {
		return p.DeletionTimestamp == nil && podread.IsTrue(p.Pod, corev1.PodReady) && selector.Matches(labels.Set(p.Labels))
	})
	return int(budget.Status.DisruptionsAllowed) - max(0, int(budget.Status.CurrentHealthy)-len(healthy))
}

// beyond returns the evictions that have to wait if so many may drain at a time. The
// oldest go first.
func (ix *index) beyond(allowed int, selector labels.Selector) []*pod {
	var waiting []*pod
	for _, p := range ix.pods {
		switch {
		case ix.granted(p): // the budget does not count it as healthy any more, and has let it go
		// One that is not Ready, or is terminating, does not count as healthy any more.
		case p.DeletionTimestamp != nil, !podread.IsTrue(p.Pod, corev1.PodReady), !selector.Matches(labels.Set(p.Labels)):
		case p.isLeaving(), p.request != nil && p.cause.fewer:
			allowed-- // whoever asked for that: budgets bound evictions, and no owner, and count all Pods
		case p.evicted && p.request != nil: // a CloneSet has budgets of its own
			waiting = append(waiting, p)
		}
	}
	slices.SortFunc(waiting, func(a, b *pod) int {
		return cmp.Or(a.request.Since.Compare(b.request.Since.Time), cmp.Compare(a.Name, b.Name))
	})
	return waiting[min(max(allowed, 0), len(waiting)):]
}

// isLeaving reports whether the Pod drains before its deletion, whoever has asked for that.
func (p *pod) isLeaving() bool {
	if p.request != nil || p.evicted {
		return p.drains()
	}
	record := ReadRecord(p.Pod)
	return p.state == appsv1alpha1.StatePreparingDelete && record != nil && record.Gate == GatePreDelete
}

// drains reports whether the drain that the request asks for has begun, or is over: the
// operator's own, or the one of a CloneSet's hook.
func (p *pod) drains() bool {
	record := ReadRecord(p.Pod)
	switch {
	case !p.hasFinalizer():
		return true
	case record == nil:
		return false
	case record.Gate == GatePreDelete: // a CloneSet that wants the Pod again has ended that drain
		return record.Entered == p.Annotations[appsv1alpha1.AnnotationLifecycleTimestamp]
	}
	return record.Gate == GateRequested
}

// ownHook holds a Pod whose deletion was asked for, or that no Registration selects any more,
// until it is drained: the guard lets nobody delete it while it carries our finalizer.
func (p *pod) ownHook() []hook {
	h := hook{gate: GateRequested, key: hookKey{name: usherv1alpha1.Finalizer, finalizer: true}, answerers: p.selectedBy}
	switch {
	case !p.hasFinalizer(), p.DeletionTimestamp != nil, len(p.selectedBy) > 0 && !p.requested():
		return nil
	case !p.requested():
		h.gate = GateLeaving
	}
	return []hook{h}
}

// expiry is when the request is taken back; zero if it lasts as long as its reason.
func (ix *index) expiry(p *pod) time.Time {
	switch {
	case p.cause.lasts:
		return time.Time{}
	case p.cause.ended:
		return p.request.At.Add(believed)
	}
	return p.askedAt().Add(p.requestTimeout())
}

// requestTimeout is how long a request without a reason of its own lasts.
func (p *pod) requestTimeout() (timeout time.Duration) {
	for _, r := range p.all() {
		timeout = max(timeout, DurationOf(r.Spec.Drain.RequestTimeout, DefaultRequestTimeout))
	}
	return cmp.Or(timeout, DefaultRequestTimeout)
}

// askedAt is when the request was last of use: when somebody made it, when the drain ended that it
// asked for, or, as long as that goes on, when the drain's deadline passes.
func (p *pod) askedAt() time.Time {
	at := p.request.At.Time
	if p.request.Drained != nil {
		at = list.Latest(at, p.request.Drained.Time)
	}
	if record := ReadRecord(p.Pod); p.hasFinalizer() && record != nil {
		for _, r := range p.all() {
			at = list.Latest(at, limitOf(r.Registration, GateRequested).end(record.Began).Add(untilTimeout(r.Registration)))
		}
	}
	return at
}

// expired reports whether the request is to be taken back.
func (ix *index) expired(p *pod) bool {
	end := ix.expiry(p)
	return !end.IsZero() && !ix.Now.Before(end)
}

// planRequest takes a request back that nobody came back for, or whose reason has ended. It returns
// when it will.
func (ix *index) planRequest(p *pod, patch *PodPatch) time.Time {
	if p.request == nil {
		return time.Time{}
	}
	if !patch.Drained.IsZero() && !p.cause.lasts && !p.cause.ended {
		return ix.Now.Add(p.requestTimeout())
	}
	if !ix.expired(p) {
		return ix.expiry(p)
	}
	patch.TakenBack = &TakenBack{By: p.request.By, After: ix.Now.Sub(p.request.At.Time)}
	patch.Results = append(patch.Results, DrainTakenBack)
	if p.cause.ended {
		patch.TakenBack.Because = p.cause.text
	}
	return time.Time{}
}

// numeric returns a deletion cost, nil unless it is one: whoever edits the Pod may have written it.
func numeric(cost *string) *string {
	if cost == nil {
		return nil
	}
	if _, err := strconv.ParseInt(*cost, 10, 32); err != nil {
		return nil
	}
	return cost
}

// undo returns the annotations without the request; nil removes one.
func undo(pod *corev1.Pod) map[string]*string {
	annotations := map[string]*string{usherv1alpha1.AnnotationDeletionRequest: nil}
	if request, _ := readRequest(pod); request != nil && pod.Annotations[corev1.PodDeletionCost] == DeletionCost {
		annotations[corev1.PodDeletionCost] = numeric(request.DeletionCost)
	}
	return annotations
}

// letGo is from when on the guard lets the Pod go, drained or not: somebody deletes it who gives it less time than its
// own grace period. It is zero if nobody does. Nobody waits any more for a deadline that is over.
func (p *pod) letGo(now time.Time) time.Time {
	if p.request == nil || p.request.LetGo == nil || p.request.Deadline == nil || !now.Before(p.request.Deadline.Time) {
		return time.Time{}
	}
	return p.request.LetGo.Time
}

// hasToGo reports whether that time has come.
func (ix *index) hasToGo(p *pod) bool {
	at := p.letGo(ix.Now)
	return !at.IsZero() && !ix.Now.Before(at)
}

// turnOfDeadline is when Usher deletes a Pod that has not drained by then, or when the deadline that somebody gave it
// is over; zero without one.
func (ix *index) turnOfDeadline(p *pod) time.Time {
	at := p.letGo(ix.Now)
	switch {
	case at.IsZero():
		return at
	case ix.Finish && p.cause.finishes && !ix.hasToGo(p):
		return at
	}
	return p.request.Deadline.Time
}

// inTime is the Pod's request with the time that is left until its deadline, which the Pod's containers get.
func (ix *index) inTime(p *pod) *usherv1alpha1.DeletionRequest {
	if p.letGo(ix.Now).IsZero() {
		return p.request
	}
	short := *p.request
	left := max(int64(p.request.Deadline.Sub(ix.Now)/time.Second), 1)
	short.GracePeriodSeconds = new(min(ptr.Deref(short.GracePeriodSeconds, left), left))
	return &short
}
