// SPDX-License-Identifier: Apache-2.0

// Package plan decides what a namespace's registries and Pods need next. It is pure: it
// turns a Snapshot into a Plan, and the same snapshot gives the same plan.
//
// A pass calls it three times. Outdated and Needs say which targets to list, Make plans from
// the listings, and after the registries have been changed Make plans again from what they
// list then: nothing else proves a change. Make runs these steps in this order; each is in
// the file of its name:
//
//	step        decides
//	index       which Registration selects which Pod, and which targets it has
//	memory      which Pods are idle, so that nothing has to be decided
//	nodes       which Pods stay listed although their nodes do not answer
//	entries     what changes in each target: desired state against listing
//	findings    which hooks are named by one side only
//	then for each Pod that is not idle (plan.go):
//	  protect   the finalizer and the names that it needs before its first entry; the guard's
//	            label, if the Pod has lost it
//	  hooks     which hooks wait for Usher in the Pod's state (hooks.go), and whether they
//	            are released (gates.go): read back, after propagation, or at a deadline
//	  drain     the record that carries the times of a drain from pass to pass
//	  condition what the Pod itself says
//	outcome     what remains of each Registration: counts, targets, whether it may go
//
// An example: Registration nginx has propagation 5s and deadline 1m. Pod old is registered,
// and its CloneSet wants to update it; Pod new is ready for the first time.
//
//	12:00:00  The listing has old and not new. The finalizer comes before the first entry;
//	          the entry of old goes at once.
//	            protect new: +usher.dev/registration in(nginx)
//	            remove discovery old
//	            patch old: drain(inPlaceUpdate 0s: )
//	            wait new created discovery NotListedYet
//	            wait old inPlaceUpdate discovery StillListed
//	            again in 1m0s
//	          With its finalizer, new may join. Nothing else has changed.
//	            remove discovery old
//	            put discovery new
//	            patch old: drain(inPlaceUpdate 0s: )
//	            wait new created discovery NotListedYet
//	            wait old inPlaceUpdate discovery StillListed
//	            again in 1m0s
//	          Both changes were made and read back: the hook of new is released. Callers may
//	          still use old for 5s, counted from this listing; the record keeps the time.
//	            patch new: newly-create=false registered=True
//	            patch old: drain(inPlaceUpdate 0s: discovery 0s) registered=False
//	            wait old inPlaceUpdate discovery Propagation
//	            again in 5s
//	12:00:05  The next pass, of this process or another one, lists old no more: released.
//	            patch old: unready-blocker-inplace=false -drain
//
// Invariants, whatever the snapshot:
//   - a hook that a Pod leaves by is released only if every target of its Registrations was
//     listed without it and propagation has passed, or at a deadline with onDeadline: Proceed;
//   - no entry is put for a Pod without the finalizer, or with a drain record;
//   - entries of other clusters, and of nobody, are never touched;
//   - what is not known holds hooks and finalizers.
package plan
