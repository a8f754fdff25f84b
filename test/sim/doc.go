// SPDX-License-Identifier: Apache-2.0

// Package sim simulates a cluster around the real CloneSet controller, in one process
// and under a virtual clock: an API server in memory, caches that lag, a kubelet, a
// hook operator, users, and faults. The same seed gives the same run. The invariants
// are checked after every write of the controller; once the faults have stopped, the
// cluster must settle at its goal.
//
// The API server, the caches and the work of a kubelet on a Pod are in package model. The parts, from
// the inside out:
//
//   - client.go, process.go: a controller process, that is
//     the real cloneset.Reconciler on a delayed copy of the server's objects;
//   - kubelet.go, operator.go, user.go, deletion.go: the other writers;
//   - known.go, invariants.go, moves.go, claims.go, goal.go: what must hold;
//   - waits.go: which wait a set reports on which nothing moves;
//   - width.go: how many writes are under way, and an API server in trouble;
//   - explore*.go: all schedules of a small cluster instead of random ones;
//   - world.go, setup.go, words.go, story.go: time, randomness, sets in words, and the story of
//     a run.
package sim
