// SPDX-License-Identifier: Apache-2.0

// Package plan decides what a CloneSet needs next. It is pure: a Snapshot goes
// in, a Plan comes out, and the same snapshot gives the same plan.
//
// A pass goes through these steps, in this order, over one ledger of budgets:
//
//  1. revive: a scale-in that was taken back revives Pods in PreparingDelete.
//  2. choose: the Pods that shall have the update revision, by partition and order.
//  3. refresh: Pods whose gate is open move on by themselves; conditions are
//     put right; Pods that ended are cleaned up.
//  4. create: missing Pods, and surge, are created.
//  5. release: Pods in PreparingDelete that no hook holds any more are deleted.
//  6. replace: Pods that were named for deletion go, within maxUnavailable.
//  7. scale in: surplus Pods go, unless a replacement is under way.
//  8. update: Pods of an old revision change, within maxUnavailable.
//
// What always holds, whatever the snapshot:
//   - a Pod gets at most one action in a pass;
//   - an action that takes an available Pod out of service is paid for from the
//     ledger, so that no more Pods than allowed are unavailable by our doing;
//   - a Pod is neither updated nor deleted while its hook holds it;
//   - Pods that are not the set's own are not in the snapshot.
package plan
