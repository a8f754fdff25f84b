// SPDX-License-Identifier: Apache-2.0

package forecast

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	regplan "github.com/usher-dev/usher/internal/registration/plan"
)

// player plays a set to the end.
type player struct {
	*plan.Snapshot
	set     *apps.CloneSet
	planner func(*plan.Snapshot) plan.Plan
	// begun is when the play begins, ends when the last Pod has come into service.
	begun, ends time.Time
	pace        pace
	// due is what somebody other than the controller does next with a Pod.
	due map[string]due
	// behind are the Pods whose kubelet does not run their spec yet.
	behind map[string]bool
	// broken are the Pods that will not get ready unless something of them changes.
	broken map[string]bool
	// made counts the Pods that were created.
	made int
	record
}

// due is a step, and when it is taken.
type due struct {
	step step
	at   time.Time
}

// mostPasses bounds a play per Pod. An update of one takes about ten.
const mostPasses = 60

// play runs until nothing happens any more, or the bound is reached. It returns the last
// decision.
func (p *player) play() (plan.Plan, error) {
	for range mostPasses * (len(p.Pods) + p.Spec.Replicas + 10) {
		p.PodInfos = plan.ReadPods(p.Pods, p.PodInfos)
		decided := p.planner(p.Snapshot)
		p.decided(&decided)
		for i := range decided.Actions {
			if err := p.perform(&decided.Actions[i]); err != nil {
				return decided, err
			}
		}
		p.look()
		if len(decided.Actions) > 0 || decided.More {
			continue
		}
		if !p.wait(decided.RequeueAt) {
			return decided, nil
		}
		p.look()
	}
	return plan.Plan{}, errEndless
}

// wait lets the next thing happen; false if nothing will.
func (p *player) wait(next time.Time) bool {
	for _, pod := range p.Pods {
		p.plan(pod)
	}
	for _, d := range p.due {
		if next.IsZero() || d.at.Before(next) {
			next = d.at
		}
	}
	if next.IsZero() {
		return false
	}
	if next.After(p.Now) {
		p.Now = next
	}
	for _, pod := range slices.Clone(p.Pods) {
		if d, ok := p.due[pod.Name]; ok && !d.at.After(p.Now) {
			delete(p.due, pod.Name)
			p.take(d.step, pod)
		}
	}
	return true
}

// meet finds out which Pods are on their way already, and which will not get there.
func (p *player) meet() {
	for _, pod := range p.Pods {
		record, err := inplace.ParseState(pod.Annotations[apps.AnnotationInPlaceUpdateState])
		done, _ := record.Done(pod, p.Now)
		switch {
		case stuck(pod):
			p.broken[pod.Name] = true
		case !started(pod):
		case regplan.StateOf(pod) == apps.StateUpdating && (err != nil || !done), !containersReady(pod) && p.Now.Sub(notReadySince(pod)) < patience:
			p.behind[pod.Name] = true
		case !containersReady(pod):
			p.broken[pod.Name] = true
		}
	}
}

// plan notes what will happen to a Pod next. A step that stays due keeps its time.
func (p *player) plan(pod *corev1.Pod) {
	next, after := p.next(pod)
	switch known, ok := p.due[pod.Name]; {
	case next == "":
		delete(p.due, pod.Name)
	case !ok || known.step != next:
		p.due[pod.Name] = due{step: next, at: p.Now.Add(after)}
	}
}

func byName(a, b *corev1.Pod) int { return cmp.Compare(a.Name, b.Name) }

// replace puts a changed copy of a Pod in its place; nil removes it.
func (p *player) replace(old, pod *corev1.Pod) {
	at, _ := slices.BinarySearchFunc(p.Pods, old, byName)
	if pod == nil {
		p.Pods = slices.Delete(slices.Clone(p.Pods), at, at+1)
		delete(p.due, old.Name)
		return
	}
	p.Pods[at] = pod
}

// add puts a new Pod among the others.
func (p *player) add(pod *corev1.Pod) {
	at, _ := slices.BinarySearchFunc(p.Pods, pod, byName)
	p.Pods = slices.Insert(slices.Clone(p.Pods), at, pod)
}
