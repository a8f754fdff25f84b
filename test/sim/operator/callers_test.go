// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usher "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/test/model"
)

const (
	// maxRetries is how often client-go repeats a request that is answered with Retry-After.
	maxRetries = 10
	// requeue is after how long kubectl drain, and controllers, begin a new request.
	requeue = 5 * time.Second

	actorUser       = "ann"
	actorReplicaSet = "system:serviceaccount:kube-system:replicaset-controller"
	actorCollector  = "system:serviceaccount:kube-system:generic-garbage-collector"
	actorNamespace  = "system:serviceaccount:kube-system:namespace-controller"
)

// caller is a client of the API server that wants a Pod to go. It repeats its requests as
// client-go does.
type caller struct {
	who    string
	pod    *corev1.Pod
	evicts bool
	// retries are left of the present request, which is repeated at next.
	retries int
	next    time.Time
	// gives is when the caller gives up although it could go on; zero if it never does, and
	// begins a new request after the retries.
	gives time.Time
}

// ask begins a request. A caller that asks once may be interrupted.
func (s *simulation) ask(who string, pod *corev1.Pod, evicts bool, patience time.Duration) {
	if s.asks(who, pod) {
		return
	}
	c := &caller{who: who, pod: pod, evicts: evicts, retries: maxRetries, next: s.clock.Now()}
	if patience > 0 {
		c.gives = s.clock.Now().Add(patience)
	}
	s.callers = append(s.callers, c)
}

// asks reports whether someone waits for the Pod to go.
func (s *simulation) asks(who string, pod *corev1.Pod) bool {
	return slices.ContainsFunc(s.callers, func(c *caller) bool { return c.who == who && c.pod.UID == pod.UID })
}

// call makes the requests whose time has come.
func (s *simulation) call() {
	waiting := s.callers
	s.callers = nil
	for _, c := range waiting {
		if s.repeat(c) {
			s.callers = append(s.callers, c)
		}
	}
}

// repeat makes the caller's next request, if its time has come, and reports whether it goes on.
func (s *simulation) repeat(c *caller) bool {
	pod := s.pod(c.pod.Name)
	switch {
	case pod == nil || pod.UID != c.pod.UID || pod.DeletionTimestamp != nil:
		return false
	case !c.gives.IsZero() && !s.clock.Now().Before(c.gives):
		s.log("%s gives up %s", c.who, pod.Name)
		return false
	case c.who == actorReplicaSet && s.surplus() <= 0, c.who == actorEvictor && !s.evicts(pod):
		s.log("%s does not want %s to go any more", c.who, pod.Name)
		return false
	case s.clock.Now().Before(c.next):
		return true
	}
	goesOn := c.goesOn(s.request(c), s.clock.Now())
	if s.stops(c) {
		s.log("%s asks no more for %s", c.who, pod.Name)
		s.stopped[pod.UID] = true
		return false
	}
	return goesOn
}

// stops reports whether a controller does not repeat its request, or only after minutes: it has backed off,
// is refused by something else, or asks once.
func (s *simulation) stops(c *caller) bool {
	return s.features.finishes && (c.who == actorReplicaSet || c.who == actorCollector) && s.guardian.excuse == "" && s.random.IntN(3) == 0
}

// goesOn reports whether the caller repeats its request after that answer, and sets when.
func (c *caller) goesOn(err error, now time.Time) bool {
	delay, repeats := apierrors.SuggestsClientDelay(err)
	switch {
	case err == nil:
		return false
	case repeats && delay > 0 && c.retries > 0:
		c.retries--
		c.next = now.Add(time.Duration(delay) * time.Second)
	case c.who == actorCloneSet, c.who == actorUser && (!c.evicts || !apierrors.IsTooManyRequests(err)):
		return false
	default:
		c.retries, c.next = maxRetries, now.Add(requeue)
	}
	return true
}

// request asks the API server once.
func (s *simulation) request(c *caller) error {
	s.guardian.excuse = ""
	defer func() { s.guardian.excuse = "" }()
	at := client.ObjectKeyFromObject(c.pod)
	if !c.evicts {
		s.guardian.deleters[c.pod.UID] = true
		s.noteDeadline(c.pod, s.grace(c))
		err := s.server.Delete(c.who, c.pod, s.deleteOptions(c)...)
		s.log("%s deletes %s: %v", c.who, at.Name, err)
		s.judgeHold(c, err)
		return err
	}
	err := s.server.Evict(c.who, at, &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Namespace: at.Namespace, Name: at.Name}, DeleteOptions: metav1.NewPreconditionDeleteOptions(string(c.pod.UID)),
	}, false)
	s.log("%s evicts %s: %v", c.who, at.Name, err)
	return err
}

// patience is how long someone waits who wants a Pod to go.
func (s *simulation) patience() time.Duration {
	return time.Second + time.Duration(s.random.Int64N(int64(3*time.Minute)))
}

// drainNode evicts all Pods, as kubectl drain does.
func (s *simulation) drainNode(*corev1.Pod) {
	patience := s.patience()
	for _, pod := range s.pods() {
		s.ask(actorUser, pod, true, patience)
	}
}

// scale changes how many Pods the ReplicaSet wants.
func (s *simulation) scale(*corev1.Pod) {
	s.scaleTo(s.random.Int32N(3))
	s.scaleIn()
}

func (s *simulation) scaleTo(replicas int32) {
	s.log("ReplicaSet web wants %d Pods", replicas)
	edit(s, namespace, "web", func(set *appsv1.ReplicaSet) { set.Spec.Replicas = &replicas })
	clear(s.stopped)
}

// changeMind scales the ReplicaSet to nothing and back: whoever is on its way out is to come back.
func (s *simulation) changeMind() {
	s.scaleTo(0)
	s.scaleIn()
	s.call()
	s.process.left = unlimited
	s.passes(2)
	s.scaleTo(2)
}

// replicas are the Pods that the ReplicaSet counts, in the order in which it deletes them.
func (s *simulation) replicas() []*corev1.Pod {
	_, pods := replicasIn(s.server.Objects)
	cost := func(pod *corev1.Pod) int {
		cost, _ := strconv.Atoi(pod.Annotations[corev1.PodDeletionCost])
		return cost
	}
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int { return cost(a) - cost(b) })
	return pods
}

// replicasIn are the ReplicaSet and its Pods in that view; none if there is no ReplicaSet.
func replicasIn(objects model.Objects) (set *appsv1.ReplicaSet, pods []*corev1.Pod) {
	set = model.Get[*appsv1.ReplicaSet](objects, types.NamespacedName{Namespace: namespace, Name: "web"})
	if set == nil {
		return nil, nil
	}
	return set, slices.DeleteFunc(model.List[*corev1.Pod](objects), func(pod *corev1.Pod) bool {
		return pod.Namespace != namespace || model.OwnerOf(pod) != string(set.UID) || pod.DeletionTimestamp != nil
	})
}

// superfluous reports whether a Pod's ReplicaSet has more Pods than it wants, as it is or as the operator's caches
// show it.
func (s *simulation) superfluous(pod *corev1.Pod) bool {
	return slices.ContainsFunc([]model.Objects{s.server.Objects, s.cached}, func(view model.Objects) bool {
		set, pods := replicasIn(view)
		return set != nil && model.OwnerOf(pod) == string(set.UID) && len(pods) > int(*set.Spec.Replicas)
	})
}

// replicaSet is the UID of the ReplicaSet.
func (s *simulation) replicaSet() string {
	set := model.Get[*appsv1.ReplicaSet](s.server.Objects, types.NamespacedName{Namespace: namespace, Name: "web"})
	if set == nil {
		return "none"
	}
	return string(set.UID)
}

// surplus is how many Pods the ReplicaSet has more than it wants; what it lacks is negative.
func (s *simulation) surplus() int {
	set, pods := replicasIn(s.server.Objects)
	if set == nil {
		return 0
	}
	return len(pods) - int(*set.Spec.Replicas)
}

// scaleIn has the ReplicaSet delete the Pods that it does not want. It asks again when something changes,
// but not where it has stopped.
func (s *simulation) scaleIn() {
	pods := s.replicas()
	surplus := max(s.surplus(), 0)
	s.judgeChoice(pods[:surplus], pods[surplus:])
	for _, pod := range pods[:surplus] {
		if !s.stopped[pod.UID] {
			s.ask(actorReplicaSet, pod, false, 0)
		}
	}
}

// force deletes a Pod at once, with grace period 0 or past the guard.
func (s *simulation) force(pod *corev1.Pod) {
	if s.random.IntN(2) == 0 {
		s.change(pod, "skips the drain", func(pod *corev1.Pod) {
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, usher.AnnotationSkipDrain, "true")
		})
		s.ask(actorUser, pod, s.random.IntN(2) == 0, time.Minute)
		return
	}
	s.guardian.excuse = "it is forced"
	s.log("%s: is deleted by force", pod.Name)
	checktest.NoError(s, s.server.Delete(actorUser, pod, client.GracePeriodSeconds(0)))
	s.guardian.excuse = ""
}

// end deletes the objects of some kinds, in any order; whoever is to delete the Pods follows.
func (s *simulation) end(who, follows string, kinds ...model.Kind) {
	if s.ending != "" || s.absent != nil || s.random.IntN(4) > 0 {
		return
	}
	s.ending = follows
	s.log("%s ends all of %v", who, kinds)
	s.endNamespace(follows == actorNamespace)
	for _, n := range s.random.Perm(len(kinds)) {
		s.deleteAll(kinds[n], who)
	}
}

// endNamespace has the namespace be deleted, or be made anew.
func (s *simulation) endNamespace(ends bool) {
	edit(s, "", namespace, func(object *corev1.Namespace) {
		if object.DeletionTimestamp = nil; ends {
			object.DeletionTimestamp = new(metav1.NewTime(s.clock.Now()))
		}
	})
}

// deleteAll deletes the objects of a kind; a CloneSet may have to wait for its Pods.
func (s *simulation) deleteAll(kind model.Kind, who string) {
	for _, object := range model.Sorted(s.server.Objects[kind]) {
		if object.GetNamespace() != namespace {
			continue
		}
		if kind == "CloneSet" && s.random.IntN(2) == 0 {
			edit(s, namespace, object.GetName(), func(set *apps.CloneSet) { set.Finalizers = []string{metav1.FinalizerDeleteDependents} })
		}
		checktest.NoError(s, s.server.Delete(who, object))
	}
}

// collect deletes Pods whose CloneSet or namespace is being deleted. When all is gone, it is
// made anew.
func (s *simulation) collect() {
	if s.ending == "" {
		return
	}
	left := 0
	for _, pod := range s.pods() {
		switch {
		case s.ending == actorNamespace, pod.Labels[apps.LabelLifecycleState] != "" && !s.stopped[pod.UID]:
			s.ask(s.ending, pod, false, 0) // the namespace controller never stops
		case pod.Labels[apps.LabelLifecycleState] == "":
			continue
		}
		left++
	}
	if left > 0 {
		return
	}
	edit(s, namespace, "nginx", func(set *apps.CloneSet) { set.Finalizers = nil })
	if s.ending == actorNamespace && len(s.registrations()) > 0 {
		return
	}
	s.log("all is gone, and made anew")
	s.endNamespace(false)
	for _, object := range s.features.objects() {
		kind := model.KindOf(object)
		if _, there := s.server.Objects[kind][client.ObjectKeyFromObject(object)]; !there {
			s.make(object)
		}
	}
	s.ending = ""
}

// ownerOf are the owners of a new Pod: those of some names belong to a ReplicaSet, or to
// nobody.
func (s *simulation) ownerOf(name string) []metav1.OwnerReference {
	switch owner := owners[name]; {
	case s.features.guard && owner == ofNobody:
		return nil
	case s.features.guard && owner == ofReplicaSet:
		set := model.Get[*appsv1.ReplicaSet](s.server.Objects, types.NamespacedName{Namespace: namespace, Name: "web"})
		return []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
	}
	set := model.List[*apps.CloneSet](s.server.Objects)[0]
	return []metav1.OwnerReference{*metav1.NewControllerRef(set, apps.KindCloneSet)}
}

const ofNobody, ofReplicaSet = "nobody", "ReplicaSet"

// owners are those of Pods without a CloneSet, by the names that runs with the guard use.
var owners = map[string]string{"nginx-2": ofReplicaSet, "nginx-3": ofNobody, "nginx-4": ofReplicaSet, "nginx-5": ofNobody}

// setCost sets the deletion cost of a Pod, as its user does.
func (s *simulation) setCost(pod *corev1.Pod, cost string) {
	s.guardian.costs[pod.UID] = cost
	s.change(pod, "costs "+cost, func(pod *corev1.Pod) {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, corev1.PodDeletionCost, cost)
	})
}
