// SPDX-License-Identifier: Apache-2.0

// Package model holds the models that the simulators and the explorer share. None of
// them does I/O, keeps time or draws chance; that is up to the simulators.
//
//   - server.go, patch.go: an API server, with versions, preconditions, subresources,
//     finalizers and graceful deletion;
//   - client.go: a controller's client, and a cache that is behind the server;
//   - kubelet.go: the work of a kubelet on a Pod, given the Pod and
//     its running containers.
package model
