// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usher "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest/memory"
	"github.com/usher-dev/usher/internal/registration/responder"
	"github.com/usher-dev/usher/test/model"
)

// Kubernetes' own evictions: requesters ask twice, late, and withdraw; Kubernetes' controller gives responders
// their turns when it comes to that; another responder takes its time, and the last one evicts.

const (
	actorCoordinator = "system:serviceaccount:kube-system:evictionrequest-controller"
	actorEvictor     = "system:serviceaccount:kube-system:imperative-eviction-responder-controller"
	otherResponder   = "example.com/other"
	// kindEviction is the kind of Kubernetes' evictions.
	kindEviction model.Kind = "Eviction"
	// silentFor is how long a responder may say nothing.
	silentFor = 20 * time.Minute
)

// evictions are those of the API server, in the order of their names.
func (s *simulation) evictions() []*lifecyclev1alpha1.Eviction {
	return model.List[*lifecyclev1alpha1.Eviction](s.server.Objects)
}

func over(e *lifecyclev1alpha1.Eviction) bool {
	return meta.IsStatusConditionTrue(e.Status.Conditions, "Failed") || meta.IsStatusConditionTrue(e.Status.Conditions, "TargetEvicted")
}

// requestEviction has one of two requesters ask for a Pod, perhaps once more.
func (s *simulation) requestEviction(pod *corev1.Pod) {
	if pod.DeletionTimestamp != nil {
		return
	}
	requester := pick(s, "example.com/a", "example.com/b")
	for _, e := range s.evictions() {
		if e.Spec.Target.Pod.UID == pod.UID && !over(e) {
			s.log("%s wants %s evicted as well", requester, pod.Name)
			s.intents[e.Name][requester] = true
			return
		}
	}
	s.serial++
	name := fmt.Sprintf("pod-%04d-%s", s.serial, pod.Name)
	s.log("%s wants %s evicted: %s", requester, pod.Name, name)
	s.intents[name] = map[string]bool{requester: true}
	responders := []lifecyclev1alpha1.TargetResponder{{Name: usher.EvictionResponder}, {Name: lifecyclev1alpha1.EvictionResponderImperativeEviction}}
	if at := s.random.IntN(3); at < 2 { // before Usher, or after it
		responders = slices.Insert(responders, at, lifecyclev1alpha1.TargetResponder{Name: otherResponder})
	}
	s.responders[name] = responders
	s.make(&lifecyclev1alpha1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{usher.EvictionResponder: "responder"}},
		Spec: lifecyclev1alpha1.EvictionSpec{Target: lifecyclev1alpha1.EvictionTarget{
			Pod: &lifecyclev1alpha1.EvictionPodReference{Name: pod.Name, UID: pod.UID},
		}},
	})
}

// withdraw has a requester change its mind.
func (s *simulation) withdraw() {
	for _, e := range s.evictions() {
		if !over(e) && s.random.IntN(2) == 0 {
			requester := pick(s, "example.com/a", "example.com/b")
			s.log("%s withdraws %s", requester, e.Name)
			s.intents[e.Name][requester] = false
		}
	}
}

// withdrawAll has nobody want any Pod evicted.
func (s *simulation) withdrawAll() {
	for _, intents := range s.intents {
		clear(intents)
	}
}

// coordinate has Kubernetes' controller, and the responders other than Usher, look at all evictions.
func (s *simulation) coordinate() {
	for _, e := range s.evictions() {
		if !over(e) {
			model.Change(s.server, actorCoordinator, client.ObjectKeyFromObject(e), "status", s.progress)
		}
	}
}

// progress is what Kubernetes' controller does with an eviction.
func (s *simulation) progress(e *lifecyclev1alpha1.Eviction) {
	status := &e.Status
	if len(status.TargetResponders) == 0 {
		status.TargetResponders = slices.Clone(s.responders[e.Name])
		for i := range status.TargetResponders {
			status.TargetResponders[i].State = lifecyclev1alpha1.ResponderStateInactive
			status.Responders = append(status.Responders, lifecyclev1alpha1.ResponderStatus{Name: status.TargetResponders[i].Name})
		}
	}
	status.Requesters = nil
	for _, requester := range []string{"example.com/a", "example.com/b"} {
		if s.intents[e.Name][requester] {
			status.Requesters = append(status.Requesters, lifecyclev1alpha1.Requester{Name: requester, Intent: lifecyclev1alpha1.RequesterIntentEviction})
		}
	}
	at := slices.IndexFunc(status.TargetResponders, func(r lifecyclev1alpha1.TargetResponder) bool {
		return r.State == lifecyclev1alpha1.ResponderStateActive
	})
	pod := s.pod(e.Spec.Target.Pod.Name)
	switch {
	case pod == nil || pod.UID != e.Spec.Target.Pod.UID:
		s.finishEviction(e, at, lifecyclev1alpha1.ResponderStateInterrupted, "TargetEvicted")
	case len(status.Requesters) == 0:
		s.finishEviction(e, at, lifecyclev1alpha1.ResponderStateCanceled, "Failed")
	case at < 0:
		s.activate(e, 0)
	default:
		s.proceed(e, at, pod)
	}
}

// finishEviction gives the active responder, if there is one, its last state, and the eviction its condition.
func (s *simulation) finishEviction(e *lifecyclev1alpha1.Eviction, at int, last lifecyclev1alpha1.ResponderStateType, condition string) {
	if at >= 0 {
		if e.Status.Responders[at].CompletionTime != nil {
			last = lifecyclev1alpha1.ResponderStateCompleted
		}
		e.Status.TargetResponders[at].State = last
	}
	meta.SetStatusCondition(&e.Status.Conditions, metav1.Condition{Type: condition, Status: metav1.ConditionTrue, Reason: "Over"})
	s.log("%s is over: %s", e.Name, condition)
}

// proceed gives the next responder its turn, if the active one has done its part, or says nothing for too long.
func (s *simulation) proceed(e *lifecyclev1alpha1.Eviction, at int, pod *corev1.Pod) {
	active, said := &e.Status.TargetResponders[at], &e.Status.Responders[at]
	switch {
	case said.CompletionTime != nil:
		active.State = lifecyclev1alpha1.ResponderStateCompleted
		s.activate(e, at+1)
	case active.Name == otherResponder && s.random.IntN(3) == 0:
		active.State = lifecyclev1alpha1.ResponderStateCompleted
		s.activate(e, at+1)
	case active.Name == lifecyclev1alpha1.EvictionResponderImperativeEviction:
		s.ask(actorEvictor, pod, true, 0)
	case said.HeartbeatTime != nil && s.clock.Now().Sub(said.HeartbeatTime.Time) > silentFor:
		active.State = lifecyclev1alpha1.ResponderStateInterrupted
		s.activate(e, at+1)
	}
}

func (s *simulation) activate(e *lifecyclev1alpha1.Eviction, at int) {
	name := e.Status.TargetResponders[at].Name
	e.Status.TargetResponders[at].State = lifecyclev1alpha1.ResponderStateActive
	e.Status.Responders[at].StartTime = new(metav1.NewTime(s.clock.Now().Truncate(time.Second)))
	s.log("%s: it is the turn of %s", e.Name, name)
	if name == usher.EvictionResponder {
		s.turned[e.Spec.Target.Pod.UID] = true
	}
}

// evicts reports whether Kubernetes still wants to evict the Pod.
func (s *simulation) evicts(pod *corev1.Pod) bool {
	return slices.ContainsFunc(s.evictions(), func(e *lifecyclev1alpha1.Eviction) bool {
		return !over(e) && e.Spec.Target.Pod.UID == pod.UID && len(e.Status.TargetResponders) > 0 &&
			e.Status.TargetResponders[len(e.Status.TargetResponders)-1].State == lifecyclev1alpha1.ResponderStateActive
	})
}

// underWay reports whether an eviction of the Pod is Usher's, or was before it went on, in that view.
func underWay(objects model.Objects, uid types.UID) bool {
	return slices.ContainsFunc(model.List[*lifecyclev1alpha1.Eviction](objects), func(e *lifecyclev1alpha1.Eviction) bool {
		turn := responder.Read(e).Turn
		return !over(e) && e.Spec.Target.Pod.UID == uid && turn != "" && turn != "Inactive" && turn != "Canceled"
	})
}

// leaves reports whether a Pod may leave its registries although nobody has asked to delete it.
func (s *simulation) leaves(pod *corev1.Pod) bool { return s.goes(pod) || s.turned[pod.UID] }

// refusesResponses has the API server take what a responder says in its turn only, and no time that goes back.
func (s *simulation) refusesResponses() {
	s.server.Refuses = func(actor string, old, next client.Object) error {
		stored, isEviction := old.(*lifecyclev1alpha1.Eviction)
		if !isEviction || actor != actorOperator {
			return nil
		}
		before, after := responder.Read(stored), responder.Read(next.(*lifecyclev1alpha1.Eviction))
		if before.Turn != "Active" || over(stored) || !before.Completed.IsZero() || after.Heartbeat.Before(before.Heartbeat) || after.Heartbeat.Before(before.Started) {
			return apierrors.NewInvalid(lifecyclev1alpha1.SchemeGroupVersion.WithKind("Eviction").GroupKind(), old.GetName(), nil)
		}
		return nil
	}
}

// judgeResponse checks what the operator says of an eviction: after the end of its turn whoever comes next may
// evict the Pod.
func (s *simulation) judgeResponse(c *model.Commit) {
	_, isEviction := c.Old.(*lifecyclev1alpha1.Eviction)
	if !isEviction || c.Actor != actorOperator {
		return
	}
	after := responder.Read(c.Object().(*lifecyclev1alpha1.Eviction))
	pod := s.pod(after.Pod)
	switch {
	case after.Completed.IsZero(), pod == nil, pod.UID != after.PodUID:
		return
	case pod.DeletionTimestamp != nil, s.guardian.proceeded[pod.UID], s.unguarded(pod.UID): // another rule has judged such a Pod
		return
	}
	s.handed++
	s.judgeDrain(pod.Name+" is handed on", true, pod)
}

// checkEviction has somebody ask for a Pod's eviction while all is well, and change its mind: the Pod leaves,
// and comes back.
func (s *simulation) checkEviction() {
	for _, name := range registries {
		s.breaks(name, memory.None)
	}
	s.withdrawAll()
	s.coordinate()
	for _, pod := range s.pods() {
		if pod.DeletionTimestamp == nil && s.random.IntN(2) == 0 {
			s.requestEviction(pod)
		}
	}
	for range 6 {
		s.server.CountBudgets()
		s.coordinate()
		s.refresh()
		s.probe()
		s.process.left = unlimited
		s.pass()
		s.wait(3 * time.Second)
	}
	for _, pod := range s.pods() {
		if _, serving := s.listed(pod.UID); serving && underWay(s.server.Objects, pod.UID) && s.features.budget == 0 {
			s.fail("%s is in service although its eviction is under way", pod.Name)
		}
	}
	s.withdrawAll()
	s.coordinate()
}
