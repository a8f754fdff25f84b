// SPDX-License-Identifier: Apache-2.0

// Package plan decides what a CloneSet needs next. It is pure: it turns a Snapshot into a
// Plan, and the same snapshot gives the same plan.
//
// Make runs these steps in this order. Each pays from one ledger
// (budget.go) for what it takes out of service:
//
//	step              decides                                             pays
//	cancelScaleIn     which Pods leave PreparingDelete when a scale-in    nothing
//	                  is cancelled
//	choose            which Pods get the update revision, by partition    nothing
//	                  and order
//	heedTrials        which of them stay in service because the API         nothing
//	                  server refuses their update in place
//	awaitImages       which of them stay in service until their node has the        nothing
//	                  new image
//	openLedger        how many Pods serve, and how many are under way     -
//	refresh           which Pods pass their gate, which conditions are    nothing: these Pods
//	                  wrong, which ended Pods are deleted                 return, or are gone
//	create            how many Pods are missing, surge included           1 start a Pod
//	release           which Pods no preDelete hook holds any more         nothing: paid at the gate
//	replace           which Pods are removed that are named for deletion  1 start, and 1 available Pod
//	                  or leave their nodes
//	scaleIn           which surplus Pods are removed                      1 start, and 1 available Pod
//	update            which chosen Pods change, in place or by recreate   1 start (of half of them),
//	                                                                      and 1 available Pod
//	syncClaims        which claims are deleted, and which are missing     nothing
//	prunePodsToDelete which names leave podsToDelete                      nothing
//
// Return decides as refresh does, for one Pod that changes after the snapshot.
//
// An example: replicas 10, maxUnavailable 2, no surge, type InPlaceIfPossible. web-3
// crashes. The template gets a new image.
//
//	Pass 1. choose queues all ten, web-3 first because it is not ready.
//	        openLedger: 10 Pods, 9 available, 0 under way.
//	        update: web-3 serves nobody, so it costs no available Pod; it counts
//	        as under way (1). web-0 serves; 9 available > 10-2, so it may leave
//	        (8 available, 2 under way). web-1 may not: 8 is not > 8.
//	Pass 2. web-0 is back on the new image. web-3 crashes there, too.
//	        openLedger: 10 Pods, 9 available, 1 under way (web-3 has the update
//	        revision and does not serve). update: web-1 leaves.
//	Pass 3, 4, … One Pod at a time: web-3 holds the other place. The condition Blocked
//	        names it. If a second Pod crashed, 8 would serve and the rollout
//	        would wait.
//
// Invariants, whatever the snapshot:
//   - a Pod gets at most one action in a pass;
//   - an action that takes an available Pod out of service is paid for from the
//     ledger, so that the controller never makes more Pods unavailable than allowed;
//   - a Pod is neither updated nor deleted while its hook holds it;
//   - Pods that are not the set's own are not in the snapshot.
package plan
