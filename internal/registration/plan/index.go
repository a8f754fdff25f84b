// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/podread"
)

// index is a snapshot with its objects tied together: which Registration selects which
// Pod, and what each target lists.
type index struct {
	Snapshot
	// registrations and pods are those of the snapshot, in its order.
	registrations []*registration
	pods          []*pod
	byUID         map[types.UID]*pod
	listings      map[Target]*targetListing
	// labels means that Pods of a Registration enter a Service by a label, or may have.
	labels bool
	// evictions are those under way, by the Pod's UID.
	evictions map[types.UID]*Eviction
	// holders are the Pods that may have each address; nil until somebody asks.
	holders map[string][]*pod
	// outdated are targets of entries that take other values from their Pods than before;
	// renewed means that the memory does not know which.
	outdated []Target
	renewed  bool
}

// registration is a Registration with its targets and Pods.
type registration struct {
	*usherv1alpha1.Registration
	// current are the targets where its Pods belong, former those where it may have left
	// entries. Both are sorted.
	current, former []Target
	// awaited are targets that a Pod which drains has not left, or whose callers may still use it.
	awaited map[Target]bool
	// gated means that a current target is a Service, follows that somebody else writes the entries of one; writes means
	// that Usher writes those of another one.
	gated, follows, writes bool
	// labels means that a current target is a Service that Pods enter and leave by a label.
	labels bool
	// refused are current targets to which no new entry may be written, and why.
	refused map[Target]*refusal
	// missing are registries that it names and cannot use, as waits of nobody yet.
	missing []Waiting
	pods    []*pod
	// sets are the CloneSets that create Pods for it, or own some, by name.
	sets []*appsv1alpha1.CloneSet
	// kept are Pods that stay listed although their nodes do not answer.
	kept map[*pod]*kept
	// static are the values of all Pods' entries, if they do not come from Pods.
	static *values
	// listings are those of the current targets, nil if unknown; failing means that a change
	// there failed in this pass.
	listings []*targetListing
	failing  bool
	// silentPods are Pods in service that do not say how much is under way, although scaleInOrder wants to know.
	silentPods []SilentPod
}

// named finds the Registration of a name; nil if there is none.
func named(registrations []*registration, name string) *registration {
	for _, r := range registrations {
		if r.Name == name {
			return r
		}
	}
	return nil
}

// targets are all where the Registration may have entries.
func (r *registration) targets() []Target { return slices.Concat(r.current, r.former) }

func targetsOf(all []*registration) []Target {
	return slices.Concat(list.Map(all, (*registration).targets)...)
}

// pod is a Pod with its Registrations.
type pod struct {
	*corev1.Pod
	uid     types.UID
	version string
	// selectedBy are the Registrations that select it, by name; former are others that
	// may have entries of it, or that select it and are being deleted.
	selectedBy, former []*registration
	// names are the Registrations that the Pod's annotation names; nil without one.
	names []string
	// gaveUp are those that let the Pod go at its deadline, although a registry may list it: it may be
	// registered again before somebody deletes it.
	gaveUp    []*registration
	lifecycle appsv1alpha1.Lifecycle
	state     appsv1alpha1.LifecycleState
	// gate means that the Pod is Ready only with Usher's condition. door means that Usher can bring it into
	// a Service and take it out, by its gate or by a label.
	gate, door bool
	// unready is why callers cannot use it; empty if they can.
	unready string
	// request asks for its deletion; nil if none does. It is queued while a
	// PodDisruptionBudget does not allow the eviction. A CloneSet may act on it instead if
	// the Pod is evicted.
	request         *usherv1alpha1.DeletionRequest
	queued, evicted bool
	// cause is why the Pod is to go, if there is a request.
	cause cause
	// goes is why the Pod leaves if nobody has asked to delete it: its node goes, or an eviction of Kubernetes' is under
	// way. The request is not on the Pod then. leaves is the reason of the event.
	goes, leaves string
	// silent means that only its node does not answer.
	silent      bool
	silentSince time.Time
	// id is that of its entries; hooks are those that wait for Usher in its state.
	id    string
	hooks []hook
	// values are what entries take from the Pod.
	values map[*registration]*values
	// owner is the UID of its controller.
	owner types.UID
	// reportsUnlisted means that its condition says that a Service does not list it.
	reportsUnlisted bool
	// settled means that the Pod itself shows that nothing is left to do for it.
	settled bool
	// returns means that a Registration selects the Pod again before it was forgotten.
	returns bool
	// idle is set if the last plan had nothing to do for it, and counts is what the Pod adds
	// to its Registrations' counts then.
	idle   idle
	counts []counts
	// wrote is the deletion cost that Usher has written to it; nil if it has none of Usher's. cost is what becomes of it;
	// nil if it stays.
	wrote *Cost
	cost  *costChange
}

// newIndex ties the snapshot's objects together. It reuses what the snapshot's memory has.
func newIndex(snapshot Snapshot) *index {
	ix := snapshot.Memory.recall(&snapshot)
	ix.Snapshot, ix.holders = snapshot, nil
	ix.indexRegistrations()
	ix.labels = ix.hasLabels()
	ix.indexPods()
	ix.findReturns()
	ix.opensDoors()
	ix.evictions = ix.evictionsUnderWay()
	ix.heedNotices()
	ix.findCauses()
	ix.queueEvictions()
	if ix.listings == nil {
		ix.listings = map[Target]*targetListing{}
	}
	return ix
}

func (ix *index) indexRegistrations() {
	if ix.registrations == nil {
		ix.registrations = list.Map(ix.Registrations, ix.newRegistration)
		return
	}
	for i, r := range ix.registrations {
		r.Registration = ix.Registrations[i]
	}
}

// indexPods reads the Pods of other versions than before.
func (ix *index) indexPods() {
	changed := ix.byUID == nil || len(ix.pods) != len(ix.Pods)
	cloneSets := list.By(ix.CloneSets, (*appsv1alpha1.CloneSet).GetUID)
	pods := make([]*pod, len(ix.Pods))
	for i, object := range ix.Pods {
		var p *pod
		if i < len(ix.pods) && ix.pods[i].uid == object.UID { // as in most passes
			p = ix.pods[i]
		} else {
			p, changed = ix.byUID[object.UID], true
		}
		if p == nil || p.version != object.ResourceVersion {
			before := p
			p, changed = ix.newPod(object, cloneSets), true
			ix.compareValues(before, p)
		}
		p.Pod = object
		pods[i] = p
	}
	ix.pods = pods
	if changed {
		ix.selectPods()
	}
}

// selectPods sets the Pods of each Registration.
func (ix *index) selectPods() {
	ix.byUID = list.By(ix.pods, (*pod).GetUID)
	for _, r := range ix.registrations {
		r.pods = nil
	}
	for _, p := range ix.pods {
		for _, r := range p.selectedBy {
			r.pods = append(r.pods, p)
		}
	}
}

func (ix *index) newRegistration(object *usherv1alpha1.Registration) *registration {
	r := &registration{Registration: object}
	if i := &r.Spec.Instance; i.WeightFrom == nil && len(i.TagsFrom)+len(i.MetadataFrom) == 0 {
		r.static = valuesOf(i, nil)
	}
	if r.DeletionTimestamp == nil {
		ix.findCurrent(r)
	}
	for _, t := range r.current {
		_, labelled := ix.labelled(t)
		r.gated, r.follows, r.writes = r.gated || ix.gated(t), r.follows || ix.follows(t), r.writes || ix.writesTo(t)
		r.labels = r.labels || labelled
	}
	ix.findFormer(r)
	return r
}

// findCurrent sorts the registries that the spec names into usable and missing ones.
func (ix *index) findCurrent(r *registration) {
	for _, name := range slices.Sorted(slices.Values(r.Spec.Registries)) {
		state, exists := ix.Registries[name]
		target := Target{Registry: name, Prefix: state.Prefix, Service: r.Spec.Instance.Service}
		missing := Waiting{Registration: r.Name, Registry: name}
		switch {
		case !exists:
			r.missing = append(r.missing, missing.because(ReasonRegistryNotFound, noRegistry(name)))
		case state.Leaving && !slices.Contains(r.Status.Targets, target):
			r.missing = append(r.missing, missing.because(ReasonRegistryNotFound,
				fmt.Sprintf("Registry %s is being deleted: take it out of spec.registries", name)))
		case state.Denied:
			r.missing = append(r.missing, missing.because(ReasonRegistryNotAllowed, fmt.Sprintf(
				"Registry %s is not for namespace %s: widen its spec.namespaces, or take it out of spec.registries", name, ix.Namespace)))
		case state.unsuited(r, name) != "":
			r.missing = append(r.missing, missing.because(ReasonRegistryUnsuited, state.unsuited(r, name)))
		default:
			r.current = append(r.current, target)
		}
	}
}

// findFormer finds where the Registration may have left entries. If the Registry object
// is gone, nobody can list the target: it holds no Pod, unless the spec still names it.
func (ix *index) findFormer(r *registration) {
	r.former = list.Only(r.Status.Targets, func(t Target) bool {
		_, exists := ix.Registries[t.Registry]
		named := r.DeletionTimestamp == nil && slices.Contains(r.Spec.Registries, t.Registry)
		return (exists || named) && !slices.Contains(r.current, t)
	})
	slices.SortFunc(r.former, compareTargets)
}

func (ix *index) newPod(object *corev1.Pod, cloneSets map[types.UID]*appsv1alpha1.CloneSet) *pod {
	p := &pod{Pod: object, uid: object.UID, version: object.ResourceVersion, state: StateOf(object), id: EntryID(object), gate: HasGate(object)}
	_, p.unready = Ready(object)
	p.silentSince, p.silent = Silent(object)
	p.request, p.evicted = readRequest(object)
	if owner := metav1.GetControllerOfNoCopy(object); owner != nil {
		p.owner = owner.UID
		if set := cloneSets[owner.UID]; set != nil && set.Spec.Lifecycle != nil {
			p.lifecycle = *set.Spec.Lifecycle
		}
	}
	p.names, _ = Names(object) // with an invalid annotation any Registration may have entries
	gaveUp := namesGivenUp(object)
	for _, r := range ix.registrations {
		if slices.Contains(gaveUp, r.Name) {
			p.gaveUp = append(p.gaveUp, r)
		}
		switch selects := r.Selects(object.Labels); {
		case selects && r.DeletionTimestamp == nil:
			p.selectedBy = append(p.selectedBy, r)
		case selects, p.mayBeListedBy(r):
			p.former = append(p.former, r)
		}
	}
	p.door, p.wrote = ix.doorOf(p), CostOf(object)
	p.hooks = hooksAt(p)
	p.reportsUnlisted = SaysUnlisted(podread.Condition(object, usherv1alpha1.ConditionRegistered))
	p.settled = p.isSettled()
	return p
}

// maxNames bounds how many Registrations the annotation of a Pod may name, maxNamesBytes how long it is.
const maxNames, maxNamesBytes = 1000, podread.LongestOwnValue

// Names are the Registrations that the Pod's annotation names; nil without one, and without Usher's finalizer. It
// returns an error if the annotation names what cannot be, or too much: somebody else has written it.
func Names(pod *corev1.Pod) ([]string, error) {
	if !slices.Contains(pod.Finalizers, usherv1alpha1.Finalizer) {
		return nil, nil
	}
	return namesIn(pod)
}

// namesGivenUp are the Registrations that the annotation names without Usher's finalizer. The annotation goes with
// the finalizer, unless a deadline released the Pod.
func namesGivenUp(pod *corev1.Pod) []string {
	if slices.Contains(pod.Finalizers, usherv1alpha1.Finalizer) {
		return nil
	}
	names, _ := namesIn(pod)
	return names
}

func namesIn(pod *corev1.Pod) ([]string, error) {
	text, ok := pod.Annotations[usherv1alpha1.AnnotationRegistrations]
	if !ok {
		return nil, nil
	}
	if text == "" {
		return []string{}, nil
	}
	invalid := func(format string, args ...any) error {
		return fmt.Errorf("annotation %s %s: any Registration of the namespace may have entries of the Pod, until Usher "+
			"writes the annotation again", usherv1alpha1.AnnotationRegistrations, fmt.Sprintf(format, args...))
	}
	if podread.IsCut(text) || len(text) > maxNamesBytes {
		return nil, invalid("has more than %d bytes", maxNamesBytes)
	}
	if n := strings.Count(text, ",") + 1; n > maxNames {
		return nil, invalid("names %d Registrations, of %d at most", n, maxNames)
	}
	names := strings.Split(text, ",")
	for _, name := range names {
		if !IsName(name) {
			return nil, invalid("names %q, which is no name of a Registration", Shorten(name, maxForeign))
		}
	}
	return names, nil
}

// IsName reports whether a Pod or a Registration can have the name.
func IsName(name string) bool { return len(content.IsDNS1123Subdomain(name)) == 0 }

// StateOf is the Pod's lifecycle state. Pods of other controllers have none and are
// Normal.
func StateOf(pod *corev1.Pod) appsv1alpha1.LifecycleState {
	return cmp.Or(appsv1alpha1.LifecycleState(pod.Labels[appsv1alpha1.LabelLifecycleState]),
		appsv1alpha1.StateNormal)
}

// hasFinalizer reports whether Usher's finalizer holds the Pod.
func (p *pod) hasFinalizer() bool { return slices.Contains(p.Finalizers, usherv1alpha1.Finalizer) }

// hasRecord reports whether the Pod carries a drain record.
func (p *pod) hasRecord() bool {
	_, ok := p.Annotations[usherv1alpha1.AnnotationDrain]
	return ok
}

// mayBeListedBy reports whether the Registration may have entries of the Pod: Usher's
// finalizer is there, and the annotation names the Registration, or there is none yet.
func (p *pod) mayBeListedBy(r *registration) bool {
	return p.hasFinalizer() && (p.names == nil || slices.Contains(p.names, r.Name))
}

// deselected are the Registrations that do not select the Pod any more, and may still have
// entries of it.
func (p *pod) deselected() []*registration {
	return slices.DeleteFunc(slices.Clone(p.former), func(r *registration) bool { return !p.mayBeListedBy(r) })
}

// all are the Registrations that may have entries of the Pod.
func (p *pod) all() []*registration { return slices.Concat(p.selectedBy, p.former) }

// protected reports whether entries may be written for the Pod: they are found again,
// whoever deletes it and whatever its labels become.
func (p *pod) protected() bool {
	return p.hasFinalizer() && !p.hasRecord() &&
		!slices.ContainsFunc(p.selectedBy, func(r *registration) bool { return !p.mayBeListedBy(r) })
}

func noRegistry(name string) string {
	return fmt.Sprintf("there is no Registry %q: create it, or take it out of spec.registries", name)
}

var errNotListed = errors.New("it was not listed in this pass")

// look returns what a target lists, or why that is not known.
func (ix *index) look(t Target) (*targetListing, error) {
	listed, ok := ix.Listings[t]
	state, exists := ix.Registries[t.Registry]
	switch {
	case !exists:
		return nil, errors.New(noRegistry(t.Registry))
	case !ok && state.Err != nil:
		return nil, state.Err
	case !ok:
		return nil, errNotListed
	case listed.Err != nil:
		return nil, listed.Err
	}
	before := ix.listings[t]
	if before == nil || !before.IsOf(listed.Entries) {
		ix.listings[t] = ix.newListing(before, listed.Entries, t)
	}
	return ix.listings[t], nil
}
