// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/test/model"
)

// This file is about an API server that refuses changes of Pods because of their content.

// The rules about refusals.
const (
	ruleRefusedLeaves  = "no Pod leaves service for a change that is refused"
	ruleRefusedReturns = "a Pod whose change is refused comes back into service"
)

// refusal describes the changes that are refused now.
type refusal struct {
	// image is the image that no Pod may be given; "" if all are allowed.
	image string
	// policy means that a policy forbids it; otherwise it is invalid.
	policy bool
	// fresh means that it has been refused for as long as any revision has had it.
	fresh bool
}

// refuse begins to refuse an image, or resizes.
func (s *Simulation) refuse(what string, policy bool) {
	s.World.say("story", "the API server refuses Pods %s", what)
	s.refusedOnce = true
	if what == "resizes" {
		s.Server.RefuseResizes = true
		return
	}
	has := func(r *appsv1.ControllerRevision) bool { return strings.Contains(string(r.Data.Raw), `"`+what+`"`) }
	known := slices.ContainsFunc(model.List[*appsv1.ControllerRevision](s.Server.Objects), has)
	s.refusal = refusal{image: what, policy: policy, fresh: !known}
}

// allow ends the refusal.
func (s *Simulation) allow() {
	if s.refusal.image != "" || s.Server.RefuseResizes {
		s.World.say("story", "the API server refuses nothing any more")
	}
	s.refusal, s.Server.RefuseResizes = refusal{}, false
}

// refuses answers a change of a Pod.
func (s *Simulation) refuses(actor string, old, next client.Object) error {
	was, ok := old.(*corev1.Pod)
	image := s.refusal.image
	if !ok || image == "" || !isProcess(actor) || runsImage(&was.Spec, image) || !runsImage(&next.(*corev1.Pod).Spec, image) {
		return nil
	}
	if s.refusal.policy {
		return apierrors.NewForbidden(model.Pods.Resource(), was.Name, errors.New("no Pod gets "+image))
	}
	return apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Pod").GroupKind(), was.Name, field.ErrorList{
		field.Invalid(field.NewPath("spec", "containers").Index(0).Child("image"), image, "no Pod gets it"),
	})
}

func runsImage(spec *corev1.PodSpec, image string) bool {
	return slices.ContainsFunc(spec.Containers, func(c corev1.Container) bool { return c.Image == image })
}

// stands reports whether the set's Pods keep their revision because their update to the template is
// refused.
func (s *Simulation) stands(set *apps.CloneSet) bool {
	return s.refusal.image != "" && s.refusal.policy && runsImage(&must(set.Spec.Template.Decode()).Spec, s.refusal.image)
}

// leavesForRefused: a Pod leaves service for an update only if the API server would have accepted the
// update at some time.
func leavesForRefused(w *podWrite) {
	r := &w.process.refusal
	if r.image == "" || !r.fresh || w.old == nil || w.new == nil || runsImage(&w.old.Spec, r.image) {
		return
	}
	if w.outForUpdate(w.new) && !w.outForUpdate(w.old) && runsImage(&must(w.set.Spec.Template.Decode()).Spec, r.image) {
		w.fail("leaves service for image %s, which the API server refuses it", r.image)
	}
}

// outForUpdate reports whether a Pod is out of service for an update to the revision of the template.
func (w *podWrite) outForUpdate(pod *corev1.Pod) bool {
	c := model.Condition(pod, apps.ConditionInPlaceUpdateReady)
	return model.State(pod) == apps.StatePreparingUpdate || c.Status == corev1.ConditionFalse && c.Message == w.update
}

// whileRefused is for how long a refusal outlasts all other faults, in runs that end with one.
const whileRefused = 30 * time.Minute

// outlast lets a refusal last for a while after all other faults: then every Pod serves.
func (s *Simulation) outlast() {
	if s.refusal.image == "" && !s.Server.RefuseResizes {
		return
	}
	begun := s.World.now()
	for end := begun.Add(whileRefused); s.World.failure == nil && !s.World.idle() && s.World.now().Before(end); {
		s.World.step()
	}
	set := s.Set()
	if s.World.failure != nil || goes(set) {
		s.allow()
		return
	}
	for _, pod := range s.Pods() {
		if model.Active(pod) && !available(pod, set, s.World.now()) {
			s.World.fail(ruleRefusedReturns, "Pod %s is out of service %s after the last other fault: %s", pod.Name, s.World.now().Sub(begun), s.missingOf(pod, set))
		}
	}
	s.allow()
}

// randomRefusal draws a refusal, and its time.
func (s *Simulation) randomRefusal(seed uint64) {
	w := newWorld(seed ^ 0xde41) // its own random source, as in randomEnd
	if !w.roll(0.3) {
		return
	}
	what, policy := pick(w, "app:2", "app:3", "app:4", "resizes"), w.roll(0.5)
	s.World.after(w.between(0, pick(w, time.Millisecond, s.plannedEnd)), func() { s.refuse(what, policy) })
	if w.roll(0.5) {
		s.World.after(w.between(0, s.plannedEnd), s.allow)
	}
}
