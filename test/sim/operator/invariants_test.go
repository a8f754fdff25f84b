// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usher "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest/memory"
	"github.com/usher-dev/usher/test/model"
)

// check checks the invariants that hold at every moment.
func (s *simulation) check() {
	held := map[string]bool{}
	for _, pod := range s.pods() {
		held[string(pod.UID)] = controllerutil.ContainsFinalizer(pod, usher.Finalizer)
	}
	s.noteServed()
	s.noteBalanced()
	s.expire()
	for _, name := range registries {
		s.checkEntries(name, held)
	}
}

// checkEntries checks the entries in a registry; held are the UIDs of Pods that cannot
// vanish.
func (s *simulation) checkEntries(name string, held map[string]bool) {
	foreign, r := false, s.registry(name)
	known := used(r)
	for _, e := range s.entries(name) {
		if uid := types.UID(e.Owner.PodUID); serves(name, e) {
			s.lastSeen[uid], s.seenIn[name][uid] = s.clock.Now(), s.clock.Now()
		}
		switch {
		case e.ID == s.foreign.ID:
			foreign = e.Same(s.foreign) && e.Version == s.foreign.Version
		case s.features.applications:
		case !held[e.Owner.PodUID] && !s.guardian.proceeded[types.UID(e.Owner.PodUID)]:
			s.fail("%s lists %s, whose Pod could vanish or has", name, e.Owner.Pod)
		case !known:
			s.fail("%s lists %s, and the Registry could vanish, or knows of no Registration: %+v", name, e.Owner.Pod, r)
		}
	}
	if !foreign {
		s.fail("the foreign entry in %s was touched", name)
	}
}

// used reports whether a Registry knows that Registrations use it, and so cannot vanish.
func used(r *usher.Registry) bool {
	return r != nil && controllerutil.ContainsFinalizer(r, usher.Finalizer) && len(r.Status.Users) > 0
}

// judge checks a write of the operator to a Pod.
func (s *simulation) judge(c *model.Commit) {
	s.judgeEnd(c)
	s.judgeFinish(c)
	s.judgeResponse(c)
	before, after := c.Pods()
	if c.Actor != actorOperator || before == nil {
		return
	}
	s.guardian.writes[before.UID] = &written{after, c.Version}
	if after == nil {
		after = &corev1.Pod{} // its last finalizer is gone, and the Pod with it
	}
	if _, labelled := after.Labels[usher.LabelGuarded]; labelled {
		delete(s.guardian.mislabelled, after.UID)
	}
	for key, state := range map[string]apps.LifecycleState{
		keyInPlace: apps.StatePreparingUpdate, keyDelete: apps.StatePreparingDelete,
	} {
		if before.Labels[key] == "true" && after.Labels[key] == "false" {
			s.judgeRelease(before, key, state)
		}
	}
	if drained(after) && !drained(before) && !s.follows(after) {
		s.guardian.unfollowed[after.UID] = true
	}
	s.judgeCost(before, after)
	s.noteKnown(before, after)
	s.judgeGate(before, after)
	s.judgeJoined(before, after)
	s.judgeFinalizer(before, after)
}

// judgeFinalizer checks that the finalizer holds a Pod while a registry lists it.
func (s *simulation) judgeFinalizer(before, after *corev1.Pod) {
	lost := controllerutil.ContainsFinalizer(before, usher.Finalizer) && !controllerutil.ContainsFinalizer(after, usher.Finalizer)
	if lost {
		s.proceeds(before)
	}
	if lost && before.DeletionTimestamp == nil {
		s.judgeBusy(before.Name+" was let go", before, s.mayEnd(before))
	}
	if listed, _ := s.listed(before.UID); lost && listed && !s.unguarded(before.UID) && !s.guardian.proceeded[before.UID] {
		s.fail("the finalizer of %s was removed while a registry lists it", before.Name)
	}
}

func (s *simulation) judgeRelease(pod *corev1.Pod, key string, state apps.LifecycleState) {
	gate := pod.Name + key + pod.Annotations[apps.AnnotationLifecycleTimestamp]
	s.released[gate]++
	stays := key == keyInPlace && s.features.policy == usher.InPlaceUpdateStay
	after := s.clock.Now().Sub(s.entered[pod.UID])
	overdue := s.features.proceed && after >= deadline
	if key == keyDelete {
		overdue = s.features.proceeds(after)
	}
	if overdue && key == keyDelete {
		s.guardian.proceeded[pod.UID] = true
	}
	s.judgeHookBusy(key, stays, pod)
	switch {
	case plan.StateOf(pod) != state:
		s.fail("%s of %s was released in %s", key, pod.Name, plan.StateOf(pod))
	case s.released[gate] > 1:
		s.fail("%s of %s was released twice", key, pod.Name)
	case !stays && !overdue:
		s.judgeDrain(key+" of "+pod.Name+" was released", key == keyDelete, pod)
		s.judgeService(key, pod)
		s.judgeBalancer(key+" of "+pod.Name+" was released", pod)
	}
}

// judgeDrain checks that no callers use a Pod when its hook is released or it is deleted. One
// that goes is listed nowhere, not even out of service.
func (s *simulation) judgeDrain(what string, goes bool, pod *corev1.Pod) {
	listed, serving := s.listed(pod.UID)
	switch last, ever := s.lastSeen[pod.UID]; {
	case serving, listed && goes:
		s.fail("%s while a registry lists it", what)
	case !ever:
	case s.clock.Now().Sub(last) < propagation:
		s.fail("%s %s after it was last listed", what, s.clock.Now().Sub(last))
	default:
		s.judgeOutages(what, pod)
	}
}

// checkSettled checks what holds when nothing is left to do.
func (s *simulation) checkSettled() {
	want := map[string]bool{"/" + s.foreign.ID: true}
	for _, pod := range s.pods() {
		for _, name := range []string{"nginx", edge} {
			if s.matches(name, pod) {
				want[name+"/"+plan.EntryID(pod)] = true
			}
		}
		if wrong := cmp.Or(s.unasked(pod), unfinished(pod)); wrong != "" {
			s.fail("%s: %s", pod.Name, wrong)
		}
	}
	if surplus := s.surplus(); surplus > 0 {
		s.fail("%d Pods are there that their ReplicaSet has asked to delete", surplus)
	}
	s.checkServed()
	s.checkOwned()
	if !s.features.applications {
		s.checkListed(want)
	}
}

// checkListed checks that each registry lists these entries, and no others.
func (s *simulation) checkListed(want map[string]bool) {
	for _, name := range registries {
		have := map[string]bool{}
		for _, e := range s.entries(name) {
			have[e.Owner.Registration+"/"+e.ID] = true
			if want := s.weightOf(e.Owner.Pod); e.ID != s.foreign.ID && e.Weight != want {
				s.fail("%s lists %s with the weight %d, want %d", name, e.Owner.Pod, e.Weight, want)
			}
		}
		if !maps.Equal(have, want) {
			s.fail("%s lists %v, want %v", name, have, want)
		}
	}
}

// unfinished describes what is left to do for a Pod that should have settled.
func unfinished(pod *corev1.Pod) string {
	switch {
	case pod.DeletionTimestamp != nil:
		return "it was never let go"
	case plan.StateOf(pod) != apps.StateNormal:
		return "it is stuck in " + string(plan.StateOf(pod))
	case pod.Labels[keyCreated] != "false", pod.Labels[keyInPlace] != "true", pod.Labels[keyDelete] != "true":
		return fmt.Sprintf("its hooks are %v", pod.Labels)
	case model.Condition(pod, usher.ConditionRegistered).Status != corev1.ConditionTrue:
		return "its condition does not say that it is registered"
	case pod.Labels[usher.LabelGuarded] == "":
		return "API servers do not ask the guard about it"
	case pod.Annotations[usher.AnnotationDrain] != "":
		return "it still has a drain record"
	}
	return ""
}

// matches reports whether a Registration selects the Pod.
func (s *simulation) matches(registration string, pod *corev1.Pod) bool {
	if registration == edge {
		return s.features.second && pod.Labels["track"] == edge
	}
	return pod.Labels["app"] == "nginx"
}

// weightOf is what registries should list for a Pod.
func (s *simulation) weightOf(name string) int32 {
	if pod := s.pod(name); pod != nil && s.features.weights {
		if weight, err := strconv.Atoi(pod.Annotations[weightAnnotation]); err == nil {
			return int32(weight)
		}
	}
	return 10
}

// judgeSilence checks the removal of Pods whose nodes are silent, as the caches show
// them: together with those that have left before, they are no more than the share. A service has the name of its
// Registration.
func (p *process) judgeSilence(name, service string, changes []registry.Change) {
	if !p.exists(service) {
		return // what leaves does so because its Registration is gone
	}
	overdue, total := p.silentPods(service)
	removed, away := 0, maps.Clone(overdue)
	maps.DeleteFunc(away, func(_ string, late bool) bool { return !late })
	for _, e := range p.entries(name) {
		if e.Owner.Registration == service {
			delete(away, e.Owner.PodUID)
		}
	}
	for _, c := range changes {
		late, silent := overdue[c.Entry.Owner.PodUID]
		if c.Op != registry.Remove || !silent {
			continue
		}
		if removed++; !late {
			p.fail("%s loses %s, whose node has only just fallen silent", name, c.Entry.Owner.Pod)
		}
	}
	if removed > 0 && removed+len(away) > max(min(total*plan.DefaultNodePercent/100, total-1), 0) {
		p.fail("%s loses %d of %d Pods because their nodes are silent, and has lost %d before",
			name, removed, total, len(away))
	}
}

// exists reports whether a Registration stays: in the caches, and at the API server, whose
// answers the operator may have read.
func (p *process) exists(registration string) bool {
	return !slices.ContainsFunc([]model.Objects{p.cached, p.server.Objects}, func(objects model.Objects) bool {
		r := model.Get[*usher.Registration](objects, types.NamespacedName{Namespace: namespace, Name: registration})
		return r == nil || r.DeletionTimestamp != nil
	})
}

// silentPods finds the Pods of a Registration whose nodes the caches show as silent, and
// whether their grace is over, except those that leave for another reason that the
// caches do not show yet. It also counts all Pods that could be listed.
func (p *process) silentPods(registration string) (overdue map[string]bool, total int) {
	overdue = map[string]bool{}
	for _, pod := range model.List[*corev1.Pod](p.cached) {
		ready, _ := plan.Ready(pod)
		since, silent := plan.Silent(pod)
		if !p.matches(registration, pod) || !p.remains(pod) && (!listable(pod) || !ready && !silent) {
			continue
		}
		total++
		if silent && p.keeps(registration, pod) {
			overdue[string(pod.UID)] = p.clock.Now().Sub(since)+p.features.ahead() >= plan.DefaultNodeGrace
		}
	}
	return overdue, total
}

// keeps reports whether the Pod is to stay with the Registration, as the cache and the API
// server have it.
func (p *process) keeps(registration string, pod *corev1.Pod) bool {
	live := p.pod(pod.Name)
	stays := func(pod *corev1.Pod) bool { return stays(pod) || p.remains(pod) }
	return live != nil && live.UID == pod.UID && stays(live) && stays(pod) && !p.leaves(live) && p.matches(registration, live) && !unready(live)
}

// remains reports whether a Pod stays listed through its update in place, whether it is ready or not.
func (p *process) remains(pod *corev1.Pod) bool {
	return p.features.policy == usher.InPlaceUpdateStay && pod.DeletionTimestamp == nil && pod.Annotations[usher.AnnotationDeletionRequest] == "" &&
		slices.Contains([]apps.LifecycleState{apps.StatePreparingUpdate, apps.StateUpdating, apps.StateUpdated}, plan.StateOf(pod))
}

// unready reports whether a Pod is not ready, and its node is not the reason.
func unready(pod *corev1.Pod) bool {
	ready, _ := plan.Ready(pod)
	_, silent := plan.Silent(pod)
	return !ready && !silent
}

// stays reports whether a Pod is in such a state, and nobody has asked to delete it.
func stays(pod *corev1.Pod) bool {
	return listable(pod) && pod.Annotations[usher.AnnotationDeletionRequest] == ""
}

// listable reports whether a Pod's state is one in which it is listed.
func listable(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil &&
		slices.Contains([]apps.LifecycleState{apps.StatePreparingNormal, apps.StateNormal, apps.StateUpdated}, plan.StateOf(pod))
}

// absence is a time in which a registry was really away, for its callers as well.
type absence struct {
	name     string
	from, to time.Time
	// met are the processes that noticed it; recorded reports whether one of them has
	// written so.
	met      []*process
	recorded bool
}

// breaks gives a registry another fault.
func (s *simulation) breaks(name string, fault memory.Fault) {
	s.log("%s has fault %d", name, fault)
	s.stores[name].Break(fault)
	open := slices.IndexFunc(s.absences, func(a *absence) bool { return a.name == name && a.to.IsZero() })
	switch {
	case fault == memory.Down && open < 0:
		s.absences = append(s.absences, &absence{name: name, from: s.clock.Now()})
	case fault != memory.Down && open >= 0:
		s.absences[open].to = s.clock.Now()
	}
}

// meets notes that the process noticed an absence.
func (p *process) meets(name string, err error) {
	for _, a := range p.absences {
		if err != nil && a.name == name && a.to.IsZero() {
			a.met = append(a.met, p)
		}
	}
}

// records notes that the process wrote when a registry was away.
func (p *process) records(name string) {
	for _, a := range p.absences {
		a.recorded = a.recorded || a.name == name && slices.Contains(a.met, p)
	}
}

// judgeOutages checks whether callers that had lost the registry know that a Pod leaves
// when it does: they need as long again as the registry was away, but no
// longer than plan.DefaultAfterOutage, to be back.
func (s *simulation) judgeOutages(what string, pod *corev1.Pod) {
	for _, a := range s.absences {
		known, seen := a.recorded || slices.Contains(a.met, s.process), s.seenIn[a.name][pod.UID]
		if !known || a.to.IsZero() || !a.from.Before(seen.Add(propagation)) { // they had heard before
			continue
		}
		back := a.to.Add(min(a.to.Sub(a.from), plan.DefaultAfterOutage))
		if late := s.clock.Now().Sub(back); back.After(seen) && late < propagation {
			s.fail("%s %s after callers were back at %s", what, late, a.name)
		}
	}
}
