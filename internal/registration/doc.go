// SPDX-License-Identifier: Apache-2.0

// Package registration is Usher's hook operator: it brings Pods into registries
// and sees them out again, and answers the lifecycle hooks of CloneSets.
//
// One pass looks after one namespace, because several Registrations may match
// the same Pod and answer the same hook, and a Pod that none matches any more
// still has to leave. A pass
//
//  1. observes the objects, laid over with our own last writes;
//  2. lists each (registry, prefix, service) where something may be left to do;
//  3. plans (package plan, which is pure);
//  4. protects: our finalizer goes on each Pod before its first entry does;
//  5. applies one batch of changes to each target, and reads it back;
//  6. plans again from what was read, and patches Pods;
//  7. writes statuses, then events.
//
// Invariants:
//
//   - A hook is released only by a pass that itself listed every registry
//     without the Pod, and only when spec.drain.propagation has gone by since
//     the listing that first did; and since callers are back that had lost the
//     registry, as far as an outage was seen by this process or an earlier one.
//   - No entry is written for a Pod that could vanish unseen: the finalizer is
//     there, no drain record is, and the API server has just said so.
//   - A Pod names the Registrations that may have entries of it before the first is
//     there, and until a listing has shown that none is left: a Pod that does not match
//     one any more, or a Registration that has changed its selector, is not forgotten.
//   - Who has entries in a registry is recorded there before the first is, so that
//     none outlives its Pod or its Registration, whoever takes finalizers off.
//   - Entries of another cluster or of nobody are never touched.
//   - What is not known is not assumed: a registry that cannot be listed holds
//     hooks and finalizers, until spec.drain says otherwise.
package registration
