// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/list"
)

// Plan is what a pass should do, in this order.
type Plan struct {
	// Protect prepares Pods for their first entry: Usher's finalizer on, the drain record
	// off. Nothing is registered for a Pod before this has succeeded. It also puts the guard's
	// label back.
	Protect []PodPatch
	// Changes go to the registries, one batch for each target, sorted.
	Changes []Changes
	// Patches release hooks and finalizers and keep records. They hold for the listings
	// that were planned from.
	Patches []PodPatch
	// Finishes are drained Pods that Usher deletes, sorted by name.
	Finishes []Finish
	// Responses are what Usher says of Kubernetes' evictions, in their order.
	Responses []Responding
	// Waiting are the Pods that wait, sorted by Pod, gate, key and registry.
	Waiting []Waiting
	// Asks are the Pods to be asked from now on whether anything is under way: those in service, and then those that
	// leave, in the order of Pods.
	Asks []Ask
	// Outcomes has one entry for each Registration, sorted by name.
	Outcomes []Outcome
	// Unlisted and Departures are for the next snapshot.
	Unlisted   Unlisted
	Departures Departures
	// RequeueAt is when to plan again if nothing happens, zero for never.
	RequeueAt time.Time
}

// unsettledRetry is when a target is listed again whose entries wait for their last
// requests.
const unsettledRetry = time.Second

// Make decides what the namespace needs next. The plan depends on nothing but the snapshot.
func Make(snapshot Snapshot) Plan {
	ix := newIndex(snapshot)
	ix.readListings()
	ix.refuse()
	for _, r := range ix.registrations {
		r.sets, r.awaited = ix.cloneSetsOf(r), map[Target]bool{}
		ix.keepSilent(r)
	}
	asks, costs := ix.orderScaleIn()
	for _, p := range ix.pods {
		if p.cost != nil || !ix.stillIdle(p) {
			p.idle = nil
		}
	}
	plan := Plan{Changes: ix.changes(), Asks: asks, RequeueAt: costs}
	if slices.ContainsFunc(plan.Changes, func(c Changes) bool { return c.unsettled }) {
		plan.RequeueAt = list.Earliest(plan.RequeueAt, ix.Now.Add(unsettledRetry))
	}
	for _, p := range ix.pods {
		if p.idle != nil {
			ix.keepUnlisted(p, &plan)
			continue
		}
		if nothing := ix.planPod(p, &plan); nothing {
			ix.noteIdle(p)
		}
		p.counts = ix.countsOf(p)
	}
	slices.SortStableFunc(plan.Waiting, CompareWaiting)
	ix.respond(&plan)
	plan.RequeueAt = list.Earliest(plan.RequeueAt, ix.followAgain(plan.Waiting), ix.lookAgain(plan.Waiting))
	waiting := map[string][]Waiting{}
	for _, w := range plan.Waiting {
		waiting[w.Registration] = append(waiting[w.Registration], w)
	}
	for _, r := range ix.registrations {
		plan.Outcomes = append(plan.Outcomes, ix.outcome(r, waiting[r.Name], &plan))
	}
	return plan
}

func protect(p *pod) PodPatch {
	patch := PodPatch{
		Pod: p.Pod, DropDrain: p.hasRecord(), Registrations: namesOf(p.selectedBy, p.deselected(), p.gaveUp),
		Results: ReadRecord(p.Pod).abandon(),
	}
	for _, r := range p.selectedBy {
		if !p.mayBeListedBy(r) {
			patch.Due = append(patch.Due, r.current...)
		}
	}
	if !p.hasFinalizer() {
		patch.AddFinalizers = []string{usherv1alpha1.Finalizer}
	}
	return patch
}

// prepare is what is written to a Pod before anything is registered for it.
func prepare(p *pod) PodPatch {
	patch := PodPatch{Pod: p.Pod}
	if p.wanted() && !p.protected() {
		patch = protect(p)
	}
	if Unguarded(p.Pod) {
		patch.setLabel(usherv1alpha1.LabelGuarded, new("true"))
	}
	return patch
}

// planPod decides on one Pod, and reports whether nothing is to be done and nothing to be
// waited for.
func (ix *index) planPod(p *pod, plan *Plan) (nothing bool) {
	first := prepare(p)
	ix.mark(p, &first)
	protects := !first.Empty()
	if protects {
		plan.Protect = append(plan.Protect, first.concerning(p))
	}
	patch := PodPatch{Pod: p.Pod, cost: p.cost}
	before := len(plan.Waiting)
	var next time.Time
	if p.DeletionTimestamp != nil {
		next = ix.planTerminating(p, &patch, plan)
	} else {
		next = ix.planLiving(p, &patch, plan)
	}
	if patch.Drain != nil && !p.hasRecord() {
		patch.Goes, patch.Leaves = p.goes, p.leaves
	}
	ix.turnLabels(p, &patch)
	ix.unmark(p, &patch)
	next = list.Earliest(next, ix.planRequest(p, &patch), ix.noteUnlisted(p, plan), ix.turnOfDeadline(p))
	finish, at := ix.finish(p)
	if finish != nil && patch.TakenBack == nil {
		plan.Finishes = append(plan.Finishes, *finish)
	}
	next = list.Earliest(next, at)
	plan.RequeueAt = list.Earliest(plan.RequeueAt, next)
	ix.keepReturns(p, plan)
	ix.planCondition(p, plan.Waiting[before:], &patch)
	if !patch.Empty() {
		plan.Patches = append(plan.Patches, patch.concerning(p))
	}
	return !protects && patch.Empty() && len(plan.Waiting) == before && next.IsZero()
}

// planTerminating removes Usher's finalizers from a terminating Pod as soon as no registry
// lists it: its process may already be gone.
func (ix *index) planTerminating(p *pod, patch *PodPatch, plan *Plan) time.Time {
	own := p.ownFinalizers()
	if len(own) == 0 {
		return time.Time{}
	}
	v := ix.gone(p, p.all()...)
	plan.Waiting = append(plan.Waiting, v.waiting...)
	if !v.passes() {
		return v.next
	}
	freed, waiting, next := ix.freed(p, own)
	plan.Waiting = append(plan.Waiting, waiting...)
	if len(freed) > 0 {
		patch.RemoveFinalizers = freed
		patch.Released = []Release{{Gate: GateDeletion, Key: freed[0], Forced: v.forced, Waits: v.waits}}
	}
	return next
}

// planLiving answers the hooks of a Pod and keeps its drain record.
func (ix *index) planLiving(p *pod, patch *PodPatch, plan *Plan) time.Time {
	var next time.Time
	record, stored := ix.drainOf(p)
	drains := false
	for _, h := range p.hooks {
		v := ix.outOfTime(p, h, record, ix.decide(p, h, record))
		plan.Waiting, plan.Asks = append(plan.Waiting, v.waiting...), append(plan.Asks, v.asks...)
		if v.passes() && !ix.staysAfterAll(p, h) {
			refused, try, retry := ix.writes(p, h)
			plan.Waiting = append(plan.Waiting, refused...)
			if try {
				h.answer(v, patch)
				if h.leaving() {
					record.Forced = record.Forced || len(v.forced)+len(v.busy) > 0
				}
				if h.gate == GateRequested {
					patch.Drained = ix.Now.UTC()
				}
				continue
			}
			v.next = retry
		}
		next = list.Earliest(next, v.next)
		drains = drains || h.leaving()
	}
	ix.planDrain(p, record, stored, drains, patch)
	next = list.Earliest(next, record.recount(stored))
	plan.Waiting = append(plan.Waiting, ix.unhooked(p)...)
	if !drains && !slices.Contains(patch.RemoveFinalizers, usherv1alpha1.Finalizer) {
		waiting, at := ix.forget(p, patch, plan)
		plan.Waiting, next = append(plan.Waiting, waiting...), list.Earliest(next, at)
	}
	return list.Earliest(next, p.keptUntil())
}

// staysAfterAll reports whether a drain ends in the moment in which its request is taken back, as the Pod's owner
// wants it again: then the guard keeps holding the Pod.
func (ix *index) staysAfterAll(p *pod, h hook) bool {
	return h.gate == GateRequested && p.cause.ended && ix.expired(p)
}

// keptUntil is when the first Registration no longer keeps the Pod although its node does not answer; zero if none
// does.
func (p *pod) keptUntil() (until time.Time) {
	for _, r := range p.selectedBy {
		if k := r.kept[p]; k != nil {
			until = list.Earliest(until, k.until)
		}
	}
	return until
}

// drainOf returns the record of the Pod's present drain, nil if it is at no gate that it
// leaves by, and the record that the Pod carries.
func (ix *index) drainOf(p *pod) (record, stored *Record) {
	for _, h := range p.hooks {
		if h.leaving() {
			return ix.continued(p.Pod, h.gate)
		}
	}
	return nil, ReadRecord(p.Pod)
}

// decide decides whether the hook is released.
func (ix *index) decide(p *pod, h hook, record *Record) verdict {
	if h.leaving() {
		return ix.leave(p, h, record)
	}
	return ix.join(p, h)
}

// answer adds to the patch what releases the hook.
func (h hook) answer(v verdict, patch *PodPatch) {
	if h.leaving() {
		h.key.release(patch)
	} else {
		h.key.set(patch)
	}
	if h.gate == GateLeaving {
		return // nobody waits for it
	}
	patch.Released = append(patch.Released, Release{
		Gate: h.gate, Key: h.key.name, Forced: v.forced, Waits: v.waits, Busy: list.Map(v.busy, busyPod.String)})
}

// planDrain keeps the drain record while a hook holds the Pod, and removes it when the last
// one lets go.
func (ix *index) planDrain(p *pod, record, stored *Record, drains bool, patch *PodPatch) {
	if record != nil && !drains {
		patch.Results = append(patch.Results, record.count()...)
	}
	switch {
	case record == nil:
	case drains && !record.saidBy(stored):
		patch.Drain = record
	case drains:
	case record.Gate != GatePreDelete, !p.hasFinalizer(), slices.Contains(patch.RemoveFinalizers, usherv1alpha1.Finalizer):
		patch.DropDrain = p.hasRecord()
	case ix.gone(p, p.all()...).passes():
		// The Pod is about to be deleted: this saves one write for each.
		patch.DropDrain = p.hasRecord()
		patch.RemoveFinalizers = append(patch.RemoveFinalizers, usherv1alpha1.Finalizer)
	case !record.saidBy(stored): // its deadline has passed, and with it that of its deletion
		patch.Drain = record
	}
}

// unhooked are the waits for registries that no hook covers.
func (ix *index) unhooked(p *pod) []Waiting {
	waiting := ix.gateless(p)
	if p.settled && !ix.refused(p) && !ix.lacksAnything(p) {
		return append(ix.missing(p), waiting...)
	}
	for _, r := range p.selectedBy {
		if !slices.ContainsFunc(p.hooks, func(h hook) bool { return slices.Contains(h.answerers, r) }) {
			waiting = append(waiting, ix.unhookedFrom(p, r)...)
		}
	}
	return waiting
}

func (ix *index) unhookedFrom(p *pod, r *registration) []Waiting {
	switch ix.desiredOf(r, p) {
	case present:
		return ix.join(p, hook{gate: GateJoining, answerers: []*registration{r}}).waiting
	case unchanged:
		if k := r.kept[p]; k != nil && k.message != "" {
			base := Waiting{Registration: r.Name, Pod: p.Name, Gate: GateLeaving, Since: p.silentSince}
			return []Waiting{base.because(ReasonNodeSilent, k.message)}
		}
		return nil
	}
	return ix.gone(p, r).waiting
}

// namesOf is the Pod's annotation of the Registrations that may have entries of it.
func namesOf(registrations ...[]*registration) *string {
	names := list.Map(slices.Concat(registrations...), func(r *registration) string { return r.Name })
	return new(strings.Join(distinct(names), ","))
}

// PodPatch is what one pass changes on one Pod. It applies only to the resource version
// that was planned from.
type PodPatch struct {
	// Pod is the one that was planned from; it is never modified.
	Pod *corev1.Pod
	// Labels to set; nil removes the label.
	Labels map[string]*string
	// Drain is the record to write. DropDrain removes it.
	Drain     *Record
	DropDrain bool
	// Registrations is the annotation of those that may have entries; nil leaves it as it is.
	Registrations *string
	// Asked is the annotation of those that have asked the application to leave; nil leaves it, empty removes it.
	Asked *string
	// cost is what becomes of its deletion cost.
	cost *costChange
	// Due are targets that the Pod is new to. Its condition may be True because of other
	// targets, and then nothing else would make a pass list these.
	Due []Target
	// AddFinalizers and RemoveFinalizers change the list; what else is in it stays.
	AddFinalizers    []string
	RemoveFinalizers []string
	// TakenBack removes the request for the Pod's deletion. Drained, if it is not zero, is when the
	// drain ended that it asked for.
	TakenBack *TakenBack
	Drained   time.Time
	Condition *corev1.PodCondition
	// Goes is why the Pod leaves that nobody has asked to delete, if a drain begins; empty otherwise. Leaves is
	// the reason.
	Goes, Leaves string
	// Results are those of the drains that end with this patch.
	Results []DrainResult
	// Released are the hooks that this patch lets go or sets.
	Released []Release
	// Concerns are the names of the Registrations that may have entries of the Pod, and Targets are theirs: what
	// the Pod says of them may be old while the patch fails.
	Concerns []string
	Targets  []Target
}

// concerning is the patch with whom it concerns.
func (p PodPatch) concerning(of *pod) PodPatch {
	all := of.all()
	p.Concerns, p.Targets = list.Map(all, func(r *registration) string { return r.Name }), targetsOf(all)
	return p
}

// Release is a hook that was answered.
type Release struct {
	// Gate and Key say which.
	Gate Gate
	Key  string
	// Forced names the registries that had not confirmed at the deadline.
	Forced []string
	// Waits are how long each registry held the hook.
	Waits []RegistryWait
	// Busy says, for each Registration that let a busy Pod go at its timeout, how busy it was.
	Busy []string
}

// RegistryWait is how long one registry held a hook.
type RegistryWait struct {
	Registry string
	Wait     time.Duration
}

// forced names the registries that the patch gives up at a deadline; empty if there are none.
func (p *PodPatch) forced() string {
	return strings.Join(distinct(slices.Concat(list.Map(p.Released, func(r Release) []string { return r.Forced })...)), ", ")
}

// busy is how busy the Pod was that the patch lets go at a timeout, by Registration; empty if it was not.
func (p *PodPatch) busy() []string {
	return distinct(slices.Concat(list.Map(p.Released, func(r Release) []string { return r.Busy })...))
}

// setLabel sets a label; nil removes it.
func (p *PodPatch) setLabel(key string, value *string) {
	if p.Labels == nil {
		p.Labels = map[string]*string{}
	}
	p.Labels[key] = value
}

// Encode encodes the patch, a strategic merge patch of the Pod's subresource status: it takes
// labels, annotations and finalizers too, and changes no spec, whoever sends it. So all that a
// pass changes on a Pod is one write, unless Split parts it. It carries UID and resource version,
// so that a Pod that changed since is left alone.
func (p *PodPatch) Encode() []byte {
	patch := map[string]any{"metadata": podMetadata{
		UID: p.Pod.UID, ResourceVersion: p.Pod.ResourceVersion, Labels: p.labels(), Annotations: p.annotations(),
		AddFinalizers: p.AddFinalizers, RemoveFinalizers: p.RemoveFinalizers,
	}}
	if p.Condition != nil {
		patch["status"] = map[string]any{"conditions": []*corev1.PodCondition{p.Condition}}
	}
	return encode.JSON(patch)
}

// podMetadata is metadata of a strategic merge patch: null removes a label or annotation.
type podMetadata struct {
	UID              types.UID          `json:"uid"`
	ResourceVersion  string             `json:"resourceVersion"`
	Labels           map[string]*string `json:"labels,omitempty"`
	Annotations      map[string]*string `json:"annotations,omitempty"`
	AddFinalizers    []string           `json:"finalizers,omitempty"`
	RemoveFinalizers []string           `json:"$deleteFromPrimitiveList/finalizers,omitempty"`
}

// labels are those that change; nil removes one. That of the guard goes with the finalizer.
func (p *PodPatch) labels() map[string]*string {
	labels := map[string]*string{}
	maps.Copy(labels, p.Labels)
	switch {
	case slices.Contains(p.AddFinalizers, usherv1alpha1.Finalizer):
		labels[usherv1alpha1.LabelGuarded] = new("true")
	case slices.Contains(p.RemoveFinalizers, usherv1alpha1.Finalizer):
		labels[usherv1alpha1.LabelGuarded] = nil
	}
	return labels
}

// annotations are those that change; nil removes one.
func (p *PodPatch) annotations() map[string]*string {
	annotations := map[string]*string{}
	if p.TakenBack != nil {
		annotations = undo(p.Pod)
	} else if request, _ := readRequest(p.Pod); request != nil && !p.Drained.IsZero() {
		drained := *request
		drained.Drained = new(metav1.NewMicroTime(p.Drained))
		annotations[usherv1alpha1.AnnotationDeletionRequest] = new(string(encode.JSON(drained)))
	}
	if p.DropDrain {
		annotations[usherv1alpha1.AnnotationDrain] = nil
	}
	if p.Drain != nil {
		annotations[usherv1alpha1.AnnotationDrain] = new(string(encode.JSON(p.Drain)))
	}
	if p.Registrations != nil {
		annotations[usherv1alpha1.AnnotationRegistrations] = p.Registrations
	}
	if p.Asked != nil {
		annotations[usherv1alpha1.AnnotationAsked] = p.Asked
		if *p.Asked == "" {
			annotations[usherv1alpha1.AnnotationAsked] = nil
		}
	}
	p.cost.annotate(annotations)
	if p.dropsNames() {
		annotations[usherv1alpha1.AnnotationRegistrations] = nil
	}
	return annotations
}

// dropsNames reports whether the names of the Registrations go with Usher's finalizer. They stay if a
// deadline releases the Pod: should it come back, those registries still hold it.
func (p *PodPatch) dropsNames() bool {
	_, named := p.Pod.Annotations[usherv1alpha1.AnnotationRegistrations]
	return named && slices.Contains(p.RemoveFinalizers, usherv1alpha1.Finalizer) && p.forced() == ""
}

// Empty reports whether the patch changes nothing.
func (p *PodPatch) Empty() bool {
	return len(p.Labels)+len(p.AddFinalizers)+len(p.RemoveFinalizers) == 0 &&
		p.Drain == nil && !p.DropDrain && p.TakenBack == nil && p.Registrations == nil && p.Asked == nil && p.Condition == nil &&
		p.cost == nil
}
