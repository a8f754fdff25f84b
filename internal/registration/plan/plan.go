// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"strings"
	"time"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// Plan is what a pass is to do, in this order.
type Plan struct {
	// Protect makes Pods ready for their first entry: our finalizer on, the
	// drain record off. Nothing is registered for a Pod before it succeeded.
	Protect []PodPatch
	// Changes go to the registries, one batch a place, sorted.
	Changes []PlaceChanges
	// Patches release hooks and finalizers and keep records. They hold for the
	// listings that were planned from.
	Patches []PodPatch
	// Waiting are the Pods that wait, sorted by Pod, gate, key and registry.
	Waiting []Waiting
	// Outcomes has one entry for each Registration, sorted by name.
	Outcomes []Outcome
	// Findings are hooks that do not match, sorted.
	Findings []Finding
	// Misfits are values of Pods that cannot be used, sorted.
	Misfits []Misfit
	// RequeueAt is when to plan anew if nothing happens, zero for never.
	RequeueAt time.Time
}

// Outcome is what a plan says of one Registration.
type Outcome struct {
	Registration *usherv1alpha1.Registration
	// Counts for the status.
	Pods, Registered, Draining, NotReady int32
	// PerRegistry has the Pods that callers find, by registry.
	PerRegistry map[string]int32
	// Targets to record before anything is written.
	Targets []usherv1alpha1.Target
	// Kept are the recorded targets without those that were found empty.
	Kept []usherv1alpha1.Target
	// Protected says that the Registration has to carry our finalizer.
	Protected bool
	// Released says that nothing of it is left anywhere.
	Released bool
	// HasCloneSet says that there is a CloneSet to compare hooks with.
	HasCloneSet bool
	// SelectorErr says why spec.selector cannot be read.
	SelectorErr error
	// Missing are problems with the registries that it names.
	Missing []Waiting
}

// unsettledRetry is when a place is listed again whose entries wait for their
// last requests.
const unsettledRetry = time.Second

// Make plans. It depends on nothing but the snapshot.
func Make(snapshot Snapshot) Plan {
	w := newWorld(snapshot)
	p := Plan{Changes: w.changes(), Findings: w.findings(), Misfits: w.misfits()}
	if slices.ContainsFunc(p.Changes, func(c PlaceChanges) bool { return c.unsettled }) {
		p.RequeueAt = w.Now.Add(unsettledRetry)
	}
	for _, s := range w.subjects {
		if s.wanted() && !s.protected() {
			p.Protect = append(p.Protect, protect(s))
		}
		w.planPod(s, &p)
	}
	slices.SortStableFunc(p.Waiting, compareWaiting)
	for _, m := range w.members {
		p.Outcomes = append(p.Outcomes, w.outcome(m, &p))
	}
	return p
}

func protect(s *subject) PodPatch {
	patch := PodPatch{Pod: s.pod, DropDrain: s.recorded(), Registrations: namesOf(s.members, s.left())}
	for _, m := range s.members {
		if !s.mayBeIn(m) {
			patch.Due = append(patch.Due, m.current...)
		}
	}
	if !s.finalized() {
		patch.AddFinalizers = []string{usherv1alpha1.Finalizer}
	}
	return patch
}

// planPod decides on one Pod.
func (w *world) planPod(s *subject, p *Plan) {
	patch := PodPatch{Pod: s.pod}
	first := len(p.Waiting)
	var next time.Time
	switch {
	case s.pod.DeletionTimestamp != nil:
		next = w.planTerminating(s, &patch, p)
	case len(s.members) == 0:
		w.planStray(s, &patch, p)
	default:
		next = w.planLiving(s, &patch, p)
	}
	p.RequeueAt = Earlier(p.RequeueAt, next)
	w.planCondition(s, p.Waiting[first:], &patch)
	if !patch.Empty() {
		p.Patches = append(p.Patches, patch)
	}
}

// planTerminating takes our finalizers off a Pod that is on its way out, as
// soon as no registry lists it: its process may be gone already.
func (w *world) planTerminating(s *subject, patch *PodPatch, p *Plan) time.Time {
	own := s.ownFinalizers()
	if len(own) == 0 {
		return time.Time{}
	}
	a := w.gone(s, s.responsible())
	p.Waiting = append(p.Waiting, a.waiting...)
	if !a.done() {
		return a.next
	}
	patch.RemoveFinalizers = own
	sortWaits(a.waits)
	patch.Released = []Release{{Gate: GateDeletion, Key: own[0], Forced: a.forced, Waits: a.waits}}
	return time.Time{}
}

// planStray lets go of a Pod that no Registration matches any more.
func (w *world) planStray(s *subject, patch *PodPatch, p *Plan) {
	if !s.finalized() {
		return
	}
	a := w.gone(s, s.responsible())
	if !a.done() {
		p.Waiting = append(p.Waiting, a.waiting...)
		return
	}
	patch.RemoveFinalizers = []string{usherv1alpha1.Finalizer}
	patch.DropDrain = s.recorded()
}

// planLiving answers the hooks of a Pod and keeps its drain record.
func (w *world) planLiving(s *subject, patch *PodPatch, p *Plan) time.Time {
	var next time.Time
	record, stored := w.drainOf(s)
	held := false
	for _, h := range s.hooks {
		a := w.ask(s, h, record)
		next = Earlier(next, a.next)
		p.Waiting = append(p.Waiting, a.waiting...)
		if a.done() {
			answerHook(h, a, patch)
		} else if h.leaving() {
			held = true
		}
	}
	w.planDrain(s, record, stored, held, patch)
	p.Waiting = append(p.Waiting, w.unhooked(s)...)
	if !held {
		p.Waiting = append(p.Waiting, w.forget(s, patch)...)
	}
	for _, m := range s.members {
		if k := m.kept[s]; k != nil {
			next = Earlier(next, k.until)
		}
	}
	return next
}

// drainOf returns the record of the Pod's present drain, nil if it is at no gate
// that it has to leave by, and the record that the Pod carries.
func (w *world) drainOf(s *subject) (record, stored *Record) {
	for _, h := range s.hooks {
		if h.leaving() {
			return continued(s.pod, h.gate, w.Now)
		}
	}
	return nil, readRecord(s.pod)
}

// ask asks the Registrations that answer the hook.
func (w *world) ask(s *subject, h hook, record *Record) answer {
	if h.leaving() {
		return w.leave(s, h, record)
	}
	return w.join(s, h)
}

// planDrain keeps the drain record while a hook holds the Pod, and clears up
// when the last one lets go.
func (w *world) planDrain(s *subject, record, stored *Record, held bool, patch *PodPatch) {
	switch {
	case record == nil:
	case held && !record.equal(stored):
		patch.Drain = record
	case held:
	default:
		patch.DropDrain = s.recorded()
		if record.Gate == GatePreDelete && s.finalized() && w.nowhere(s) {
			// The Pod is about to be deleted: one write less for each.
			patch.RemoveFinalizers = append(patch.RemoveFinalizers, usherv1alpha1.Finalizer)
		}
	}
}

// unhooked tells of registries that keep a Pod waiting although no hook says so.
func (w *world) unhooked(s *subject) []Waiting {
	if w.settled(s) && !w.refused(s) {
		return nil
	}
	var waiting []Waiting
	for _, m := range s.members {
		if slices.ContainsFunc(s.hooks, func(h hook) bool { return slices.Contains(h.members, m) }) {
			continue
		}
		waiting = append(waiting, w.unhookedFrom(s, m)...)
	}
	return waiting
}

func (w *world) unhookedFrom(s *subject, m *member) []Waiting {
	switch w.stanceOf(m, s) {
	case stanceIn:
		a := w.join(s, hook{gate: GateJoining, members: []*member{m}})
		return a.waiting
	case stanceStay:
		if k := m.kept[s]; k != nil && k.message != "" {
			base := Waiting{Registration: m.name, Pod: s.pod.Name, Gate: GateLeaving, Since: s.silentSince}
			return []Waiting{base.because(ReasonNodeSilent, k.message)}
		}
		return nil
	}
	a := w.gone(s, []*member{m})
	return a.waiting
}

// forget makes the Pod name no members any more that it has left, and whose registries
// do not list it. It returns what the others wait for.
func (w *world) forget(s *subject, patch *PodPatch) (waiting []Waiting) {
	left := s.left()
	kept := slices.DeleteFunc(slices.Clone(left), func(m *member) bool {
		a := w.gone(s, []*member{m})
		waiting = append(waiting, a.waiting...)
		return a.done()
	})
	if len(kept) < len(left) {
		patch.Registrations = namesOf(s.members, kept)
	}
	return waiting
}

// namesOf is what a Pod is to say of those that may have entries of it.
func namesOf(members, left []*member) *string {
	var names []string
	for _, m := range slices.Concat(members, left) {
		names = append(names, m.name)
	}
	slices.Sort(names)
	text := strings.Join(names, ",")
	return &text
}

func answerHook(h hook, a answer, patch *PodPatch) {
	if h.leaving() {
		h.hold.release(patch)
	} else {
		h.hold.set(patch)
	}
	sortWaits(a.waits)
	patch.Released = append(patch.Released, Release{
		Gate: h.gate, Key: h.hold.key, Forced: a.forced, Waits: a.waits,
	})
}

// nowhere says whether every place is known not to list the Pod.
func (w *world) nowhere(s *subject) bool {
	a := w.gone(s, s.responsible())
	return a.done()
}
