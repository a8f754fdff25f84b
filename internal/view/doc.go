// SPDX-License-Identifier: Apache-2.0

// Package view is what people see of a workload: how far its rollout is, where each Pod
// stands, what it waits for, who has to answer, and what to do. The kubectl plugin and the
// pages show it. It is pure, and asks the planners of both halves: nothing here works out
// for itself what a Pod waits for.
package view
