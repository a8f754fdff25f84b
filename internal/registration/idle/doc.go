// SPDX-License-Identifier: Apache-2.0

// Package idle asks Pods whether anything is under way there, as spec.drain.until of their Registrations says. A plan
// names the Pods; a Room asks all of them, between passes, and has a pass made when an answer matters:
//
//	room.go    whom to ask next, and what their answers add up to
//	asker.go   one request: what is sent, and how much of an answer is read
//	answer.go  what an answer says
//
// Pods belong to tenants. So a Room calls only the addresses that a plan has found in the Pods (package podhttp), and
// reads a bounded part of an answer for a bounded time. Nothing of an answer is shown but a number, or a status code.
package idle
