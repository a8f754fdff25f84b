// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/podread"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// Outcome is what a plan says of one Registration.
type Outcome struct {
	Registration *usherv1alpha1.Registration
	// Counts for the status.
	Pods, Registered, Draining, NotReady int32
	// Registries are its registries by name: the Pods that callers find there, and what is
	// listed beside what should be, as this or an earlier pass has seen it.
	Registries map[string]*usherv1alpha1.RegistryPods
	// Targets to record, with Usher's finalizer, before anything is written.
	Targets []Target
	// Kept are the recorded targets without those that were found empty, and whose callers know.
	Kept []Target
	// Released means that nothing of it is left anywhere, but perhaps in registries that did not
	// answer until its deadline: Forced. Those remember it.
	Released bool
	Forced   []string
	// Waiting are those of the plan's that are about the Registration.
	Waiting []Waiting
	// Findings are hooks that do not match, sorted; InvalidValues are values of Pods that cannot
	// be used, sorted.
	Findings      []Finding
	InvalidValues []InvalidValue
	// Silent are Pods in service that do not say how much is under way, although scaleInOrder wants to know, in the order
	// of Pods.
	Silent []SilentPod
	// HasCloneSet means that there is a CloneSet to compare hooks with.
	HasCloneSet bool
	// Missing are problems with the registries that it names.
	Missing []Waiting
}

// outcome sums up what the plan says of one Registration.
func (ix *index) outcome(r *registration, waiting []Waiting, plan *Plan) Outcome {
	o := Outcome{
		Registration: r.Registration, Pods: int32(len(r.pods)), HasCloneSet: len(r.sets) > 0, Registries: ix.registriesOf(r),
		Missing: slices.Concat(r.missing, ix.unusable(r), ix.uncounted(r)), Waiting: waiting,
		Findings: ix.findings(r), InvalidValues: r.invalidValues(),
		Silent: r.silentPods,
	}
	for _, p := range r.pods {
		p.counts[slices.Index(p.selectedBy, r)].addTo(&o, r)
	}
	o.Missing = o.missing(r.current)
	o.Targets = SortedTargets(slices.Concat(r.Status.Targets, r.entered()))
	o.Kept = list.Only(SortedTargets(r.Status.Targets), func(t Target) bool { return !ix.left(r, t) })
	if r.DeletionTimestamp != nil {
		v, busy := ix.release(r)
		o.Released, o.Forced = v.passes() && !busy, v.forced
		o.Waiting = append(o.Waiting, v.waiting...)
		plan.Waiting = append(plan.Waiting, v.waiting...)
		if !v.passes() {
			plan.RequeueAt = list.Earliest(plan.RequeueAt, v.next)
		}
	}
	return o
}

// missing are the problems with the registries, and what Pods lack in these targets.
func (o *Outcome) missing(targets []Target) []Waiting {
	all := o.Missing
	for _, t := range targets {
		if w, yes := o.nobody(t); yes && len(all) == 0 {
			all = append(all, w)
		}
	}
	for _, t := range targets {
		if w, yes := o.incomplete(t); yes {
			all = append(all, w)
		}
	}
	return all
}

// entered are the targets in which the Registration may have something of its Pods.
func (r *registration) entered() (targets []Target) {
	if slices.ContainsFunc(r.pods, func(p *pod) bool { return p.unfit(r) == "" }) {
		targets = list.Only(r.current, func(t Target) bool { return r.refused[t] == nil })
	}
	if r.byApplication() && len(r.pods) > 0 { // an override of a Pod that never was ready is one, too
		targets = slices.Concat(targets, r.current)
	}
	return targets
}

// incomplete is what Pods lack that the Registration takes from them to list them in a registry; false if they lack
// nothing. It may concern new Pods alone: those that are listed stay as they are.
func (o *Outcome) incomplete(t Target) (Waiting, bool) {
	lacking := list.Only(o.Waiting, func(w Waiting) bool {
		return w.Registry == t.Registry && (w.Reason == ReasonPortNotFound || w.Reason == ReasonAddressNotFound)
	})
	if len(lacking) == 0 {
		return Waiting{}, false
	}
	pods, w := distinct(list.Map(lacking, func(w Waiting) string { return w.Pod })), lacking[0]
	return w.because(w.Reason, fmt.Sprintf("%d of its %d Pods cannot be registered, such as %s: %s; those that are listed stay listed",
		len(pods), o.Pods, w.Pod, w.Message)), true
}

// registriesOf are the Registration's registries, without its Pods.
func (ix *index) registriesOf(r *registration) map[string]*usherv1alpha1.RegistryPods {
	all, targets := map[string]*usherv1alpha1.RegistryPods{}, map[string][]Target{}
	for _, t := range r.targets() {
		all[t.Registry] = &usherv1alpha1.RegistryPods{Name: t.Registry}
		targets[t.Registry] = append(targets[t.Registry], t)
	}
	for _, missing := range r.missing {
		all[missing.Registry] = &usherv1alpha1.RegistryPods{Name: missing.Registry}
	}
	for _, known := range r.Status.Registries {
		if one := all[known.Name]; one != nil {
			one.Entries, one.Differing, one.Differences = known.Entries, known.Differing, known.Differences
		}
	}
	for name := range targets {
		ix.compare(r, targets[name], all[name])
	}
	return all
}

// unusable are the services of the Registration that cannot be listed, or that it must not
// write to, in registries that work.
func (ix *index) unusable(r *registration) (problems []Waiting) {
	for _, t := range r.current {
		base := Waiting{Registration: r.Name, Registry: t.Registry}
		if err := ix.Listings[t].Err; errors.Is(err, registry.ErrOneService) {
			problems = append(problems, base.failed(err))
		}
		if why := ix.ignoresLabel(t); why != "" {
			problems = append(problems, base.because(ReasonLabelUnusable, why))
		}
		if no := r.refused[t]; no != nil && no.reason != "" {
			problems = append(problems, base.because(no.reason, no.message))
		}
	}
	return problems
}

// counts is what one Pod adds to the counts of a Registration.
type counts struct {
	registered, notReady, draining int32
	// serving is 1 for each current target by which callers find the Pod.
	serving []int32
}

// countsOf counts a Pod for each of its Registrations. For a target that this pass did not
// list, the Pod's own condition counts.
func (ix *index) countsOf(p *pod) []counts {
	condition := podread.Status(p.Pod, usherv1alpha1.ConditionRegistered) == corev1.ConditionTrue
	drains := p.DeletionTimestamp != nil && len(p.ownFinalizers()) > 0 || slices.ContainsFunc(p.hooks, hook.leaving)
	return list.Map(p.selectedBy, func(r *registration) counts {
		c := counts{notReady: oneIf(p.unready != ""), draining: oneIf(drains)}
		registered := len(r.current) > 0 && len(r.missing) == 0
		for _, t := range r.current {
			found := ix.presence(r, t, p)
			if found.err != nil {
				counts := ix.countsAs(t, p, condition)
				found.current, found.serving = counts, counts
			}
			registered = registered && found.current
			c.serving = append(c.serving, oneIf(found.serving))
		}
		c.registered = oneIf(registered)
		return c
	})
}

func oneIf(yes bool) int32 {
	if yes {
		return 1
	}
	return 0
}

func (c counts) addTo(o *Outcome, r *registration) {
	o.Registered += c.registered
	o.NotReady += c.notReady
	o.Draining += c.draining
	for i, serving := range c.serving {
		o.Registries[r.current[i].Registry].Registered += serving
	}
}

// left reports whether nobody needs to know any more that the Registration was in a target: it is
// known to list nothing of it, or can never be asked again. An outage that begins before callers
// know makes Pods wait longer, so the target stays known until then.
func (ix *index) left(r *registration, t Target) bool {
	if r.awaited[t] || slices.Contains(r.current, t) {
		return false
	}
	if !slices.Contains(r.former, t) || ix.follows(t) {
		return true
	}
	if ix.gated(t) {
		return !slices.ContainsFunc(ix.pods, func(p *pod) bool { return slices.Contains(p.former, r) && ix.keepsKnown(p, r) })
	}
	listed, err := ix.look(t)
	if err != nil {
		return false
	}
	if r.byApplication() {
		return !slices.ContainsFunc(ix.podsOf(r), func(p *pod) bool { return ix.keepsOverride(r, t, p) })
	}
	return !slices.ContainsFunc(listed.Entries(), func(e *registry.Entry) bool {
		return e.Owner.Cluster == ix.Cluster && e.Owner.Namespace == ix.Namespace && e.Owner.Registration == r.Name
	})
}

// keepsOverride reports whether the Registration still has to do with the entry of a Pod's application: the Pod is held
// until that is out of service, or serves and has an override.
func (ix *index) keepsOverride(r *registration, t Target, p *pod) bool {
	held := p.hasFinalizer() && slices.Contains(p.former, r)
	return held || ix.presence(r, t, p).overridden && ix.standOf(r, p) == standsIn
}

// keepsKnown reports whether a Pod needs to know that it was in a Service of the Registration.
func (ix *index) keepsKnown(p *pod, r *registration) bool {
	return !ix.guards(p, r).IsZero() || ix.holdsBack(p) || ix.abandoned(p) && p.hasFinalizer() && p.requested()
}

// release decides whether a Registration that is being deleted can go: busy means that it has Pods
// or entries, or that Pods wait for callers.
func (ix *index) release(r *registration) (v verdict, busy bool) {
	base := Waiting{Registration: r.Name, Gate: GateDeletion, Since: r.DeletionTimestamp.Time}
	ix.limit(r, &base, &v)
	for _, t := range r.former {
		if ix.left(r, t) {
			continue
		}
		if _, err := ix.look(t); err != nil && !ix.gated(t) {
			base.Registry = t.Registry
			v.wait(base.failed(err))
		} else {
			busy = true
		}
	}
	// Its Pods are released first: afterwards nobody knows where they were.
	busy = busy || slices.ContainsFunc(ix.pods, func(p *pod) bool {
		return len(p.selectedBy) == 0 && slices.Contains(p.former, r) && (p.hasFinalizer() || ix.holdsBack(p))
	})
	return v, busy
}
