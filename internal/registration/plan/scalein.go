// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
)

// With spec.scaleInOrder, Pods in service are asked how much is under way, and get a deletion cost that follows
// from it: ReplicaSets and CloneSets scale in the Pods with the lowest cost first. A write to a Pod concerns
// everybody who watches Pods. So costs are classes, not counts, and are written only if they order two Pods of
// one owner the wrong way round.

const (
	// servingEvery is how often a Pod in service is asked at least, unless there are many: a namespace asks one every
	// servingPause.
	servingEvery, servingPause = 10 * time.Second, 100 * time.Millisecond
	// costEvery is how often a Pod's cost is written at most. Of a namespace, mostCosts are written in costsWithin.
	costEvery, costsWithin, mostCosts = 30 * time.Second, 10 * time.Second, 10
	// staleAfter is how many turns old an answer is that says nothing any more.
	staleAfter = 3
	// busiest is the class of Pods that do not say how much is under way.
	busiest = 31
)

// Cost is the annotation usher.dev/scale-in: a deletion cost that Usher has written to a Pod.
type Cost struct {
	// Class is the cost: 0 while the Pod is idle, else the number of binary digits of what is under way, 31 at most.
	Class int `json:"cost"`
	// At is when it was written.
	At time.Time `json:"at"`
}

// CostOf is the cost that Usher has written to the Pod; nil if it has written none, or somebody else another one since.
func CostOf(pod *corev1.Pod) *Cost {
	text, ok := pod.Annotations[usherv1alpha1.AnnotationScaleIn]
	if !ok {
		return nil // as of nearly all Pods: nothing is allocated for them
	}
	var cost Cost
	if json.Unmarshal([]byte(text), &cost) != nil || cost.Class < 0 || cost.Class > busiest ||
		pod.Annotations[corev1.PodDeletionCost] != strconv.Itoa(cost.Class) {
		return nil
	}
	return &cost
}

// String is for people: how much was under way when the cost was written.
func (c Cost) String() string {
	switch {
	case c.Class <= 0:
		return "nothing"
	case c.Class == 1:
		return "1 request"
	case c.Class >= busiest:
		return "an unknown number of requests"
	}
	return fmt.Sprintf("%d to %d requests", 1<<(c.Class-1), 1<<c.Class-1)
}

// costChange is what becomes of a Pod's cost: another one, or none.
type costChange struct {
	set *Cost
	// keep leaves the deletion cost itself, which somebody else has set.
	keep bool
}

// annotate adds the change to a Pod's annotations; nil removes one.
func (c *costChange) annotate(annotations map[string]*string) {
	switch {
	case c == nil:
	case c.set != nil:
		text, _ := json.Marshal(c.set) // numbers and a time always encode
		annotations[usherv1alpha1.AnnotationScaleIn] = new(string(text))
		annotations[corev1.PodDeletionCost] = new(strconv.Itoa(c.set.Class))
	default:
		annotations[usherv1alpha1.AnnotationScaleIn] = nil
		if !c.keep {
			annotations[corev1.PodDeletionCost] = nil
		}
	}
}

// ranked is a Pod in service that is to be ordered among those of its owner.
type ranked struct {
	*pod
	// has is the class that its cost says, and wants the one that follows from its answers.
	has, wants int
	written    time.Time
}

// orderScaleIn decides on the costs of all Pods. It returns whom to ask, in the order of Pods, and when to look again.
func (ix *index) orderScaleIn() (asks []Ask, next time.Time) {
	owned, every := map[types.UID][]*ranked{}, ix.servingEvery()
	for _, r := range ix.registrations {
		r.silentPods = nil
	}
	for _, p := range ix.pods {
		p.cost = nil
		by := p.orderedBy()
		if len(by) == 0 {
			p.cost = costGoes(p)
			continue
		}
		one := &ranked{pod: p}
		if p.wrote != nil {
			one.has, one.written = p.wrote.Class, p.wrote.At
		}
		one.wants = -1
		for _, r := range by {
			ask, class := ix.classFor(p, r, one.has, every)
			one.wants = max(one.wants, class)
			if ask != nil {
				asks = append(asks, *ask)
			}
		}
		owned[p.owner] = append(owned[p.owner], one)
	}
	return asks, ix.writeCosts(wrong(owned))
}

// orders reports whether the Registration has its Pods ordered.
func (r *registration) orders() bool {
	until := r.Spec.Drain.Until
	return r.DeletionTimestamp == nil && r.Spec.ScaleInOrder == usherv1alpha1.ScaleInIdleFirst &&
		until != nil && (until.HTTP != nil || len(until.Metrics) > 0)
}

// orderedBy are the Registrations that have the Pod ordered; none if its owner is not one that heeds costs, it is
// leaving, or somebody else has set its cost.
func (p *pod) orderedBy() []*registration {
	by := list.Only(p.selectedBy, (*registration).orders)
	cost, has := p.Annotations[corev1.PodDeletionCost]
	switch {
	case len(by) == 0, !heedsCost(p.Pod), has && cost != "" && p.wrote == nil:
		return nil
	case p.outOfService():
		return nil
	}
	return by
}

// outOfService reports whether the Pod does not serve, or is about to leave: then its cost stays as it is.
func (p *pod) outOfService() bool {
	leaves := slices.Contains([]appsv1alpha1.LifecycleState{
		appsv1alpha1.StatePreparingDelete, appsv1alpha1.StatePreparingUpdate, appsv1alpha1.StateUpdating}, p.state)
	asked := p.DeletionTimestamp != nil || p.request != nil || p.evicted
	return leaves || asked || p.unready != "" || ended(p.Pod) || slices.ContainsFunc(p.hooks, hook.leaving)
}

// heedsCost reports whether the Pod's controller scales in by deletion costs.
func heedsCost(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOfNoCopy(pod)
	return owner != nil && slices.Contains([]string{"ReplicaSet", "CloneSet", "ReplicationController"}, owner.Kind)
}

// costGoes takes away what Usher has written to a Pod that it orders no more; nil if there is nothing to take
// away. While the guard has set another cost, Usher's own is in its request, and comes back with it.
func costGoes(p *pod) *costChange {
	_, marked := p.Annotations[usherv1alpha1.AnnotationScaleIn]
	ordered := slices.ContainsFunc(p.selectedBy, (*registration).orders) && heedsCost(p.Pod)
	switch {
	case !marked, p.DeletionTimestamp != nil, p.Annotations[corev1.PodDeletionCost] == DeletionCost:
		return nil
	case p.wrote != nil && ordered && p.outOfService():
		return nil
	}
	return &costChange{keep: p.wrote == nil}
}

// servingEvery is how often each Pod in service is asked.
func (ix *index) servingEvery() time.Duration {
	n := 0
	for _, r := range ix.registrations {
		if r.orders() {
			n += len(r.pods)
		}
	}
	return max(servingEvery, time.Duration(n)*servingPause)
}

// classFor asks a Pod on behalf of one Registration, and says which class it belongs in; the one that it has,
// if that is not known yet. ask is nil if the Pod cannot be asked.
func (ix *index) classFor(p *pod, r *registration, has int, every time.Duration) (ask *Ask, class int) {
	until := r.Spec.Drain.Until
	checks, err := ix.checksOf(p.Pod, until)
	if err != nil {
		r.silentPods = append(r.silentPods, SilentPod{p.Name, err.Error()})
		return nil, has
	}
	ask = &Ask{
		AskKey: AskKey{p.uid, r.Name}, For: DurationOf(until.For, DefaultUntilFor),
		Checks: checks, Serves: true, Every: every,
	}
	answer := ix.Answers[ask.AskKey]
	if ix.Now.Sub(answer.At) > staleAfter*every {
		return ask, has
	}
	if answer.Problem != "" {
		r.silentPods = append(r.silentPods, SilentPod{p.Name, answer.Problem})
	}
	return ask, answer.class(has, ask.For)
}

// class is that of a Pod that has answered so, and has another one. Pods are idle once they have been for so long. Busy
// ones move by two classes or more: a factor of two is no reason for a write.
func (a Answer) class(has int, long time.Duration) int {
	class := a.Load()
	switch {
	case class == 0 && a.At.Sub(a.IdleSince) < long, has > 0 && a.Problem != "":
		return has
	case has > 0 && class > 0 && max(class-has, has-class) < 2:
		return has
	}
	return class
}

// Load is the class of what is under way: 0 if nothing is.
func (a Answer) Load() int {
	switch {
	case a.Problem != "":
		return busiest
	case !a.IdleSince.IsZero():
		return 0
	case a.UnderWay == nil:
		return 1
	}
	return max(min(bits.Len64(uint64(max(*a.UnderWay, 0))), busiest-1), 1)
}

// wrong are the Pods whose cost another Pod of their owner shows to be wrong: the busier one would go first, or
// as soon. The worst come first: busy Pods that look idle.
func wrong(owned map[types.UID][]*ranked) (all []*ranked) {
	for _, pods := range owned {
		var least, most [busiest + 1]int // of the costs, by the classes that are wanted
		for class := range least {
			least[class], most[class] = math.MaxInt, math.MinInt
		}
		for _, p := range pods {
			least[p.wants], most[p.wants] = min(least[p.wants], p.has), max(most[p.wants], p.has)
		}
		for _, p := range pods {
			busier := slices.Min(append(least[p.wants+1:], math.MaxInt))
			idler := slices.Max(append(most[:p.wants:p.wants], math.MinInt))
			if p.wants != p.has && (busier <= p.has || idler >= p.has) {
				all = append(all, p)
			}
		}
	}
	slices.SortFunc(all, func(a, b *ranked) int {
		return cmp.Or(cmp.Compare(b.wants-b.has, a.wants-a.has), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// writeCosts has costs written, as many as are useful now. It returns when to look again.
func (ix *index) writeCosts(all []*ranked) (next time.Time) {
	room := mostCosts
	for _, p := range ix.pods {
		if p.wrote != nil && ix.Now.Sub(p.wrote.At) < costsWithin && !p.wrote.At.After(ix.Now) {
			room--
		}
	}
	for _, p := range all {
		switch again := p.written.Add(costEvery); {
		case ix.Now.Before(again) && !p.written.After(ix.Now):
			next = list.Earliest(next, again)
		case room <= 0:
			next = list.Earliest(next, ix.Now.Add(costsWithin))
		default:
			room--
			p.cost = &costChange{set: &Cost{Class: p.wants, At: ix.Now.UTC().Truncate(time.Second)}}
		}
	}
	return next
}

// SilentPod is a Pod in service that does not say how much is under way.
type SilentPod struct{ name, problem string }

// String is for people.
func (s SilentPod) String() string { return "Pod " + s.name + ": " + s.problem }
