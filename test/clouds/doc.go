// SPDX-License-Identifier: Apache-2.0

// Package clouds follows Services as the controllers of clouds' load balancers do, each by its own rule, and writes
// their Pods as targets to a load balancer. The rules are those of these controllers' sources; no code of theirs runs
// here.
package clouds
