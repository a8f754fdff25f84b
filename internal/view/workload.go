// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	setplan "github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/podread"
	regplan "github.com/usher-dev/usher/internal/registration/plan"
)

// annotationCause is the annotation in which kubectl keeps why a template was changed.
const annotationCause = "kubernetes.io/change-cause"

// Of returns the view of a workload.
func Of(o Objects) Workload {
	slices.SortFunc(o.Pods, func(a, b *corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	w := o.workload(regplan.Snapshot{Now: o.Now, Pods: o.Pods, Registrations: o.Registrations})
	o.noteUnseen(&w)
	o.noteRegistrations(&w)
	w.noteLonely(o.Now)
	if w.Phase == PhaseDone {
		w.Phase = w.placed()
	}
	return w
}

// placed returns the phase of a rollout that is done by its counts. They do not consider registries:
// the rollout is not done while a Pod that serves is still to be registered, or is in trouble.
func (w *Workload) placed() Phase {
	phase := PhaseDone
	for i := range w.Members {
		switch p := &w.Members[i]; {
		case p.Available && p.Trouble && p.State != stateTerminating:
			return PhaseDegraded
		case p.Available && p.joining:
			phase = PhaseUpdating
		}
	}
	return phase
}

func (o *Objects) workload(operator regplan.Snapshot) Workload {
	if o.Set == nil {
		return o.other(regplan.Show(operator))
	}
	operator.CloneSets = []*apps.CloneSet{o.Set}
	return o.cloneSet(regplan.Show(operator))
}

// other returns the view of a workload of Kubernetes' own kinds.
func (o *Objects) other(shown map[string]regplan.Shown) Workload {
	w := Workload{Summary: o.Other}
	for _, pod := range o.Pods {
		p := o.pod(pod, shown[pod.Name], nil)
		p.Ready = podread.IsTrue(pod, corev1.PodReady)
		p.Available = p.Ready && pod.DeletionTimestamp == nil
		w.Members = append(w.Members, p)
	}
	return w
}

func (o *Objects) cloneSet(shown map[string]regplan.Shown) Workload {
	set := o.Set
	w := Workload{Summary: Summary{
		Kind: apps.KindCloneSet.Kind, Namespace: set.Namespace, Name: set.Name,
		Desired: int(ptr.Deref(set.Spec.Replicas, 1)), Problems: o.problems(), Unseen: UnseenOf(set),
	}}
	spec, err := setplan.SpecOf(set)
	if err != nil {
		w.Phase, w.Problems = PhaseInvalid, append(w.Problems, Problem{Reason: "SpecInvalid", Message: err.Error()})
		return w
	}
	s := o.planner(spec)
	counts, _ := setplan.Review(s)
	w.Pods, w.Ready, w.Available, w.Updated, w.ToUpdate = counts.Replicas, counts.Ready, counts.Available, counts.Updated, counts.ExpectedUpdated
	budget := spec.Budget()
	w.Budget = &Budget{
		Method: string(spec.Method), Partition: budget.Partition, MaxUnavailable: budget.MaxUnavailable, MaxSurge: budget.MaxSurge,
		Unavailable: max(w.Desired-counts.Available, 0),
	}
	w.Phase = o.phase(&spec, counts)
	if c := o.Set.Status.Condition(apps.ConditionProgressing); c != nil && w.Phase == PhaseUpdating && spec.ProgressDeadline > 0 && w.Unseen == nil {
		w.Deadline = c.LastUpdateTime.Add(spec.ProgressDeadline)
	}
	for status := range setplan.PodStatuses(s) {
		p := o.pod(status.Pod, shown[status.Pod.Name], status.Waits)
		p.Updated, p.Ready, p.Available = status.Updated, status.Ready, status.Available
		w.Members = append(w.Members, p)
	}
	w.Revisions = o.revisions(w.Members)
	if previous := Previous(set, o.Revisions); previous != nil {
		w.Previous = new(RevisionOf(set, previous))
	}
	return w
}

// Previous returns the newest revision with another template than the present one; nil if there is
// none.
func Previous(set *apps.CloneSet, all []*appsv1.ControllerRevision) (newest *appsv1.ControllerRevision) {
	for _, object := range all {
		if !revision.Same(object.Name, set.Status.UpdateRevision) && (newest == nil || object.Revision > newest.Revision) {
			newest = object
		}
	}
	return newest
}

// planner returns the input of the CloneSet controller's planner.
func (o *Objects) planner(spec setplan.Spec) *setplan.Snapshot {
	how, _ := setplan.DeletionOf(o.Set)
	s := &setplan.Snapshot{
		Now: o.Now, Set: o.Set.Name, Deletion: how, Spec: spec, Pods: o.Pods, Revisions: o.Known(),
	}
	s.Update = revisionOf(s, o.Set.Status.UpdateRevision)
	s.Current = revisionOf(s, o.Set.Status.CurrentRevision)
	return s
}

// Known returns the CloneSet's revisions by hash.
func (o *Objects) Known() map[string]*revision.Revision {
	all := map[string]*revision.Revision{}
	for _, object := range o.Revisions {
		all[revision.Short(object.Name)] = revision.Of(object.Name, object.Revision, object.Data.Raw)
	}
	return all
}

// revisionOf returns a revision that the status names, even if its object is gone.
func revisionOf(s *setplan.Snapshot, name string) *revision.Revision {
	return cmp.Or(s.Revisions[revision.Short(name)], &revision.Revision{Name: name})
}

func (o *Objects) phase(spec *setplan.Spec, counts setplan.Counts) Phase {
	updated := counts.Replicas == spec.Replicas && counts.UpdatedAvailable >= counts.ExpectedUpdated && counts.Available == counts.Replicas
	stalled := o.Set.Status.Condition(apps.ConditionProgressing)
	seen := o.Set.Status.ObservedGeneration == o.Set.Generation
	switch {
	case o.Set.DeletionTimestamp != nil:
		return PhaseDeleting
	case updated && seen:
		return PhaseDone
	case spec.Paused:
		return PhasePaused
	case seen && stalled != nil && stalled.Reason == setplan.ProgressDeadlineExceeded:
		return PhaseStalled
	}
	return PhaseUpdating
}

// problems returns the conditions that report a problem. Blocked is not among them, unless Pods in
// service wait: other Pods show their waits themselves.
func (o *Objects) problems() []Problem {
	var out []Problem
	for _, c := range o.Set.Status.Conditions {
		failed := c.Type == apps.ConditionFailedScale || c.Type == apps.ConditionFailedUpdate || c.Reason == setplan.ReasonImagePullFails
		if failed && c.Status == corev1.ConditionTrue && !slices.ContainsFunc(out, func(p Problem) bool { return p.Message == c.Message }) {
			out = append(out, Problem{Reason: c.Reason, Message: c.Message, Since: c.LastTransitionTime.Time})
		}
	}
	return out
}

// revisions returns the revisions of Pods, and the current and the template's, the newest first.
func (o *Objects) revisions(pods []Pod) []Revision {
	counts := map[string]int{}
	for _, pod := range pods {
		counts[revision.Short(pod.Revision)]++
	}
	var out []Revision
	for _, object := range o.Revisions {
		r := RevisionOf(o.Set, object)
		r.Pods = counts[revision.Short(object.Name)]
		if r.Pods > 0 || r.Current || r.Update {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b Revision) int { return cmp.Or(cmp.Compare(b.Number, a.Number), cmp.Compare(a.Name, b.Name)) })
	return out
}

// RevisionOf reads a ControllerRevision of a CloneSet.
func RevisionOf(set *apps.CloneSet, object *appsv1.ControllerRevision) Revision {
	r := Revision{
		Name: object.Name, Number: object.Revision, Created: object.CreationTimestamp.Time,
		Cause:   object.Annotations[annotationCause],
		Current: revision.Same(object.Name, set.Status.CurrentRevision), Update: revision.Same(object.Name, set.Status.UpdateRevision),
	}
	if template, err := revision.Template(object.Data.Raw); err == nil {
		r.Images = Images(template)
	}
	return r
}

// Images returns the images of a template's containers, as "name=image".
func Images(template map[string]any) []string {
	spec, _ := template["spec"].(map[string]any)
	containers, _ := spec["containers"].([]any)
	var out []string
	for _, one := range containers {
		if c, ok := one.(map[string]any); ok {
			out = append(out, fmt.Sprintf("%v=%v", c["name"], c["image"]))
		}
	}
	return out
}

// SummaryOf returns the summary of a Deployment, StatefulSet, ReplicaSet or DaemonSet.
func SummaryOf(object metav1.Object) Summary {
	s := Summary{Namespace: object.GetNamespace(), Name: object.GetName(), Unseen: UnseenOf(object)}
	paused := false
	count := func(kind string, desired, pods, ready, available, updated int32) {
		s.Kind, s.Desired, s.ToUpdate = kind, int(desired), int(desired)
		s.Pods, s.Ready, s.Available, s.Updated = int(pods), int(ready), int(available), int(updated)
	}
	switch o := object.(type) {
	case *appsv1.Deployment:
		t := o.Status
		count("Deployment", ptr.Deref(o.Spec.Replicas, 1), t.Replicas, t.ReadyReplicas, t.AvailableReplicas, t.UpdatedReplicas)
		paused = o.Spec.Paused
	case *appsv1.StatefulSet:
		t := o.Status
		count("StatefulSet", ptr.Deref(o.Spec.Replicas, 1), t.Replicas, t.ReadyReplicas, t.AvailableReplicas, t.UpdatedReplicas)
		if u := o.Spec.UpdateStrategy.RollingUpdate; u != nil {
			s.ToUpdate = max(s.Desired-int(ptr.Deref(u.Partition, 0)), 0)
		}
	case *appsv1.ReplicaSet:
		t := o.Status
		count("ReplicaSet", ptr.Deref(o.Spec.Replicas, 1), t.Replicas, t.ReadyReplicas, t.AvailableReplicas, t.Replicas)
	case *appsv1.DaemonSet:
		t := o.Status
		count("DaemonSet", t.DesiredNumberScheduled, t.CurrentNumberScheduled, t.NumberReady, t.NumberAvailable, t.UpdatedNumberScheduled)
	}
	s.Phase = s.phaseOf(object, paused)
	return s
}

// phaseOf returns the phase of a workload with these counts.
func (s *Summary) phaseOf(object metav1.Object, paused bool) Phase {
	switch {
	case object.GetDeletionTimestamp() != nil:
		return PhaseDeleting
	case s.Unseen == nil && s.settled():
		return PhaseDone
	case paused:
		return PhasePaused
	case s.Unseen == nil && stalled(object):
		return PhaseStalled
	}
	return PhaseUpdating
}

// stalled reports whether a Deployment has not moved for spec.progressDeadlineSeconds.
func stalled(object metav1.Object) bool {
	d, ok := object.(*appsv1.Deployment)
	return ok && slices.ContainsFunc(d.Status.Conditions, func(c appsv1.DeploymentCondition) bool {
		return c.Type == appsv1.DeploymentProgressing && c.Reason == setplan.ProgressDeadlineExceeded
	})
}

// settled reports whether the counts are as they should be.
func (s *Summary) settled() bool {
	return s.Available == s.Desired && s.Pods == s.Desired && s.Updated >= s.ToUpdate
}

func (o *Objects) pod(pod *corev1.Pod, shown regplan.Shown, waits []setplan.Blocked) Pod {
	p := Pod{
		Name: pod.Name, Node: pod.Spec.NodeName, State: stateOf(pod, shown.Holds), Created: pod.CreationTimestamp.Time,
		Revision: setplan.RevisionOf(pod), Entries: shown.Entries, Changed: changed(pod),
		Images: list.Map(pod.Spec.Containers, func(c corev1.Container) string { return c.Name + "=" + c.Image }),
	}
	if c := podread.Condition(pod, usherv1alpha1.ConditionRegistered); c != nil {
		p.Registered = string(c.Status)
		if regplan.SaysUnlisted(c) { // The condition belongs to the gate, which stays open.
			p.Registered = string(corev1.ConditionFalse)
		}
	}
	if cost := regplan.CostOf(pod); cost != nil {
		p.ScaleIn = &ScaleIn{Cost: cost.Class, UnderWay: cost.String(), At: cost.At}
	}
	for _, c := range containerStatuses(pod) {
		p.Restarts += int(c.RestartCount)
	}
	w := waiter{Objects: o, pod: pod, holds: shown.Holds}
	p.Waits, p.Trouble = w.waits(waits)
	p.joining = len(p.Entries) > 0 && p.Registered != string(corev1.ConditionTrue) && !leaves(pod)
	return p
}

// StateDraining is the state of a Pod that leaves its registries because somebody wants to delete it.
// Its lifecycle state is Normal.
const StateDraining = "Draining"

// stateTerminating is the state of a terminating Pod.
const stateTerminating = "Terminating"

// changed returns the latest of the times that the Pod itself shows.
func changed(pod *corev1.Pod) time.Time {
	at := list.Latest(pod.CreationTimestamp.Time, podread.StateSince(pod))
	for _, kind := range []corev1.PodConditionType{corev1.PodReady, usherv1alpha1.ConditionRegistered} {
		at = list.Latest(at, podread.Since(pod, kind))
	}
	return at
}

// drainedFor returns the deletion request for which a Pod has been drained; nil if there is none.
func drainedFor(pod *corev1.Pod) *usherv1alpha1.DeletionRequest {
	c := podread.Condition(pod, usherv1alpha1.ConditionRegistered)
	request, err := usherv1alpha1.DeletionRequestOf(pod)
	if err != nil || c == nil || c.Status != corev1.ConditionFalse || pod.DeletionTimestamp != nil || slices.Contains(pod.Finalizers, usherv1alpha1.Finalizer) {
		return nil
	}
	return request
}

// stateOf returns the Pod's state for people.
func stateOf(pod *corev1.Pod, holds []regplan.Hold) string {
	state := regplan.StateOf(pod)
	switch {
	case pod.DeletionTimestamp != nil:
		return stateTerminating
	case pod.Status.Phase == corev1.PodFailed, pod.Status.Phase == corev1.PodSucceeded:
		return string(pod.Status.Phase)
	case state == apps.StateNormal && (drainedFor(pod) != nil || slices.ContainsFunc(holds, func(h regplan.Hold) bool { return h.Gate == regplan.GateRequested })):
		return StateDraining
	}
	return string(state)
}

func containerStatuses(pod *corev1.Pod) []corev1.ContainerStatus {
	return slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
}

// Rank says how much attention a Pod needs; the lowest needs most.
type Rank int

// The ranks.
const (
	// RankTrouble: the wait does not end by itself.
	RankTrouble Rank = iota
	// RankWaits: it waits.
	RankWaits
	// RankUnavailable: it does not serve.
	RankUnavailable
	// RankServes: it waits for nothing.
	RankServes
)

// Rank returns the rank of the Pod.
func (p *Pod) Rank() Rank {
	switch {
	case p.Trouble:
		return RankTrouble
	case len(p.Waits) > 0:
		return RankWaits
	case !p.Available:
		return RankUnavailable
	}
	return RankServes
}
