// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
)

// A request for a Pod's deletion lasts as long as its reason, whether or not the requester
// repeats it: controllers back off for minutes, ask once, or are refused by something else. So
// the plan finds the reason in the cluster's objects (docs/design/0009-reasons.md).

// Owner is what the controller of a Pod wants of its Pods, as far as its object shows it.
type Owner struct {
	// Unknown means that nothing is known of its kind. All else is empty then.
	Unknown bool
	// Gone means that there is no such object, or that it is being deleted together with its Pods.
	Gone bool
	// Replicas is how many Pods it wants; nil if it does not count them.
	Replicas *int32
	// Ordinals means that it wants the Pods with the ordinals from First on, Replicas in number.
	Ordinals bool
	First    int32
	// Revision is the hash of the template that its Pods are to have; empty if they may have any. A
	// Pod whose ordinal is below Partition may have any.
	Revision  string
	Partition int32
	// Unfit are the nodes that have Pods of it and are not to have any, Named the Pods that it is to
	// be rid of.
	Unfit, Named map[string]bool
	// Selects are the keys of the labels by which it selects its Pods; nil if that could not be read in this
	// pass. Foreign means that nobody can read them: its kind is not known here.
	Selects []string
	Foreign bool
	// Acts means that its controller comes for a drained Pod by itself, and at once.
	Acts bool
}

// Node is what a plan reads of a node.
type Node struct {
	// Evicts means that the node has a taint with the effect NoExecute.
	Evicts bool
	// Cordoned means that it takes no new Pods.
	Cordoned bool
	// Goes says why the node goes within a short time, whoever objects: all its Pods leave their registries. It is
	// empty if the node does not say so. Within is that time, from the notice on.
	Goes   string
	Within time.Duration
}

// cause is why the Pod of a request is to go.
type cause struct {
	// lasts means that the reason holds until the Pod is gone, or an object changes. A request
	// without such a reason ends by its timer.
	lasts bool
	// ended means that a controller has asked, and nothing that it could have asked for is wanted
	// any more.
	ended bool
	// finishes means that Usher deletes the Pod when it has drained.
	finishes bool
	// live means that the decision depends on the owner's object: it is read from the API server
	// before the Pod is deleted.
	live bool
	// fewer means that the owner wants fewer Pods, or none: it deletes them whatever budgets say.
	fewer bool
	// text is for people.
	text string
}

// believed is how long a request of a controller counts although no object shows its reason: the
// caches may show them a moment later.
const believed = 5 * time.Second

// findCauses finds why the Pods with requests are to go.
func (ix *index) findCauses() {
	asked := list.Only(ix.pods, func(p *pod) bool { return p.request != nil && p.goes == "" })
	surplus := ix.surplus(asked)
	for _, p := range asked {
		p.cause = ix.causeOf(p, surplus)
		ix.keepEvicted(p)
	}
	for _, p := range ix.pods {
		if p.goes != "" {
			p.cause = cause{lasts: true, text: p.goes}
		}
	}
}

// surplus finds the Pods that owners ask to delete because they have more than they want. Of those
// that are asked for, the ones count first that go now for another reason: a Pod that is evicted is one less
// already. Then those go that have drained, and then the oldest requests.
func (ix *index) surplus(asked []*pod) map[*pod]bool {
	left, alive := map[*pod]bool{}, map[types.UID]int{}
	for _, p := range ix.pods {
		if p.owner != "" && isAlive(p.Pod) {
			alive[p.owner]++
		}
	}
	asked = slices.SortedFunc(slices.Values(asked), func(a, b *pod) int {
		return cmp.Or(
			boolCompare(!ix.goesAnyway(a), !ix.goesAnyway(b)), boolCompare(a.hasFinalizer(), b.hasFinalizer()),
			a.request.Since.Compare(b.request.Since.Time), cmp.Compare(a.Name, b.Name))
	})
	for _, p := range asked {
		owner, known := ix.ownerOf(p)
		if known && owner.Replicas != nil && !owner.Ordinals && isAlive(p.Pod) && alive[p.owner] > int(*owner.Replicas) {
			alive[p.owner]--
			left[p] = true
		}
	}
	return left
}

// goesAnyway reports whether a Pod has drained, and goes now however many its owner wants.
func (ix *index) goesAnyway(p *pod) bool {
	owner, _ := ix.ownerOf(p)
	return !p.hasFinalizer() && (p.request.Eviction || ix.empties(p) || owner.unwanted(p.Pod))
}

func boolCompare(a, b bool) int { return int(oneIf(a) - oneIf(b)) }

// isAlive reports whether an owner counts the Pod.
func isAlive(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}

// causeOf finds why the Pod is to go.
func (ix *index) causeOf(p *pod, surplus map[*pod]bool) cause {
	owner, known := ix.ownerOf(p)
	switch {
	case p.request.Controller && !isAlive(p.Pod):
		return cause{lasts: true, finishes: !owner.Acts, text: "it has ended"}
	case ix.Ending:
		return cause{lasts: true, finishes: true, text: "its namespace is being deleted"}
	}
	if c := p.causeOfOwner(&owner, known, surplus[p]); c.lasts {
		return c
	}
	switch {
	case ix.empties(p):
		return cause{lasts: true, finishes: true, text: "node " + p.Spec.NodeName + " is to be empty"}
	case p.request.Eviction:
		return cause{finishes: true, text: "its eviction was allowed"}
	case p.request.Controller && known && p.state == appsv1alpha1.StateNormal && p.letGo(ix.Now).IsZero():
		return cause{ended: true, text: "its owner wants it again"}
	}
	return cause{}
}

// causeOfOwner is why the Pod's owner does not want it; none if it does, or if nobody knows.
func (p *pod) causeOfOwner(owner *Owner, known, surplus bool) cause {
	c := cause{lasts: true, finishes: !owner.Acts || owner.Gone, live: true}
	switch {
	case !known:
		return cause{}
	case owner.Gone && len(p.OwnerReferences) == 1:
		c.fewer, c.text = true, "its owner is gone"
	case surplus:
		c.fewer, c.text = true, "its owner wants "+list.Count(int(*owner.Replicas), "Pod")
	case owner.unwanted(p.Pod):
		c.text = "its owner wants another Pod in its place"
	default:
		return cause{}
	}
	return c
}

// empties reports whether the Pod's node is to be empty: a taint evicts, or the node is cordoned and
// somebody deletes its Pods, as kubectl drain does with --disable-eviction. An eviction needs no other
// reason.
func (ix *index) empties(p *pod) bool {
	node := ix.Nodes[p.Spec.NodeName]
	if node.Goes != "" {
		return true
	}
	if p.request.Controller {
		return node.Evicts
	}
	return node.Cordoned && (node.Evicts || !p.request.Eviction)
}

// unwanted reports whether the owner does not want a Pod of that ordinal, revision or node.
func (o *Owner) unwanted(pod *corev1.Pod) bool {
	if o.Unfit[pod.Spec.NodeName] || o.Named[pod.Name] {
		return true
	}
	ordinal, numbered := int32(0), false
	if o.Ordinals {
		ordinal, numbered = ordinalOf(pod.Name)
	}
	if numbered && o.Replicas != nil && (ordinal < o.First || ordinal >= o.First+*o.Replicas) {
		return true
	}
	revision := pod.Labels[appsv1alpha1.LabelRevision]
	return o.Revision != "" && revision != "" && !sameRevision(revision, o.Revision) && ordinal >= o.Partition
}

// sameRevision compares the values of a label, of which one may be the name of a ControllerRevision that
// ends with the other.
func sameRevision(a, b string) bool {
	return a == b || strings.HasSuffix(a, "-"+b) || strings.HasSuffix(b, "-"+a)
}

// ordinalOf is the number that a StatefulSet's Pod has in its name.
func ordinalOf(name string) (ordinal int32, ok bool) {
	at := strings.LastIndexByte(name, '-')
	n, err := strconv.ParseInt(name[at+1:], 10, 32)
	return int32(n), at >= 0 && err == nil && n >= 0
}

// Returns finds the Pods whose requests are about to be taken back because their owners seem to want them.
func Returns(snapshot Snapshot) []*corev1.Pod {
	ix := newIndex(snapshot)
	back := list.Only(ix.pods, func(p *pod) bool { return p.request != nil && p.cause.ended && ix.expired(p) })
	return list.Map(back, func(p *pod) *corev1.Pod { return p.Pod })
}

// Finish is a Pod that has drained, or has to go at its deadline, and that Usher deletes: whoever asked may not come
// back for it.
type Finish struct {
	Pod *corev1.Pod
	// Request is the Pod's, with the grace period that its containers are to have; Because says why it holds.
	Request *usherv1alpha1.DeletionRequest
	Because string
	// Undrained means that callers may use the Pod: it goes because its time is nearly over.
	Undrained bool
	// OfOwner means that the owner's object is the reason.
	OfOwner bool
	// PastBudget means that the Pod is deleted if a budget refuses its eviction now: nothing but Usher's readiness
	// gate makes the Pod unready, so that the budget has allowed it before, or its owner wants fewer Pods, and budgets
	// bind no owner, or the budget counts the Pod as disrupted already.
	PastBudget bool
}

// MayBeGone finds the Pods that make others superfluous, and that may be gone although a cache shows them: nothing
// holds them, so the controller of their owner deletes them as it likes. If one is gone, its owner may want a Pod that is
// about to be finished.
func MayBeGone(snapshot Snapshot, finishes []Finish) []*corev1.Pod {
	counted, finished := map[OwnerRef]bool{}, map[types.UID]bool{}
	for _, f := range finishes {
		finished[f.Pod.UID] = true
		ref := OwnerOf(f.Pod)
		if ref == nil || !f.OfOwner {
			continue
		}
		if owner := snapshot.Owners[*ref]; owner.Replicas != nil && !owner.Ordinals {
			counted[*ref] = true
		}
	}
	return list.Only(snapshot.Pods, func(pod *corev1.Pod) bool {
		ref := OwnerOf(pod)
		return ref != nil && counted[*ref] && !finished[pod.UID] && isAlive(pod) &&
			!slices.Contains(pod.Finalizers, usherv1alpha1.Finalizer)
	})
}

// OwnerRef is which owner a Pod names. A Pod may name an owner that is not its own, so it says nothing
// of others with that UID.
type OwnerRef struct {
	APIVersion, Kind, Name string
	UID                    types.UID
}

// OwnerOf is the controller that a Pod names; nil without one.
func OwnerOf(pod *corev1.Pod) *OwnerRef {
	ref := metav1.GetControllerOfNoCopy(pod)
	if ref == nil {
		return nil
	}
	return &OwnerRef{ref.APIVersion, ref.Kind, ref.Name, ref.UID}
}

// ownerOf is what the Pod's owner wants, if that is known.
func (ix *index) ownerOf(p *pod) (owner Owner, known bool) {
	if ref := OwnerOf(p.Pod); ref != nil {
		owner, known = ix.Owners[*ref]
	}
	return owner, known && !owner.Unknown
}

// comesBack is how long whoever asked for the eviction or deletion of a Pod has to come back for it when it has
// drained, if another Pod of its name follows: kubectl drain asks again after five seconds, by the name alone.
const comesBack = 10 * time.Second

// finish returns the Pod if it has drained, or has to go, and its reason holds; nil otherwise, and when that may change
// without an event.
func (ix *index) finish(p *pod) (now *Finish, at time.Time) {
	if !ix.Finish || p.request == nil || p.queued || !p.cause.finishes || p.DeletionTimestamp != nil {
		return nil, time.Time{}
	}
	if p.hasFinalizer() && !ix.hasToGo(p) {
		return nil, time.Time{}
	}
	if at := ix.waitsForRequester(p); ix.Now.Before(at) {
		return nil, at
	}
	return &Finish{
		Pod: p.Pod, Request: ix.inTime(p), Undrained: p.hasFinalizer(), Because: p.cause.text, OfOwner: p.cause.live,
		PastBudget: ix.pastBudget(p),
	}, time.Time{}
}

// pastBudget reports whether no budget can have a say any more in the Pod's deletion.
func (ix *index) pastBudget(p *pod) bool {
	return p.gate && p.unready == "" || p.cause.fewer || ix.granted(p)
}

// grantTime is how long a PodDisruptionBudget counts a Pod as disrupted that has been granted to somebody and is still
// there, less what clocks may be apart.
const grantTime = 2*time.Minute - MaxSkew

// granted reports whether a PodDisruptionBudget counts the Pod as disrupted already: the API server has granted an
// eviction of it that then failed, as with a conflict. It refuses the next one as if another Pod had been disrupted.
func (ix *index) granted(p *pod) bool {
	return slices.ContainsFunc(ix.Budgets, func(budget *policyv1.PodDisruptionBudget) bool {
		at, counted := budget.Status.DisruptedPods[p.Name]
		return counted && !at.Before(&p.CreationTimestamp) && ix.Now.Sub(at.Time) < grantTime
	})
}

// waitsForRequester is until when the Pod is left to whoever asked; zero if it is not. A requester that comes back for
// a Pod that Usher has deleted meanwhile would evict its namesake, which has just joined. A deadline has no time for
// that.
func (ix *index) waitsForRequester(p *pod) time.Time {
	if !p.letGo(ix.Now).IsZero() {
		return time.Time{}
	}
	if p.request.Controller || p.cause.fewer || ix.Ending || !ix.hasNamesake(p) {
		return time.Time{}
	}
	drained := p.request.At.Time
	if p.request.Drained != nil {
		drained = list.Latest(drained, p.request.Drained.Time)
	}
	return drained.Add(comesBack)
}

// hasNamesake reports whether another Pod of the same name may follow: its owner counts ordinals, or nobody knows.
func (ix *index) hasNamesake(p *pod) bool {
	owner, known := ix.ownerOf(p)
	_, numbered := ordinalOf(p.Name)
	return numbered && OwnerOf(p.Pod) != nil && (!known || owner.Ordinals)
}
