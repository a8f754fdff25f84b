// SPDX-License-Identifier: Apache-2.0

// Package write encodes what the planner decided: the manifests of new Pods and claims,
// and the patches of a Pod. It is pure; package cloneset sends them.
package write
