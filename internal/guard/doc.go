// SPDX-License-Identifier: Apache-2.0

// Package guard keeps Pods from being deleted while callers use them.
//
// It is a validating webhook for DELETE of Pods and CREATE of pods/eviction. While a registry may list
// a Pod, the Pod carries the finalizer usher.dev/registration. The guard answers such a request at once
// with 429 Too Many Requests and the number of seconds after which to repeat it, as client-go, and so
// kubectl and all of Kubernetes' controllers, do by themselves. Its first answer also asks for what has
// to happen before: for a Pod of a CloneSet a named deletion (apps.kruise.io/specified-delete), so that
// the set's hook and budgets hold; for any other Pod a drain (usher.dev/drain-request), which the hook
// operator performs. The hook operator removes its finalizer from the drained Pod, and from then on the
// API server does not call the guard for it.
//
// The webhook's failurePolicy is Ignore: without Usher, Pods are deleted as if there
// were no guard.
//
//   - decide.go: what to answer, a pure function of the request and the Pod;
//   - handler.go: the webhook: reads the Pod, writes the request for a drain;
//   - owner.go: whether the controller that a Pod names really is its controller;
//   - server.go, crowd.go: serves TLS, with bounds on connections and what they send;
//   - clients.go: whose certificates callers have to show, if any;
//   - door.go, room.go: who may ask, at a path that only API servers know, and how many at a time;
//   - certificate.go: the path and the certificate that the webhook serves, which package keeper makes
//     in another process;
//   - endpoint: how API servers call the guard, for both processes.
package guard
