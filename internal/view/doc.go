// SPDX-License-Identifier: Apache-2.0

// Package view computes what people see of a workload: how far its rollout is, the state of each Pod,
// what each Pod waits for, who has to answer, and what to do. The kubectl plugin and the page show it.
// It is pure, and asks the planners of both halves: it does not decide by itself what a Pod waits for.
package view
