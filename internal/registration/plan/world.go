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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// world is a snapshot with its objects tied together.
type world struct {
	Snapshot
	members  []*member
	subjects []*subject
	byUID    map[types.UID]*subject
	indexes  map[Place]*index
}

// member is a Registration.
type member struct {
	registration *usherv1alpha1.Registration
	name         string
	selector     labels.Selector
	selectorErr  error
	deleting     bool
	// current are the places where its Pods belong, former those where it may
	// have left entries. Both are sorted.
	current, former []Place
	// missing are registries that it names and cannot use.
	missing []missingRegistry
	pods    []*subject
	// sets are the CloneSets that make Pods for it, or own some, by name.
	sets []*appsv1alpha1.CloneSet
	// kept are Pods that stay although their nodes do not answer.
	kept map[*subject]*kept
	// static are the values of all Pods' entries, if they do not come from Pods.
	static *values
}

type missingRegistry struct {
	name   string
	reason Reason
	// leaving says that there is one, which is being deleted.
	leaving bool
}

// places are all where the member may have entries.
func (m *member) places() []Place { return slices.Concat(m.current, m.former) }

// subject is a Pod.
type subject struct {
	pod *corev1.Pod
	// members match it, by name; leavers are others that may have entries of it, or
	// that match it and are being deleted.
	members, leavers []*member
	lifecycle        appsv1alpha1.Lifecycle
	// named are the Registrations that the Pod names; nil if it names none, not even
	// an empty list.
	named []string
	state appsv1alpha1.LifecycleState
	ready bool
	why   string
	// silent says that all is well but for the node, which does not answer.
	silent      bool
	silentSince time.Time
	// id is that of its entries; hooks are those that its state asks about.
	id    string
	hooks []hook
	// values are what entries take from the Pod, by member, as they are asked for.
	values map[*member]*values
}

// index finds the entries of a place.
type index struct {
	byID  map[string]*registry.Entry
	byPod map[types.UID][]*registry.Entry
}

func compareStrings(a, b string) int { return cmp.Compare(a, b) }

func newWorld(snapshot Snapshot) *world {
	w := &world{Snapshot: snapshot, byUID: map[types.UID]*subject{}, indexes: map[Place]*index{}}
	for _, r := range snapshot.Registrations {
		w.members = append(w.members, w.newMember(r))
	}
	cloneSets := map[types.UID]*appsv1alpha1.CloneSet{}
	for _, set := range snapshot.CloneSets {
		cloneSets[set.UID] = set
	}
	for _, pod := range snapshot.Pods {
		s := w.newSubject(pod, cloneSets)
		w.subjects = append(w.subjects, s)
		w.byUID[pod.UID] = s
	}
	for _, m := range w.members {
		m.sets = w.cloneSetsOf(m)
		w.keepSilent(m)
	}
	return w
}

func (w *world) newMember(r *usherv1alpha1.Registration) *member {
	m := &member{registration: r, name: r.Name, deleting: r.DeletionTimestamp != nil}
	if m.selector, m.selectorErr = metav1.LabelSelectorAsSelector(&r.Spec.Selector); m.selectorErr != nil {
		m.selector = labels.Nothing()
	}
	if !readsPods(&r.Spec.Instance) {
		static := valuesOf(&r.Spec.Instance, nil)
		m.static = &static
	}
	if !m.deleting {
		w.findCurrent(m)
	}
	w.findFormer(m)
	return m
}

// findCurrent sorts the registries that the spec names into those that can be
// used and those that cannot.
func (w *world) findCurrent(m *member) {
	for _, name := range slices.Sorted(slices.Values(m.registration.Spec.Registries)) {
		state, exists := w.Registries[name]
		place := Place{Registry: name, Prefix: state.Prefix, Service: m.registration.Spec.Instance.Service}
		recorded := slices.Contains(m.registration.Status.Targets, usherv1alpha1.Target(place))
		switch {
		case !exists, state.Leaving && !recorded:
			m.missing = append(m.missing, missingRegistry{name, ReasonRegistryNotFound, state.Leaving})
		case state.Denied:
			m.missing = append(m.missing, missingRegistry{name, ReasonRegistryNotAllowed, false})
		default:
			m.current = append(m.current, place)
		}
	}
}

// findFormer finds where the member may have left entries. Where the Registry
// object is gone nobody can say or change what is there: such a place holds
// nobody, unless the spec still names it.
func (w *world) findFormer(m *member) {
	for _, t := range m.registration.Status.Targets {
		_, exists := w.Registries[t.Registry]
		named := !m.deleting && slices.Contains(m.registration.Spec.Registries, t.Registry)
		if (exists || named) && !slices.Contains(m.current, Place(t)) {
			m.former = append(m.former, Place(t))
		}
	}
	slices.SortFunc(m.former, comparePlaces)
}

func (w *world) newSubject(pod *corev1.Pod, cloneSets map[types.UID]*appsv1alpha1.CloneSet) *subject {
	s := &subject{pod: pod, state: StateOf(pod), id: EntryID(pod)}
	s.ready, s.why = Ready(pod)
	s.silentSince, s.silent = Silent(pod)
	if owner := metav1.GetControllerOf(pod); owner != nil {
		if set := cloneSets[owner.UID]; set != nil && set.Spec.Lifecycle != nil {
			s.lifecycle = *set.Spec.Lifecycle
		}
	}
	if names, ok := pod.Annotations[usherv1alpha1.AnnotationRegistrations]; ok {
		s.named = strings.Split(names, ",")
	}
	for _, m := range w.members {
		switch matches := m.selector.Matches(labels.Set(pod.Labels)); {
		case matches && !m.deleting:
			s.members = append(s.members, m)
			m.pods = append(m.pods, s)
		case matches, s.mayBeIn(m):
			s.leavers = append(s.leavers, m)
		}
	}
	s.hooks = hooksAt(s)
	return s
}

// StateOf is the Pod's lifecycle state. Pods of other controllers have none and
// are Normal.
func StateOf(pod *corev1.Pod) appsv1alpha1.LifecycleState {
	return cmp.Or(appsv1alpha1.LifecycleState(pod.Labels[appsv1alpha1.LabelLifecycleState]),
		appsv1alpha1.StateNormal)
}

// serves says whether the member wants the Pod in its registries, and if not, why.
func (s *subject) serves(m *member) (bool, string) {
	if why := s.misplaced(m); why != "" {
		return false, why
	}
	return s.ready, s.why
}

// misplaced says why no Pod in this state belongs in the member's registries;
// empty if one does.
func (s *subject) misplaced(m *member) string {
	switch s.state {
	case appsv1alpha1.StateNormal, appsv1alpha1.StateUpdated:
	case appsv1alpha1.StatePreparingNormal:
		if len(m.answers(m.registration.Spec.Hooks.PreNormal, s.lifecycle.PreNormal)) == 0 {
			return "it is PreparingNormal, and the Registration answers no preNormal hook"
		}
	default:
		return "it is " + string(s.state)
	}
	return ""
}

// wanted says whether any registry is to list the Pod.
func (s *subject) wanted() bool {
	for _, m := range s.members {
		if serves, _ := s.serves(m); serves && len(m.current) > 0 {
			return true
		}
	}
	return false
}

// finalized says whether our finalizer holds the Pod.
func (s *subject) finalized() bool {
	return slices.Contains(s.pod.Finalizers, usherv1alpha1.Finalizer)
}

func (s *subject) recorded() bool {
	_, ok := s.pod.Annotations[usherv1alpha1.AnnotationDrain]
	return ok
}

// mayBeIn says whether the member may have entries of the Pod: our finalizer is there,
// and the Pod names the member, or nobody, as before there were such names.
func (s *subject) mayBeIn(m *member) bool {
	return s.finalized() && (s.named == nil || slices.Contains(s.named, m.name))
}

// left are the members that the Pod has left, and that may have entries of it yet.
func (s *subject) left() []*member {
	return slices.DeleteFunc(slices.Clone(s.leavers), func(m *member) bool { return !s.mayBeIn(m) })
}

// protected says whether entries may be written for the Pod: whoever deletes it, and
// whatever becomes of its labels, they are found.
func (s *subject) protected() bool {
	return s.finalized() && !s.recorded() && !slices.ContainsFunc(s.members, func(m *member) bool { return !s.mayBeIn(m) })
}

// EntryID is the id of a Pod's entries: readable, and another one for another
// Pod of the same name.
func EntryID(pod *corev1.Pod) string {
	uid := strings.ReplaceAll(string(pod.UID), "-", "")
	return pod.Namespace + "." + pod.Name + "." + uid[:min(8, len(uid))]
}

// entry is what the member's registries are to list for the Pod; false if the
// Pod has no port of that name.
func (w *world) entry(m *member, s *subject) (registry.Entry, bool) {
	v := s.valuesFor(m)
	port := portOf(s.pod, m.registration.Spec.Instance.Port)
	return registry.Entry{
		ID: s.id, Address: s.pod.Status.PodIP, Port: port,
		Weight: v.weight, Metadata: v.metadata,
		Owner: registry.Owner{
			Cluster: w.Cluster, Namespace: s.pod.Namespace, Registration: m.name,
			Pod: s.pod.Name, PodUID: string(s.pod.UID),
		},
	}, port != 0
}

// valuesFor returns what the member's entries take from the Pod.
func (s *subject) valuesFor(m *member) *values {
	if m.static != nil {
		return m.static
	}
	if found := s.values[m]; found != nil {
		return found
	}
	if s.values == nil {
		s.values = map[*member]*values{}
	}
	v := valuesOf(&m.registration.Spec.Instance, s.pod)
	s.values[m] = &v
	return &v
}

var errNotListed = errors.New("it was not listed in this pass")

// look returns the index of a place, or why what it has is not known.
func (w *world) look(p Place) (*index, error) {
	listing, listed := w.Listings[p]
	state, exists := w.Registries[p.Registry]
	switch {
	case !exists:
		return nil, fmt.Errorf("there is no Registry %q: create it, or take it out of spec.registries", p.Registry)
	case !listed && state.Err != nil:
		return nil, state.Err
	case !listed:
		return nil, errNotListed
	case listing.Err != nil:
		return nil, listing.Err
	}
	if found := w.indexes[p]; found != nil {
		return found, nil
	}
	built := &index{byID: map[string]*registry.Entry{}, byPod: map[types.UID][]*registry.Entry{}}
	for i := range listing.Entries {
		e := &listing.Entries[i]
		built.byID[e.ID] = e
		if e.Owner.Cluster == w.Cluster {
			uid := types.UID(e.Owner.PodUID)
			built.byPod[uid] = append(built.byPod[uid], e)
		}
	}
	w.indexes[p] = built
	return built, nil
}

// stateSince is when the Pod entered its lifecycle state, zero if it is not known.
func (s *subject) stateSince() time.Time {
	at, err := time.Parse(time.RFC3339, s.pod.Annotations[appsv1alpha1.AnnotationLifecycleTimestamp])
	if err != nil {
		return time.Time{}
	}
	return at
}
