// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"slices"
	"time"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/lifecycle"
)

// pass is the state of one pass over a snapshot.
type pass struct {
	*Snapshot
	plan Plan
	// pods are the active Pods.
	pods []*podView
	// ended are the Pods that will never run again.
	ended  []*podView
	ledger ledger
	// queue holds the chosen Pods in the order of their update.
	queue []*podView
	// named are the Pods that spec.scaleStrategy.podsToDelete lists.
	named map[string]bool
	// changes are the ways to the update revision, by the hash of the old one.
	changes map[string]diff
}

// Make decides what the set needs next.
func Make(s *Snapshot) Plan {
	p := newPass(s)
	if s.Deleting {
		return p.plan
	}
	p.choose()
	p.count()
	p.refresh()
	p.revive()
	p.create()
	p.release()
	p.replace()
	p.scaleIn()
	p.update()
	slices.SortStableFunc(p.plan.Actions, func(a, b Action) int { return cmp.Compare(rank(a.Verb), rank(b.Verb)) })
	slices.SortStableFunc(p.plan.Blocked, func(a, b Blocked) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Pod, b.Pod))
	})
	return p.plan
}

// rank puts Pods that come back before those that leave.
func rank(verb Verb) int {
	return slices.Index([]Verb{Move, Create, Delete, Update}, verb)
}

func newPass(s *Snapshot) *pass {
	p := &pass{Snapshot: s, named: map[string]bool{}, changes: map[string]diff{}}
	for _, name := range s.Spec.PodsToDelete {
		p.named[name] = true
	}
	for _, pod := range s.Pods {
		v := s.view(pod)
		v.specified = v.specified || p.named[pod.Name]
		switch {
		case v.terminate:
		case v.ended():
			p.ended = append(p.ended, v)
		default:
			p.pods = append(p.pods, v)
		}
	}
	rankBySpread(p.pods)
	return p
}

// choose says which Pods shall have the update revision: of the old ones as
// many as the partition leaves, in the order that the user asked for.
func (p *pass) choose() {
	if p.UpdateRefused != "" {
		p.problem(ProblemTemplate, p.UpdateRefused)
		return
	}
	if p.Spec.Method == OnDelete {
		return
	}
	need := p.oldPods() - p.Spec.partition()
	if need <= 0 {
		return
	}
	var candidates []*podView
	for _, v := range p.pods {
		if !v.isTarget && !v.doomed() && p.updatable(v) {
			candidates = append(candidates, v)
		}
	}
	p.queue = p.orderForUpdate(candidates)[:min(need, len(candidates))]
	for _, v := range p.queue {
		v.chosen = true
	}
}

// oldPods counts the Pods of other revisions than the update revision that are
// to stay.
func (p *pass) oldPods() int {
	old := 0
	for _, v := range p.pods {
		if !v.isTarget && !v.doomed() {
			old++
		}
	}
	return old
}

// doomed says that the Pod is to be deleted anyway.
func (p *podView) doomed() bool { return p.specified || p.state == apps.StatePreparingDelete }

// counted says that the Pod holds a place in the replica count.
func (p *pass) counted(v *podView) bool {
	return !p.ExcludePreparingDelete || v.state != apps.StatePreparingDelete
}

// count opens the ledger.
func (p *pass) count() {
	p.ledger = ledger{replicas: p.Spec.Replicas, maxUnavailable: p.Spec.maxUnavailable(), starts: p.Starts}
	if p.Starts == 0 {
		p.ledger.starts = -1
	}
	for _, v := range p.pods {
		waits := (v.specified && v.state != apps.StatePreparingDelete) || (v.chosen && !v.begun())
		v.settled = !v.available && !waits
		p.wakeAt(v.availableAt)
		if !p.counted(v) {
			continue
		}
		p.ledger.pods++
		if v.available {
			p.ledger.available++
		} else if v.settled {
			p.ledger.settling++
		}
	}
}

// wakeAt asks for a pass at that time, or at an earlier one.
func (p *pass) wakeAt(at time.Time) {
	if !at.IsZero() && (p.plan.RequeueAt.IsZero() || at.Before(p.plan.RequeueAt)) {
		p.plan.RequeueAt = at
	}
}

// act notes the Pod's one action of this pass.
func (p *pass) act(v *podView, a Action) {
	a.Pod = v.pod
	v.acted = true
	p.plan.Actions = append(p.plan.Actions, a)
}

// block notes that the Pod waits for somebody outside.
func (p *pass) block(v *podView, keys []string) {
	p.plan.Blocked = append(p.plan.Blocked, Blocked{
		Pod: v.pod.Name, Gate: lifecycle.Gate(v.state), State: v.state, Keys: keys, Since: v.since,
	})
}

// remove deletes a Pod, or leads it to the gate before its deletion.
func (p *pass) remove(v *podView, reason string) {
	hook := p.Spec.Hooks.PreDelete
	if !v.holds(hook) {
		p.ledger.drop(v)
		p.act(v, Action{Verb: Delete, Reason: reason})
		return
	}
	a := Action{
		Verb: Move, Reason: reason, To: apps.StatePreparingDelete,
		Conditions: p.conditions(v, apps.StatePreparingDelete),
	}
	if reason != ReasonScaleIn {
		// Marked, so that a scale-in that is taken back does not revive it.
		yes := "true"
		a.Labels = map[string]*string{apps.LabelSpecifiedDelete: &yes}
	}
	if p.ExcludePreparingDelete {
		p.ledger.drop(v)
	} else {
		p.ledger.hold(v)
	}
	p.act(v, a)
}
