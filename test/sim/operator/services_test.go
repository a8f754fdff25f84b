// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usher "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/test/model"
)

const (
	// inServices is the Registry of the kind service, which Registration nginx has in runs
	// with services.
	inServices = "services"
	// lag is how long the EndpointSlice controller may take. What a drain waits covers it.
	lag = time.Second
)

// at is where the Service's only slice is.
var at = types.NamespacedName{Namespace: namespace, Name: service}

// sliced are the Pods that the Service lists as ready.
func (s *simulation) sliced() (uids []types.UID) {
	slice := model.Get[*discoveryv1.EndpointSlice](s.server.Objects, at)
	if slice == nil {
		return nil
	}
	for i := range slice.Endpoints {
		if *slice.Endpoints[i].Conditions.Ready {
			uids = append(uids, slice.Endpoints[i].TargetRef.UID)
		}
	}
	return uids
}

// endpointsOf are the endpoints of the Service's slice.
func (s *simulation) endpointsOf() []discoveryv1.Endpoint {
	if slice := model.Get[*discoveryv1.EndpointSlice](s.server.Objects, at); slice != nil {
		return slice.Endpoints
	}
	return nil
}

// endpoints is a turn of the EndpointSlice controller. What it writes is what it has seen a
// turn before, unless it has no time left.
func (s *simulation) endpoints() {
	if !s.features.service {
		return
	}
	if s.seen == nil || s.clock.Now().Sub(s.seenAt) >= lag {
		s.see()
	}
	seen := s.seen
	s.see()
	s.write(seen)
}

func (s *simulation) see() {
	s.seenAt, s.seen = s.clock.Now(), []discoveryv1.Endpoint{}
	selector := labels.SelectorFromSet(model.Get[*corev1.Service](s.server.Objects, at).Spec.Selector)
	for _, pod := range s.pods() {
		if !selector.Matches(labels.Set(pod.Labels)) || pod.Status.PodIP == "" {
			continue
		}
		ready := pod.DeletionTimestamp == nil && model.Condition(pod, corev1.PodReady).Status == corev1.ConditionTrue
		s.seen = append(s.seen, discoveryv1.Endpoint{
			Addresses: []string{pod.Status.PodIP}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: pod.Name, UID: pod.UID},
		})
	}
}

func (s *simulation) write(endpoints []discoveryv1.Endpoint) {
	before := s.sliced()
	model.Change(s.server, "endpointslices", at, "", func(slice *discoveryv1.EndpointSlice) { slice.Endpoints = endpoints })
	if now := s.sliced(); !slices.Equal(before, now) {
		s.log("the Service lists %v", now)
	}
}

// noteServed notes which Pods callers of the Service can use, and makes the EndpointSlice
// controller write in time.
func (s *simulation) noteServed() {
	if s.features.service && s.clock.Now().Sub(s.seenAt) >= lag {
		s.endpoints()
	}
	for _, uid := range s.sliced() {
		s.served[uid] = s.clock.Now()
	}
}

// follows reports whether the operator sees Registration nginx, which takes Pods out of their
// Service.
func (s *simulation) follows(pod *corev1.Pod) bool {
	r := model.Get[*usher.Registration](s.cached, types.NamespacedName{Namespace: namespace, Name: service})
	return s.features.service && r != nil && r.DeletionTimestamp == nil && pod.Labels["app"] == service
}

// judgeService checks that callers of the Service do not use a Pod whose hook is released.
func (s *simulation) judgeService(key string, pod *corev1.Pod) {
	last, ever := s.served[pod.UID]
	switch {
	case !s.follows(pod) || !ever:
	case slices.Contains(s.sliced(), pod.UID):
		s.fail("%s of %s was released while its Service lists it", key, pod.Name)
	case s.clock.Now().Sub(last) < propagation-lag:
		s.fail("%s of %s was released %s after its Service last listed it", key, pod.Name, s.clock.Now().Sub(last))
	}
}

// judgeGate checks a turn of a Pod's gate, or of its label: only one that is to leave is taken out of its
// Service, and only one that is protected is brought in.
func (s *simulation) judgeGate(before, after *corev1.Pod) {
	if !s.follows(before) || after.UID != before.UID {
		return
	}
	was, is := model.Condition(before, usher.ConditionRegistered).Status, model.Condition(after, usher.ConditionRegistered).Status
	stays := inService(before) && !s.leaves(before)
	s.judgeLabel(before, after, stays)
	switch {
	case was == corev1.ConditionTrue && is != was && stays:
		s.fail("%s is taken out of its Service, and is to stay", before.Name)
	case is == corev1.ConditionTrue && is != was && !controllerutil.ContainsFinalizer(before, usher.Finalizer):
		s.fail("%s is brought into its Service without the finalizer", before.Name)
	}
}

// inService reports whether a Pod's state is one in which its Service lists it, and nobody has asked to delete it.
func inService(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && pod.Annotations[usher.AnnotationDeletionRequest] == "" &&
		slices.Contains([]apps.LifecycleState{apps.StateNormal, apps.StateUpdated}, plan.StateOf(pod))
}

// judgeLabel checks a turn of a Pod's label in the same way.
func (s *simulation) judgeLabel(before, after *corev1.Pod, stays bool) {
	switch was, is := before.Labels[usher.LabelInService], after.Labels[usher.LabelInService]; {
	case is == was:
	case was == "true" && stays:
		s.fail("%s loses the label of its Service, and is to stay", before.Name)
	case is == "true" && !controllerutil.ContainsFinalizer(before, usher.Finalizer):
		s.fail("%s gets the label of its Service without the finalizer", before.Name)
	}
}

// misspell has the Service ask for another label, or again for that of its Pods.
func (s *simulation) misspell(*corev1.Pod) { s.asksFor(pick(s, service, "ngnix")) }

// asksFor sets the label that the Service asks for.
func (s *simulation) asksFor(app string) {
	s.log("the Service asks for app=%s", app)
	edit(s, at.Namespace, at.Name, func(o *corev1.Service) { o.Spec.Selector = s.features.selector(app) })
}

// missed reports whether the Pod is ready, its gate is open, and its Service does not list it.
func (s *simulation) missed(pod *corev1.Pod) bool {
	return s.follows(pod) && stays(pod) && model.Condition(pod, corev1.PodReady).Status == corev1.ConditionTrue &&
		model.Condition(pod, usher.ConditionRegistered).Status == corev1.ConditionTrue && !slices.Contains(s.sliced(), pod.UID) &&
		(!s.features.labelled || pod.Labels[usher.LabelInService] == "true")
}

// checkMissed checks that a Pod says whether its Service misses it, when there was time to see that.
func (s *simulation) checkMissed(pod *corev1.Pod, trouble bool) {
	says, missed := plan.SaysUnlisted(new(model.Condition(pod, usher.ConditionRegistered))), s.missed(pod)
	switch {
	case missed && !trouble:
		s.fail("%s is ready with an open gate, its Service does not list it, and nothing says so", pod.Name)
	case says && s.follows(pod) && slices.Contains(s.sliced(), pod.UID):
		s.fail("%s says that its Service does not list it, and it does", pod.Name)
	}
}

// checkServed checks that the Service lists every Pod when nothing is left to do.
func (s *simulation) checkServed() {
	if !s.features.service {
		return
	}
	listed := s.sliced()
	for _, pod := range s.pods() {
		if !slices.Contains(listed, pod.UID) {
			s.fail("%s is not in its Service", pod.Name)
		}
		s.checkMissed(pod, false)
	}
}
