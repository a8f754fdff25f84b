// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"maps"
	"slices"
	"sort"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/list"
)

// desired returns how many Pods there should be now: the replicas, plus a surge while Pods are to leave
// service for an update or to be replaced.
func (p *pass) desired() int {
	return p.Spec.Replicas + min(p.Spec.maxSurge(), max(p.disturbed, p.shortfall()))
}

// countDisturbed counts the chosen Pods whose update needs a surge, up to the largest surge.
func (p *pass) countDisturbed() {
	for _, v := range p.queue {
		if p.disturbed == p.Spec.maxSurge() {
			return
		}
		p.disturbed += one(p.needsSurge(v))
	}
}

// needsSurge reports whether another Pod is to serve while the Pod is updated: it is recreated, or
// leaves service and the user wants a surge for that too. Without any Pod that may be unavailable, an
// update without a surge would never begin.
func (p *pass) needsSurge(v *podState) bool {
	change, err := p.change(v)
	if p.Spec.Method == apps.UpdateReCreate || err != nil {
		return true
	}
	if p.Spec.NoSurgeInPlace && p.Spec.maxUnavailable() > 0 {
		return false
	}
	return p.gated(v) || p.restarts(v, change)
}

// shortfall returns how many Pods that are named for deletion maxUnavailable does not cover. Pods that
// leave their nodes all count: a node is drained fastest if all replacements start at once.
func (p *pass) shortfall() int {
	waiting, unavailable, going := 0, 0, 0
	for _, v := range p.pods {
		switch {
		case v.awaitsRemoval():
			waiting++
			going += one(v.leavesNode != "")
		case !v.available && p.counted(v) && (v.leaving || !v.removed):
			unavailable++
		}
	}
	return max(going, min(unavailable+waiting-p.ledger.maxUnavailable, waiting))
}

// create creates the missing Pods, starting with those that the partition keeps at the
// current revision.
func (p *pass) create() {
	missing := p.desired() - p.ledger.pods
	if missing <= 0 || p.NamespaceEnds {
		return
	}
	if limit := p.Spec.ScaleMaxUnavailable; limit != nil {
		room := max(limit.up(p.Spec.Replicas)-(p.ledger.pods-p.ledger.available), 0)
		p.plan.ScaleUpLimited = max(missing-room, 0)
		missing = min(missing, room)
	}
	current := p.Spec.partition() - (p.old - p.atGate)
	ids, missing := p.instancesFor(missing)
	taken := sets.KeySet(p.byID)
	for n := range missing {
		a := Action{Verb: Create, Reason: ReasonScaleOut, Revision: p.Update, Taken: taken}
		if n < len(ids) {
			a.Instance = ids[n]
		}
		if current > 0 || p.refused(a.Revision) {
			current--
			a.Revision = p.Current
		}
		if p.refused(a.Revision) {
			return
		}
		wait, before := p.holdsBack(a.Revision)
		if wait {
			return
		}
		if !p.ledger.start() {
			p.plan.More = true
			return
		}
		a.Failures = before
		p.ledger.pods++
		p.ledger.underway++
		p.plan.Actions = append(p.plan.Actions, a)
	}
}

// scaleIn removes surplus Pods. While a Pod that is named for deletion waits for its removal, no other
// Pod is removed. Pods that leave their nodes are removed first too, but others need not wait for them:
// they may stay after all.
func (p *pass) scaleIn() {
	if slices.ContainsFunc(p.pods, func(v *podState) bool { return v.awaitsRemoval() && v.leavesNode == "" }) {
		return
	}
	surplus := p.ledger.pods - p.desired()
	for _, v := range p.pods {
		surplus -= one(v.leaving)
	}
	if surplus <= 0 {
		return
	}
	for _, v := range p.victims(surplus) {
		if v.fixed {
			continue // the next pass handles it; no other Pod is removed instead
		}
		if v.available && !p.ledger.spare() {
			return
		}
		if !v.deferred && !p.ledger.start() {
			p.plan.More = true
			return
		}
		p.remove(v, ReasonScaleIn)
	}
}

// victims picks the Pods to remove: old ones that the partition does not keep, then new
// ones, then the rest; in each group the least useful first.
func (p *pass) victims(count int) []*podState {
	stays := func(v *podState) bool { return !v.toBeDeleted() && !v.leaving }
	old, updated := byRevision(list.Only(p.pods, stays))
	at, old := split(old, p.countsAsUpdated)
	updated = append(updated, at...)
	counts := p.countDomains(stays)
	surplusOld := min(max(len(old)-p.Spec.partition(), 0), count)
	out := counts.pick(old, surplusOld)
	out = append(out, counts.pick(updated, count-len(out))...)
	kept := slices.DeleteFunc(old, sets.New(out...).Has)
	return append(out, counts.pick(kept, count-len(out))...)
}

// byRevision separates the Pods that have the update revision from the others.
func byRevision(pods []*podState) (old, updated []*podState) {
	return split(pods, func(v *podState) bool { return !v.isUpdated })
}

// cancelScaleIn takes back Pods that a scale-in had chosen and that are needed again, the last to be
// removed first: updated Pods before old ones.
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
	old, updated := byRevision(planned)
	counts := p.countDomains(func(v *podState) bool { return !v.specified })
	order := append(counts.pick(old, len(old)), counts.pick(updated, len(updated))...)
	for _, v := range order[len(order)-short:] {
		p.act(v, p.returnFromDeletion(v))
		// Until that is written, the Pod is still under way: it may have changed, and be deleted.
		v.state, v.fixed = apps.StatePreparingNormal, true
	}
}

// returnFromDeletion moves a Pod back to the start of its life: the hooks that were released for its
// removal hold it again. It must pass preNormal again, because the hook operator that released
// preDelete has taken it out of service. A key that preNormal shares with another hook is not restored:
// preNormal waits for it.
func (p *pass) returnFromDeletion(v *podState) Action {
	hooks := p.Spec.Hooks
	a := Action{
		Verb: Move, Reason: ReasonScaleInCancelled, To: apps.StatePreparingNormal,
		Conditions:       p.conditions(v, apps.StatePreparingNormal),
		Labels:           inplace.Values(hooks.InPlaceUpdate.LabelsHandler),
		RemoveFinalizers: hooks.PreNormal.FinalizersHandler,
	}
	maps.Copy(a.Labels, inplace.Values(hooks.PreDelete.LabelsHandler))
	var created map[string]*string // the labels in the template that the Pod was created from
	if r := p.Revisions[v.hash]; r != nil {
		created = inplace.Values(revision.Strings(r.Template, "labels"))
	}
	for key := range hooks.PreNormal.LabelsHandler {
		a.Labels[key] = created[key] // without it, the key is removed
	}
	for _, finalizer := range slices.Concat(hooks.InPlaceUpdate.FinalizersHandler, hooks.PreDelete.FinalizersHandler) {
		if !slices.Contains(hooks.PreNormal.FinalizersHandler, finalizer) && !slices.Contains(a.AddFinalizers, finalizer) {
			a.AddFinalizers = append(a.AddFinalizers, finalizer)
		}
	}
	return a
}

// release deletes the Pods that their preDelete hook no longer holds.
func (p *pass) release() {
	for _, v := range p.pods {
		if v.fixed || !v.preparesDelete() || v.holds(p.Spec.Hooks.PreDelete) {
			continue
		}
		if p.counted(v) {
			p.ledger.drop(v)
		}
		v.leaving = false
		p.delete(v, Action{Reason: ReasonHookReleased, Claims: p.claimsOf(v)})
	}
}

// replace removes the Pods that are named for deletion or leave their nodes, as far as the budget
// allows: first those that are paid for, then the least useful.
func (p *pass) replace() {
	waiting := list.Only(p.pods, (*podState).awaitsRemoval)
	if len(waiting) == 0 {
		return
	}
	inFlight := p.countReplacements()
	p.replacing = inFlight
	stays := func(v *podState) bool { return !v.leaving && !v.removed }
	order := p.countDomains(stays).pick(waiting, len(waiting))
	for _, v := range slices.Concat(split(order, func(v *podState) bool { return v.underway })) {
		if v.fixed {
			continue
		}
		if !p.ledger.takeDown(v, inFlight.room(list.Earliest(inFlight.oldest, v.created), &p.ledger)) {
			if p.outOfStarts() {
				p.plan.More = true
				return
			}
			continue
		}
		reason := ReasonSpecified
		if v.leavesNode != "" {
			reason = ReasonNodeGoes
		}
		p.remove(v, reason)
		inFlight.oldest = list.Earliest(inFlight.oldest, v.created)
		if v.leaving {
			inFlight.taken++ // a Pod that is deleted at once reduces the surplus instead
		}
	}
}

// replacements counts the Pods that are being created or removed, so that Pods which are unavailable
// anyway are replaced in small batches, each after the replacements of the previous batch. Pods that
// are merely broken do not block the replacement of a younger Pod.
type replacements struct {
	// created are the sorted creation times of unavailable Pods.
	created []time.Time
	// taken counts the Pods that are at the gate, return from it, or are created in this pass.
	taken int
	// oldest is the creation time of the oldest Pod that this pass replaces.
	oldest time.Time
}

func (p *pass) countReplacements() *replacements {
	m := &replacements{}
	for _, v := range p.pods {
		switch {
		case v.leaving, v.fixed: // its return may be refused
			m.taken++
		case v.underway && p.counted(v):
			m.created = append(m.created, v.created)
		}
	}
	for i := range p.plan.Actions {
		m.taken += one(p.plan.Actions[i].Verb == Create)
	}
	slices.SortFunc(m.created, time.Time.Compare)
	return m
}

// roomToRecreate reports whether a Pod whose update has begun may be recreated in a pass that replaces
// others. If v is older than all of them, it did not count against their replacement. Once it is being
// removed it does, and the order of the deletions is unknown: so there must be room for all of them
// together with v.
func (m *replacements) roomToRecreate(v *podState, l *ledger) bool {
	if m == nil || m.oldest.IsZero() || !v.underway || v.created.After(m.oldest) {
		return true
	}
	return m.room(m.oldest, l)
}

// room reports whether one more Pod may be replaced; oldest is the creation time of the oldest Pod that
// this pass replaces. The room must suffice for all of them, since the order of their deletions is
// unknown.
func (m *replacements) room(oldest time.Time, l *ledger) bool {
	notLater := sort.Search(len(m.created), func(i int) bool { return m.created[i].After(oldest) })
	return m.taken+len(m.created)-notLater < max(l.maxUnavailable, 1)+l.surplus()
}

// instanceIDLength is the length of the random part of a Pod's name.
const instanceIDLength = 5

// prunePodsToDelete finds the finished names in podsToDelete, and reports those that never named a Pod.
func (p *pass) prunePodsToDelete() {
	if len(p.named) == 0 {
		return
	}
	var unknown []string
	for _, name := range slices.Compact(slices.Sorted(slices.Values(p.Spec.PodsToDelete))) {
		switch v := p.byName(name); {
		case v != nil && !v.terminate && !p.deletes(v): // it waits
		case v != nil, p.madeHere(name):
			p.plan.PrunePodsToDelete = append(p.plan.PrunePodsToDelete, name)
		default:
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		p.problem(ProblemNoSuchPod, "scaleStrategy.podsToDelete names %s: remove or correct the name", notPods(unknown))
	}
}

// notPods returns the message that names are not names of the set's Pods.
func notPods(names []string) string {
	if len(names) == 1 {
		return names[0] + ", which is not a Pod of this CloneSet"
	}
	return strings.Join(names, ", ") + ", which are not Pods of this CloneSet"
}

// byName finds a Pod of the snapshot, which is sorted by name; nil if there is none.
func (p *pass) byName(name string) *podState {
	i, found := slices.BinarySearchFunc(p.states, name, func(v podState, name string) int { return strings.Compare(v.pod.Name, name) })
	if !found {
		return nil
	}
	return &p.states[i]
}

func (p *pass) deletes(v *podState) bool {
	return v.acted && p.plan.Actions[v.action].Verb == Delete
}

// madeHere reports whether a name has the form of the set's Pod names: then the Pod counts as deleted.
func (p *pass) madeHere(name string) bool {
	id, ok := strings.CutPrefix(name, p.Set+"-")
	return ok && len(id) == instanceIDLength && !strings.Contains(id, "-")
}
