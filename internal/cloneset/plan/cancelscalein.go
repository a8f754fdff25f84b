// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"maps"
	"slices"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/cloneset/revision"
)

// cancelScaleIn returns Pods from PreparingDelete that a scale-in had chosen and that are needed
// again, the best ones first.
func (p *pass) cancelScaleIn() {
	var planned []*podState
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
	for _, v := range p.bestOf(planned, short) {
		p.act(v, p.restoreAction(v))
		// Until that is written, the Pod is still under way: it may have changed since,
		// and be deleted.
		v.state, v.fixed = apps.StatePreparingNormal, true
	}
}

// bestOf returns that many of the Pods, those that would be removed last: new ones before
// old ones.
func (p *pass) bestOf(planned []*podState, count int) []*podState {
	old, updated := byRevision(planned)
	counts := p.countDomains(func(v *podState) bool { return !v.specified })
	order := append(counts.pick(old, len(old)), counts.pick(updated, len(updated))...)
	return order[len(order)-count:]
}

// restoreAction leads a Pod back to the start of its life: the hooks that were released
// for its removal protect it again. It must pass preNormal again, because whoever
// released preDelete has taken it out of service. A key that preNormal shares with
// another hook is left for preNormal to wait for.
func (p *pass) restoreAction(v *podState) Action {
	hooks := p.Spec.Hooks
	a := Action{
		Verb: Move, Reason: ReasonScaleInCancelled, To: apps.StatePreparingNormal,
		Conditions:       p.conditions(v, apps.StatePreparingNormal),
		Labels:           inplace.Values(hooks.InPlaceUpdate.Labels),
		RemoveFinalizers: hooks.PreNormal.Finalizers,
	}
	maps.Copy(a.Labels, inplace.Values(hooks.PreDelete.Labels))
	for key := range hooks.PreNormal.Labels {
		a.Labels[key] = p.templateLabel(v, key)
	}
	for _, finalizer := range slices.Concat(hooks.InPlaceUpdate.Finalizers, hooks.PreDelete.Finalizers) {
		if !slices.Contains(hooks.PreNormal.Finalizers, finalizer) && !slices.Contains(a.AddFinalizers, finalizer) {
			a.AddFinalizers = append(a.AddFinalizers, finalizer)
		}
	}
	return a
}

// templateLabel is the label's value in the template that the Pod was created from; nil
// if there is none.
func (p *pass) templateLabel(v *podState, key string) *string {
	r := p.Revisions[revision.Short(v.revision)]
	if r == nil {
		return nil
	}
	if value, ok := revision.Strings(r.Template, "labels")[key]; ok {
		return &value
	}
	return nil
}
