// SPDX-License-Identifier: Apache-2.0

// Package plan decides what a namespace's registries and Pods need next. It is pure: it
// turns a Snapshot into a Plan, and the same snapshot gives the same plan.
package plan
