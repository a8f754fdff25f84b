// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/podread"
	"github.com/usher-dev/usher/internal/registration/plan"
)

const (
	// renewAfter is the age at which a repeated request is written again, so that it is not withdrawn
	// while a client waits.
	renewAfter = 10 * time.Second
	// minRetry and maxRetry bound the time after which a client repeats its request. client-go gives up
	// after ten times, so after shortTime a person's interval grows with the time that has passed: ten
	// of them last for more than two minutes. The sum of maxRetry and renewAfter is below the least
	// requestTimeout, 1 min.
	minRetry, maxRetry = time.Second, 45 * time.Second
	shortTime          = 4 * time.Second
)

// collectors delete Pods whose owner or namespace is gone: there is no CloneSet any more to do it.
var collectors = []string{
	"system:serviceaccount:kube-system:generic-garbage-collector",
	"system:serviceaccount:kube-system:namespace-controller",
	// Both, in a controller manager without --use-service-account-credentials.
	"system:kube-controller-manager",
}

// maxHold bounds how long a collector waits in its request: it too has few workers for the whole
// cluster, but no event makes it repeat a deletion when a Pod is drained.
const maxHold = 5 * time.Second

// podControllers watch Pods, and repeat a deletion when the Pod changes, at the latest when it is
// drained. If they were asked to wait, each of their few workers would sleep through a drain, and
// unrelated workloads would have to wait for it.
var podControllers = []string{
	perNode,
	"system:serviceaccount:kube-system:job-controller",
	"system:serviceaccount:kube-system:replicaset-controller",
	"system:serviceaccount:kube-system:replication-controller",
	"system:serviceaccount:kube-system:statefulset-controller",
}

// perNode is the controller of DaemonSets. It chooses anew at each attempt, at random, and counts a Pod
// that drains as available: unless its Pods take turns, a rollout would drain all of them side by side.
// And with many nodes it rarely asks for the same Pod again. So when it asks for another Pod, the guard
// evicts the drained one.
const perNode = "system:serviceaccount:kube-system:daemon-set-controller"

// inOrder is the controller of StatefulSets. It does not repeat a deletion while a Pod of the set is
// not Ready. A Pod that drains by its readiness gate is not, so an update would never continue. So this
// controller has to wait in its request.
const inOrder = "system:serviceaccount:kube-system:statefulset-controller"

// nodeControllers delete Pods of nodes that are to be empty.
var nodeControllers = []string{
	"system:serviceaccount:kube-system:node-controller",
	"system:serviceaccount:kube-system:taint-eviction-controller",
}

// Request is a request to delete or evict a Pod.
type Request struct {
	// Pod is the Pod as the API server stores it.
	Pod *corev1.Pod
	// Owner is the controller that the Pod names, if that exists and selects the Pod, and if the
	// decision depends on it (see claim); nil otherwise.
	Owner *metav1.OwnerReference
	// User is the user that asks.
	User string
	// Eviction reports whether the request is an eviction.
	Eviction bool
	// First is the Pod that must drain before this one; nil if there is none.
	First *corev1.Pod
	// GracePeriodSeconds is the grace period that the user asks for; nil for the Pod's own.
	GracePeriodSeconds *int64
	// Now is the time of the request.
	Now time.Time
	// Secret is known only to the guard's replicas and API servers; empty if there is none.
	Secret string
}

// Decision is the answer to a Request.
type Decision struct {
	// Allowed lets the request pass now; Skipped means that it passes without a drain, because the
	// Pod's annotation asks for that. Hurried means that it passes because of a deadline, drained or not: then
	// Message says which, and Patch may be there. The other fields are empty if it passes.
	Allowed, Skipped, Hurried bool
	// RetryAfter is the time until the request is to be repeated, in whole seconds; 0 leaves that to
	// the client.
	RetryAfter time.Duration
	// Message says what the request waits for.
	Message string
	// Patch is a JSON merge patch of the Pod that asks for the named deletion or the drain that has to
	// come first; nil if the Pod has that request already.
	Patch []byte
	// Evict is another Pod, to be evicted now: the same user asked for it before, and it has
	// drained; nil if there is none.
	Evict *corev1.Pod
}

// Decide answers a request. A deletion of a CloneSet's Pod becomes a named deletion, unless it comes
// from a CloneSet controller, which acts as one of cloneSetUsers, or from one of the collectors.
func Decide(r Request, cloneSetUsers []string) Decision {
	pod := r.Pod
	switch {
	case !held(pod):
		return Decision{Allowed: true}
	case waivesDrain(pod):
		return Decision{Allowed: true, Skipped: true}
	}
	stored, _ := usherv1alpha1.DeletionRequestOf(pod) // an unreadable one is replaced
	direct := slices.Contains(collectors, r.User) || slices.Contains(cloneSetUsers, r.User)
	controller := direct || slices.Contains(podControllers, r.User) || slices.Contains(nodeControllers, r.User)
	_, letGo := r.limits(stored)
	if r.late(stored) {
		return r.hurried(stored, controller)
	}
	named := letGo == nil && !direct && r.nameable()
	patient := slices.Contains(cloneSetUsers, r.User)
	d := Decision{Message: r.message(named, letGo), RetryAfter: r.comesAgain(stored, letGo, patient)}
	switch {
	case r.First != nil:
		d = r.afterAnother()
	case !r.asked(stored, named, controller):
		d.Patch = r.patch(stored, named, controller)
	}
	return d
}

// nameable reports whether a deletion may become a named one of the Pod's CloneSet. A Pod's own claims pass to its
// successor, and a named deletion would delete them. It may wait for budgets, too, for which a deadline has no time.
func (r Request) nameable() bool {
	return r.ownerOf(appsv1alpha1.KindCloneSet) != "" && len(podread.OwnClaims(r.Pod)) == 0
}

// afterAnother returns the answer while another Pod must drain first. If that has drained, it is to be
// evicted.
func (r Request) afterAnother() Decision {
	switch {
	case r.First.DeletionTimestamp != nil:
		return Decision{Message: fmt.Sprintf(
			"Pod %s leaves its registries when Pod %s, which is terminating, is replaced", r.Pod.Name, r.First.Name)}
	case r.drained():
		return Decision{Evict: r.First, Message: fmt.Sprintf(
			"Pod %s leaves its registries when Pod %s, which is out of them, is replaced", r.Pod.Name, r.First.Name)}
	}
	return Decision{Message: fmt.Sprintf(
		"Pod %s leaves its registries when Pod %s is out of them, or in them again", r.Pod.Name, r.First.Name)}
}

// held reports whether the Pod may be in a registry, and is not on its way out already.
func held(pod *corev1.Pod) bool {
	return slices.Contains(pod.Finalizers, usherv1alpha1.Finalizer) && pod.DeletionTimestamp == nil
}

func waivesDrain(pod *corev1.Pod) bool {
	return pod.Annotations[usherv1alpha1.AnnotationSkipDrain] == "true"
}

// claim returns the controller that the Pod names, if a decision depends on it; nil otherwise. Users
// who create Pods may name any.
func (r Request) claim() *metav1.OwnerReference {
	if !held(r.Pod) || waivesDrain(r.Pod) {
		return nil
	}
	owner := metav1.GetControllerOf(r.Pod)
	switch {
	case isOf(owner, appsv1alpha1.KindCloneSet), isOf(owner, kindReplicaSet):
		return owner
	case isOf(owner, kindDaemonSet) && r.User == perNode:
		return owner
	}
	return nil
}

// dependsOnOwner reports whether a repeated request may be answered in another way for the Pod's owner. A ReplicaSet
// makes a difference to the first one only, which sets the Pod's deletion cost.
func (r Request) dependsOnOwner() bool {
	owner := r.claim()
	return owner != nil && !isOf(owner, kindReplicaSet)
}

// takesTurns reports whether the Pods of the request's owner drain one after another, and this one has
// not begun.
func (r Request) takesTurns() bool {
	_, asked := r.Pod.Annotations[usherv1alpha1.AnnotationDeletionRequest]
	return r.ofDaemonSet() && !asked
}

// ofDaemonSet reports whether the controller of DaemonSets asks for one of its Pods.
func (r Request) ofDaemonSet() bool { return r.User == perNode && r.ownerOf(kindDaemonSet) != "" }

// joinTime is how long after a Pod got ready Usher's finalizer may take to show that the Pod is to be
// registered. A Pod that no Registration selects never gets it, and holds up others for no longer than
// that.
const joinTime = 10 * time.Second

// cacheTime is how long the owner's controller may take to see that a Pod is terminating, which Usher may have deleted.
// Until then it takes the Pod for one that serves, and asks for another one.
const cacheTime = 5 * time.Second

// drainsFirst returns another Pod of the same owner that drains, that was deleted a moment ago, or that is ready and
// not registered yet; nil if there is none. Only one Pod of an owner leaves at a time.
func (r Request) drainsFirst(pods []*corev1.Pod) *corev1.Pod {
	for _, other := range pods {
		if other.UID == r.Pod.UID || !metav1.IsControlledBy(other, &metav1.ObjectMeta{UID: r.Owner.UID}) {
			continue
		}
		if other.DeletionTimestamp != nil {
			if r.Now.Sub(podread.DeletedSince(other)) < cacheTime {
				return other
			}
			continue
		}
		_, asked := other.Annotations[usherv1alpha1.AnnotationDeletionRequest]
		if asked || r.joins(other) {
			return other
		}
	}
	return nil
}

// drained reports whether r.First has drained for the controller, and has the same revision as the
// request's Pod: the controller wants neither of them.
func (r Request) drained() bool {
	stored, _ := usherv1alpha1.DeletionRequestOf(r.First) // an unreadable one is of no controller
	const revision = appsv1.DefaultDaemonSetUniqueLabelKey
	return r.sealed(r.First, stored) && !slices.Contains(r.First.Finalizers, usherv1alpha1.Finalizer) && r.First.Labels[revision] == r.Pod.Labels[revision]
}

// joins reports whether a Pod is ready and about to be registered.
func (r Request) joins(pod *corev1.Pod) bool {
	ready, registered := podread.Condition(pod, corev1.PodReady), podread.Condition(pod, usherv1alpha1.ConditionRegistered)
	if ready == nil || ready.Status != corev1.ConditionTrue || registered != nil && registered.Status == corev1.ConditionTrue {
		return false
	}
	return slices.Contains(pod.Finalizers, usherv1alpha1.Finalizer) || r.Now.Sub(ready.LastTransitionTime.Time) < joinTime
}

// The kinds of owners, besides CloneSets, that decisions depend on.
var kindReplicaSet, kindDaemonSet = appsv1.SchemeGroupVersion.WithKind("ReplicaSet"), appsv1.SchemeGroupVersion.WithKind("DaemonSet")

// isOf reports whether there is an owner, and it is of a kind.
func isOf(owner *metav1.OwnerReference, kind schema.GroupVersionKind) bool {
	return owner != nil && schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind) == kind
}

// ownerOf returns the name of the owner if it is of a kind; empty otherwise.
func (r Request) ownerOf(kind schema.GroupVersionKind) string {
	if !isOf(r.Owner, kind) {
		return ""
	}
	return r.Owner.Name
}

// seal proves that the controller of DaemonSets has asked for the Pod. Users who may annotate Pods can
// write a request with the controller's name, but cannot seal it without the secret. If there is no
// secret, the seal is empty.
func (r Request) seal(pod *corev1.Pod, since metav1.MicroTime) string {
	if r.Secret == "" {
		return ""
	}
	mac := hmac.New(sha256.New, []byte(r.Secret))
	_, _ = fmt.Fprintf(mac, "%s %s %d", perNode, pod.UID, since.UnixMicro()) // a hash takes everything
	return hex.EncodeToString(mac.Sum(nil))
}

// sealed reports whether the request stored on the Pod is one of the controller of DaemonSets.
func (r Request) sealed(pod *corev1.Pod, stored *usherv1alpha1.DeletionRequest) bool {
	return stored != nil && stored.Seal != "" && hmac.Equal([]byte(stored.Seal), []byte(r.seal(pod, stored.Since)))
}

// asked reports whether the request stored on the Pod covers this one.
func (r Request) asked(stored *usherv1alpha1.DeletionRequest, named, controller bool) bool {
	switch {
	case stored == nil, r.tightens(stored):
		return false
	case r.ofDaemonSet() && r.Secret != "" && !r.sealed(r.Pod, stored):
		return false
	case named:
		// A drain for a CloneSet controller or the garbage collector covers a named deletion.
		return !stored.Named || r.Pod.Labels[appsv1alpha1.LabelSpecifiedDelete] == "true"
	}
	return !stored.Named && !outlasts(controller, stored) && stored.Eviction == (stored.Eviction && r.Eviction) && r.Now.Sub(stored.At.Time) < renewAfter
}

// outlasts reports whether this request is one of a controller and the stored one is not. A
// controller's request lasts as long as its reason, even if others have asked before.
func outlasts(controller bool, stored *usherv1alpha1.DeletionRequest) bool {
	return controller && !stored.Controller
}

// waits reports whether the client may wait inside its request: not if that could hold up other
// workloads for as long as a drain lasts.
func (r Request) waits() bool {
	if slices.Contains(collectors, r.User) {
		remaining := drainedAt(r.Pod).Sub(r.Now)
		return remaining > 0 && remaining <= maxHold
	}
	return !slices.Contains(podControllers, r.User) || r.User == inOrder && plan.HasGate(r.Pod)
}

// retryAfter returns the time until the drain ends, if the Pod shows that; otherwise a time that grows
// with the time since the first request. Other programs' controllers sleep inside their request,
// perhaps with their only worker, and repeat it by themselves later. So they wait only for an end that
// is known and near. patient means that the user is a controller of CloneSets, which watches the Pod
// meanwhile.
func (r Request) retryAfter(stored *usherv1alpha1.DeletionRequest, patient bool) time.Duration {
	if stored == nil {
		return minRetry
	}
	passed, remaining := r.Now.Sub(stored.Since.Time), drainedAt(r.Pod).Sub(r.Now)
	wait := passed * 4 / 5
	switch {
	case remaining > 0 && remaining <= maxRetry:
		wait = remaining
	case r.byController() && !patient:
		wait = minRetry
	case remaining > 0:
		wait = maxRetry
	case remaining > -shortTime, passed < shortTime:
		wait = minRetry
	}
	// Rounded up: a client that comes too early has to come twice.
	return min(max((wait+time.Second-1).Truncate(time.Second), minRetry), maxRetry)
}

// byController reports whether another program's controller asks, and not a person.
func (r Request) byController() bool {
	return strings.HasPrefix(r.User, "system:serviceaccount:") && r.User != inOrder
}

// message returns what the request waits for.
func (r Request) message(named bool, letGo *metav1.MicroTime) string {
	text, registries := fmt.Sprintf("Pod %s leaves its registries before it is deleted", r.Pod.Name), "them"
	if named {
		text = fmt.Sprintf("CloneSet %s deletes Pod %s as soon as its hooks%s and budgets allow",
			r.ownerOf(appsv1alpha1.KindCloneSet), r.Pod.Name, hooksOf(r.Pod))
		registries = "its registries"
	}
	if until := drainedAt(r.Pod); until.After(r.Now) {
		text += fmt.Sprintf("; it has left %s, and callers may use it until %s", registries, until.UTC().Format(time.RFC3339))
	}
	if record := plan.ReadRecord(r.Pod); record != nil && !record.Free.IsZero() && record.UnderWay != nil {
		text += fmt.Sprintf("; it has left %s, with %s under way", registries, plan.Requests(*record.UnderWay))
	} else if c := podread.Condition(r.Pod, usherv1alpha1.ConditionRegistered); waitsAt(c) {
		text += "; " + strings.TrimSuffix(c.Message, ".")
	}
	if letGo != nil {
		text += fmt.Sprintf("; it is let go at %s, drained or not", letGo.UTC().Format(time.RFC3339))
	}
	return text + fmt.Sprintf(". To delete it now and lose requests, annotate it with %s=true.", usherv1alpha1.AnnotationSkipDrain)
}

// waitsAt reports whether a Pod's condition says what the Pod waits for. One that only says that the
// Pod has left its registries adds nothing.
func waitsAt(c *corev1.PodCondition) bool {
	return c != nil && c.Status != corev1.ConditionTrue && c.Message != "" && c.Reason != plan.ReasonDeregistered
}

// mostHooks is how many hooks a message names.
const mostHooks = 3

// hooksOf returns, in brackets, the keys of hooks that hold the Pod of a CloneSet, as far as the Pod
// shows them: finalizers, and labels of Usher's domain.
func hooksOf(pod *corev1.Pod) string {
	keys := list.Only(pod.Finalizers, func(key string) bool { return key != usherv1alpha1.Finalizer })
	for key := range pod.Labels {
		created := strings.HasSuffix(key, usherv1alpha1.HookDomain+usherv1alpha1.HookCreated) // holds no deletion
		if strings.Contains(key, usherv1alpha1.HookDomain) && !created {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return ""
	}
	slices.Sort(keys)
	return " (" + list.Some(keys, mostHooks) + ")"
}

// next returns the stored request with the additions of this one.
func (r Request) next(stored *usherv1alpha1.DeletionRequest, controller bool) usherv1alpha1.DeletionRequest {
	now := metav1.NewMicroTime(r.Now.UTC())
	next := usherv1alpha1.DeletionRequest{Since: now, By: r.User}
	if stored != nil {
		next = *stored
	}
	next.At, next.GracePeriodSeconds = now, r.GracePeriodSeconds
	next.Deadline, next.LetGo = r.limits(stored)
	if outlasts(controller, &next) {
		next.By, next.Controller = r.User, true
	}
	if r.ofDaemonSet() {
		next.Seal = r.seal(r.Pod, next.Since)
	}
	// A budget limits evictions only: once anybody deletes the Pod, it does not count.
	next.Eviction = r.Eviction && (stored == nil || stored.Named || stored.Eviction)
	return next
}

// patch asks for a named deletion, or for a drain.
func (r Request) patch(stored *usherv1alpha1.DeletionRequest, named, controller bool) []byte {
	next := r.next(stored, controller)
	next.Named = named
	metadata := map[string]any{"uid": r.Pod.UID}
	annotations := map[string]any{}
	switch cost, has := r.Pod.Annotations[corev1.PodDeletionCost]; {
	case named:
		metadata["labels"] = map[string]any{appsv1alpha1.LabelSpecifiedDelete: "true"}
	case r.ownerOf(kindReplicaSet) != "" && cost != plan.DeletionCost:
		annotations[corev1.PodDeletionCost] = plan.DeletionCost
		if has {
			next.DeletionCost = &cost
		}
	}
	annotations[usherv1alpha1.AnnotationDeletionRequest] = string(encode.JSON(next))
	metadata["annotations"] = annotations
	return encode.JSON(map[string]any{"metadata": metadata})
}

// drainedAt returns when the Pod's drain ends if nothing else happens; zero if that is unknown.
func drainedAt(pod *corev1.Pod) time.Time { return plan.ReadRecord(pod).End() }
