// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/usher-dev/usher/internal/pace"
	"github.com/usher-dev/usher/internal/registration/plan"
)

// namespaceState is what this process knows of a namespace, beyond the caches. pass belongs to the passes over the
// namespace, which never overlap, and has no lock. shared has one: event handlers use it too.
type namespaceState struct {
	pass   *passState
	shared *sharedState
}

// passState is what one pass keeps for the next one. Only a pass may touch it, and only remember changes it.
type passState struct {
	// due are targets that were written to, and not listed as they should be since.
	due map[plan.Target]bool
	learned
	// refusals are keys of Pods that the API server has refused, by the Pod's UID.
	refusals map[types.UID]refusal
	// firstPatch is the Pod whose patch was postponed: the next pass begins with it.
	firstPatch string
	// unlisted are Pods that their Services may not list.
	unlisted plan.Unlisted
	// departures are Pods that Registrations have deselected a moment ago.
	departures plan.Departures
	// said is what Usher has said last of evictions, by their UIDs.
	said map[types.UID]plan.Response
	// waits are the open waits in the log, and since when.
	waits map[plan.Waiting]time.Time
	// plans is the memory of the planner, and bytes what it is accounted for.
	plans *plan.Memory
	bytes int64
}

// learned is what a pass has learned of the API server and of registries by itself. An observation has what is
// known by then.
type learned struct {
	// answered are values of Pods' annotations that name Registrations of which nobody need be asked any more.
	answered map[string]bool
	// confirmed are Registrations and Registries that were once read from the API server.
	confirmed map[types.UID]bool
	// followed is what targets listed last whose entries somebody else writes.
	followed map[plan.Target]followed
	sweeps   sweeps
}

// sharedState is what passes share with event handlers. Its methods lock.
type sharedState struct {
	// pace is when the next pass may begin. A Pod that ends, and that registries may list, is urgent.
	pace pace.Pace

	mu sync.Mutex
	// changed are the Services that have changed since the last pass began, or whose EndpointSlices have.
	changed map[string]bool
}

// stateOf returns what is known of a namespace.
func (r *Reconciler) stateOf(namespace string) *namespaceState {
	state, _ := r.states.LoadOrStore(namespace, &namespaceState{
		pass: &passState{
			due: map[plan.Target]bool{}, refusals: map[types.UID]refusal{}, plans: &plan.Memory{},
			learned: learned{answered: map[string]bool{}, confirmed: map[types.UID]bool{}, followed: map[plan.Target]followed{}},
		},
		shared: &sharedState{changed: map[string]bool{}},
	})
	return state.(*namespaceState)
}

// shared returns what passes over a namespace share with event handlers; nil if there was no pass. The first pass
// lists all Services, and no pause is before it: it needs to know nothing.
func (r *Reconciler) shared(namespace string) *sharedState {
	state, known := r.states.Load(namespace)
	if !known {
		return nil
	}
	return state.(*namespaceState).shared
}

// hurry shortens the pause: a Pod ends that registries may list.
func (r *Reconciler) hurry(namespace string) {
	if s := r.shared(namespace); s != nil {
		s.pace.Hurry()
	}
}

// noteChanged notes, or forgets, that a Service has changed, or one of its EndpointSlices.
func (r *Reconciler) noteChanged(namespace, service string, yes bool) {
	if s := r.shared(namespace); s != nil {
		s.recordChange(service, yes)
	}
}

func (s *sharedState) recordChange(service string, yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !yes {
		delete(s.changed, service)
		return
	}
	s.changed[service] = true
}

// takeChanged returns the Services that have changed since it was last called.
func (s *sharedState) takeChanged() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := s.changed
	s.changed = map[string]bool{}
	return changed
}

// idle reports whether nothing would be lost with the state.
func (s *sharedState) idle(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pace.Idle(now) && len(s.changed) == 0
}

// remember keeps what the next pass needs of this one.
func (k *passState) remember(before *observation, done stage, waits map[plan.Waiting]time.Time) {
	k.learned, k.due = done.seen.learned, dueAfter(done)
	k.unlisted, k.departures = done.unlisted, done.departures
	k.refusals = refusalsAfter(k.refusals, before, done.patches)
	if done.stopped {
		return
	}
	k.waits, k.said = waits, saidAfter(k.said, done)
	if done.firstPatch != "" {
		k.firstPatch = done.firstPatch
	}
}

// dueAfter are the targets that the next pass compares: those that were written to, or that a Pod's record may lack
// because its patch has failed. It forgets those that are listed as they should be.
func dueAfter(done stage) map[plan.Target]bool {
	due := maps.Clone(done.seen.snapshot.Due)
	for _, target := range done.due {
		due[target] = true
	}
	if done.stopped {
		return due
	}
	needed, wrong := map[plan.Target]bool{}, map[plan.Target]bool{}
	for _, p := range done.patches {
		for _, target := range p.unrecorded() {
			needed[target] = true
		}
	}
	for _, c := range done.decided.Changes {
		wrong[c.Target] = !c.Empty()
	}
	for target, listing := range done.seen.snapshot.Listings {
		switch {
		case needed[target]:
			due[target] = true
		case listing.Err == nil && !wrong[target]:
			delete(due, target)
		}
	}
	return due
}

// holdsNothing reports whether there is nothing to remember.
func (k *passState) holdsNothing() bool {
	return len(k.due)+len(k.sweeps.swept)+len(k.sweeps.suspects)+len(k.sweeps.remaining)+len(k.answered)+len(k.confirmed)+
		len(k.refusals)+len(k.said)+len(k.unlisted)+len(k.departures)+len(k.waits)+len(k.followed) == 0 && k.bytes == 0
}

// keepListings ends a pass. What was listed is kept for the next one, unless that is too much in addition to what others
// keep.
func (r *Reconciler) keepListings(k *passState) {
	k.plans.Release()
	size := k.plans.Size()
	if !r.answers.Keep(k.bytes, size) {
		k.plans.Forget()
		size = 0
	}
	k.bytes = size
}

// forgetIdle drops the state of a namespace about which there is nothing to remember. The next pass there begins with
// a new one.
func (r *Reconciler) forgetIdle(namespace string, state *namespaceState) {
	if state.pass.holdsNothing() && r.written.empty(namespace) && state.shared.idle(r.clock.Now()) {
		r.states.Delete(namespace)
	}
}

// drop forgets a namespace after a pass that has panicked: nobody knows what it has done by then. The next pass begins as
// that of a new process, which lists everything.
func (r *Reconciler) drop(namespace string, state *namespaceState) {
	r.answers.Keep(state.pass.bytes, 0)
	r.states.Delete(namespace)
}
