// SPDX-License-Identifier: Apache-2.0

// Package traffic is the callers' side of the demonstration: HTTP requests that find
// their server through etcd, as services outside Kubernetes do.
//
// The stream is an open loop. The due time, the caller and the duration of each request
// are decided beforehand, and a slow answer delays nothing, so that a stalled server
// shows up as stalled. Latency counts from the moment a request was due.
//
// Each caller has a lagging cache of the registry and balances round-robin over what it
// knows. A request is sent once: a request that is refused, cut, late or not answered
// with a 2xx is lost, and nothing is retried.
package traffic
