// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"slices"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/revision"
)

// desired is how many Pods there shall be now: the replicas, and a surge while
// Pods are to be updated or replaced.
func (p *pass) desired() int {
	doomed := 0
	for _, v := range p.pods {
		if v.specified && p.counted(v) {
			doomed++
		}
	}
	return p.Spec.Replicas + min(p.Spec.maxSurge(), max(len(p.queue), doomed))
}

// revive takes Pods back from PreparingDelete that a scale-in had chosen and
// that are needed again, the best ones first.
func (p *pass) revive() {
	var planned []*podView
	others := 0
	for _, v := range p.pods {
		switch {
		case v.state == apps.StatePreparingDelete && !v.specified:
			planned = append(planned, v)
		case p.counted(v):
			others++
		}
	}
	short := min(p.Spec.Replicas-others, len(planned))
	if short <= 0 {
		return
	}
	slices.SortFunc(planned, func(a, b *podView) int { return cmp.Or(falseFirst(a.isTarget, b.isTarget), byVictim(a, b)) })
	for _, v := range planned[len(planned)-short:] {
		p.unblock(v)
		if p.ExcludePreparingDelete {
			p.ledger.pods++
			p.ledger.settling++
		}
		p.act(v, p.reviveAction(v))
		v.state = apps.StatePreparingNormal
	}
}

// reviveAction leads a Pod back to the start of its life: the hooks that were
// released on the way out protect it again, and it has to pass preNormal again,
// because whoever released preDelete has taken it out of service.
func (p *pass) reviveAction(v *podView) Action {
	hooks := p.Spec.Hooks
	a := Action{
		Verb: Move, Reason: ReasonRevived, To: apps.StatePreparingNormal,
		Conditions: p.conditions(v, apps.StatePreparingNormal),
		Labels:     map[string]*string{},
	}
	template := p.templateLabels(v)
	for key := range hooks.PreNormal.Labels {
		a.Labels[key] = template[key]
	}
	a.RemoveFinalizers = hooks.PreNormal.Finalizers
	for _, hook := range []map[string]string{hooks.InPlaceUpdate.Labels, hooks.PreDelete.Labels} {
		for key, value := range hook {
			a.Labels[key] = &value
		}
	}
	a.AddFinalizers = slices.Concat(hooks.InPlaceUpdate.Finalizers, hooks.PreDelete.Finalizers)
	return a
}

// templateLabels are the labels of the template that the Pod was made from.
func (p *pass) templateLabels(v *podView) map[string]*string {
	out := map[string]*string{}
	r := p.Revisions[revision.Short(v.revision)]
	if r == nil {
		return out
	}
	metadata, _ := r.Template["metadata"].(map[string]any)
	labels, _ := metadata["labels"].(map[string]any)
	for key, value := range labels {
		if text, ok := value.(string); ok {
			out[key] = &text
		}
	}
	return out
}

// unblock takes a Pod off the list of those that wait.
func (p *pass) unblock(v *podView) {
	p.plan.Blocked = slices.DeleteFunc(p.plan.Blocked, func(b Blocked) bool { return b.Pod == v.pod.Name })
}

// create makes the Pods that are missing, first those that the partition keeps
// at the current revision.
func (p *pass) create() {
	missing := p.desired() - p.ledger.pods
	if missing <= 0 {
		return
	}
	if limit := p.Spec.ScaleMaxUnavailable; limit != nil {
		room := max(limit.up(p.Spec.Replicas)-(p.ledger.pods-p.ledger.available), 0)
		p.plan.ScaleUpLimited = max(missing-room, 0)
		missing = min(missing, room)
	}
	current := p.Spec.partition() - p.oldPods()
	for range missing {
		if !p.ledger.start() {
			p.plan.More = true
			return
		}
		a := Action{Verb: Create, Reason: ReasonScaleOut, Revision: p.Update}
		if current > 0 {
			current--
			a.Revision = p.Current
		}
		if a.Revision == p.Update && p.UpdateRefused != "" {
			return
		}
		p.ledger.pods++
		p.ledger.settling++
		p.plan.Actions = append(p.plan.Actions, a)
	}
}

// release deletes the Pods whose preDelete hook has let go.
func (p *pass) release() {
	for _, v := range p.pods {
		if v.acted || v.state != apps.StatePreparingDelete || v.holds(p.Spec.Hooks.PreDelete) {
			continue
		}
		if p.counted(v) {
			p.ledger.drop(v)
		}
		p.act(v, Action{Verb: Delete, Reason: ReasonHookReleased})
	}
}

// replace removes the Pods that were named for deletion, the least useful
// first, as far as the budget goes.
func (p *pass) replace() {
	for _, v := range p.waiting() {
		if v.acted {
			continue
		}
		if !p.ledger.takeDown(v) {
			p.plan.More = p.plan.More || p.ledger.starts == 0
			return
		}
		p.remove(v, ReasonSpecified)
	}
}

// waiting are the Pods that were named for deletion and still run.
func (p *pass) waiting() []*podView {
	var out []*podView
	for _, v := range p.pods {
		if v.specified && v.state != apps.StatePreparingDelete {
			out = append(out, v)
		}
	}
	slices.SortFunc(out, byVictim)
	return out
}

// scaleIn removes surplus Pods. While a named Pod still waits to go, nobody
// else has to.
func (p *pass) scaleIn() {
	surplus := p.ledger.pods - p.desired()
	leaving := 0
	for _, v := range p.pods {
		if v.specified && !v.acted && v.state != apps.StatePreparingDelete {
			return
		}
		if p.leaves(v) {
			leaving++
		}
	}
	if surplus <= leaving {
		return
	}
	for _, v := range p.victims(surplus - leaving) {
		if v.available && p.ledger.available <= p.ledger.replicas-p.ledger.maxUnavailable {
			return
		}
		if !p.ledger.start() {
			p.plan.More = true
			return
		}
		p.remove(v, ReasonScaleIn)
	}
}

// leaves says that a Pod still holds a place in the ledger, and is on its way out.
func (p *pass) leaves(v *podView) bool {
	if !p.counted(v) {
		return false
	}
	if v.acted {
		last := p.plan.Actions[p.actionOf(v)]
		return last.To == apps.StatePreparingDelete
	}
	return v.state == apps.StatePreparingDelete
}

func (p *pass) actionOf(v *podView) int {
	return slices.IndexFunc(p.plan.Actions, func(a Action) bool { return a.Pod == v.pod })
}

// victims picks the Pods to go: old ones that the partition does not keep, then
// new ones, then the rest; among these the least useful.
func (p *pass) victims(count int) []*podView {
	var old, updated []*podView
	for _, v := range p.pods {
		switch {
		case v.acted || v.doomed():
		case v.isTarget:
			updated = append(updated, v)
		default:
			old = append(old, v)
		}
	}
	slices.SortFunc(old, byVictim)
	slices.SortFunc(updated, byVictim)
	surplusOld := min(max(len(old)-p.Spec.partition(), 0), count)
	out := old[:surplusOld:surplusOld]
	out = append(out, updated[:min(count-len(out), len(updated))]...)
	return append(out, old[surplusOld:min(surplusOld+count-len(out), len(old))]...)
}
