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
	// made counts the Pods that were created, steps those that began.
	made, steps int
	// usage is nil if there is no quota.
	usage *usage
	record
}

// due is a step, and when it is taken.
type due struct {
	pod  string
	step step
	at   time.Time
	// number orders steps by when they began.
	number int
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

// together is how many things that are due at once happen one by one. Of more, a controller
// sees several in one pass.
const together = 10

// wait lets the next things happen that are due, in the order in which they began; false if
// nothing will.
func (p *player) wait(next time.Time) bool {
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
	var now []due
	for _, d := range p.due {
		if !d.at.After(p.Now) {
			now = append(now, d)
		}
	}
	slices.SortFunc(now, func(a, b due) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.number, b.number)) })
	for _, d := range now[:min(len(now), 1+len(now)/together)] {
		delete(p.due, d.pod)
		if at, ok := slices.BinarySearchFunc(p.Pods, d.pod, func(pod *corev1.Pod, name string) int { return cmp.Compare(pod.Name, name) }); ok {
			p.take(d.step, p.Pods[at])
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
		p.expect(pod)
	}
}

// expect notes what will happen to a Pod next. A step that stays due keeps its time.
func (p *player) expect(pod *corev1.Pod) {
	next, after := p.next(pod)
	switch known, ok := p.due[pod.Name]; {
	case next.name == "":
		delete(p.due, pod.Name)
	case !ok || known.step.name != next.name:
		p.steps++
		p.due[pod.Name] = due{pod: pod.Name, step: next, at: p.Now.Add(after), number: p.steps}
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
	if inplace.IsTrue(pod, corev1.PodReady) && !ready(pod) {
		setReady(pod, p.Now) // a kubelet sees at once that a gate was closed
	}
	p.Pods[at] = pod
	p.expect(pod)
}

// add puts a new Pod among the others.
func (p *player) add(pod *corev1.Pod) {
	at, _ := slices.BinarySearchFunc(p.Pods, pod, byName)
	p.Pods = slices.Insert(slices.Clone(p.Pods), at, pod)
	p.expect(pod)
}
