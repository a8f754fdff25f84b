// SPDX-License-Identifier: Apache-2.0

// Package registration is Usher's hook operator: it brings Pods into registries and takes
// them out again, and answers the lifecycle hooks of CloneSets.
//
// One pass covers one namespace, because several Registrations may select the same Pod and
// answer the same hook, and a Pod that none selects any more must still leave. A pass
//
//  1. observes the objects, overlaid with our own last writes (observe.go), and
//     takes over what vanished Registrations have left (own.go); then it lists each target
//     (registry, prefix, service) where something may be left to do;
//  2. plans (package plan, which is pure). What targets list is kept by package listing; what is known of the registries
//     themselves, by package registries;
//  3. executes (execute.go): first it records who will have entries where (own.go) and puts
//     our finalizer on Pods; then it applies one batch of changes to each target, reads it
//     back, plans again from that, and patches Pods;
//  4. writes statuses (status.go);
//  5. reports: log lines, events and metrics (report.go);
//  6. remembers what the next pass needs (state.go), and decides when that is due (next in pass.go).
//
// Each step takes values and returns one. What is known at a moment is an observation, which nobody changes. How far a
// pass has come is a stage: what it knows, its last plan, and the results of its steps so far (results.go).
//
// Invariants:
//
//   - A hook is released only by a pass that itself listed every registry without the Pod,
//     and only when spec.drain.propagation has passed since the first such listing, and
//     since callers that had lost the registry are back, as far as this process or an
//     earlier one noticed the outage.
//   - No entry is written for a Pod that could vanish unseen: it has the finalizer and no
//     drain record, and the API server has just shown it so.
//   - A Pod's annotation names the Registrations that may have entries of it, from before the
//     first entry until a listing shows that none is left. So neither a Pod with other labels
//     nor a Registration with another selector is forgotten.
//   - A Registry records who has entries there before the first is written. So none outlives
//     its Pod or its Registration, whoever removes finalizers.
//   - Entries of another cluster or of nobody are never touched.
//   - Nothing is assumed of what is not known: a registry that cannot be listed holds hooks
//     and finalizers, until spec.drain says otherwise.
package registration
