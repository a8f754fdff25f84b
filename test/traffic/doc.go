// SPDX-License-Identifier: Apache-2.0

// Package traffic is the callers' side of the demonstration: HTTP requests that
// find their server through etcd, as services outside Kubernetes do.
//
// The stream is an open loop. When each request is due, which caller sends it
// and how long its answer takes is decided beforehand, and a slow answer delays
// nothing, so that a server that stalls is seen to stall. Latency counts from
// the moment a request was due.
//
// Each caller has a cache of the registry that lags behind it, and balances
// round-robin over what it knows. A request is sent once: what is refused, cut,
// late or not answered with a 2xx is lost, and nothing is tried again.
package traffic
