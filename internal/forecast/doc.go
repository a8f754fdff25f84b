// SPDX-License-Identifier: Apache-2.0

// Package forecast says what a change of a CloneSet would do, before it is made. It plays
// the controller's own planner on the live objects to the end: the planner decides, what it
// writes is applied to copies of the Pods, and kubelets and hook operators answer as they do
// when nothing goes wrong. It is pure.
//
//	play.go      the loop: decide, apply, let the next thing happen
//	cluster.go   what happens: kubelets, hooks, and what the API server makes of a write
//	record.go    what is told of it: waves, hooks, the lowest availability, where it stops
//	quota.go     which quotas its Pods exceed
//	pace.go      how long things take, as earlier updates of the same Pods show
package forecast
