// SPDX-License-Identifier: Apache-2.0

// Package operator simulates a cluster around the real hook operator: the API server and
// the kubelets of package model, registries in memory, and a CloneSet controller that is
// a table of moves. The operator's caches lag, its processes crash after any write, and
// its registries fail. The same seed gives the same run.
package operator
