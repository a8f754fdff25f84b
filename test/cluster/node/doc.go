// SPDX-License-Identifier: Apache-2.0

// Package node is the node agent of the development cluster: it registers
// nodes, keeps their leases fresh and plays the kubelet for every Pod bound to
// them.
//
// There is one Pod state machine (pod.go, container.go, terminate.go) and two
// runtimes behind the Runtime interface. The process runtime makes every
// container an operating system process with the Pod's own loopback address;
// the simulated runtime starts nothing and so carries thousands of Pods.
//
// One call of pod.step takes a Pod as far as it gets now: it starts and stops
// containers, never waits, and says when it wants to be called again. Whatever
// takes time (a process, a hook, a probe) runs elsewhere, leaves its result in
// the record and puts the Pod back in the queue. What the step has led to is
// written to the Pod's status in one patch of the fields that changed.
//
// # Differences from a kubelet
//
//   - Volumes, Secrets, ConfigMaps, service account tokens, security contexts
//     and network policies are ignored, and so are environment variables that
//     come from ConfigMaps, Secrets or resource fields, working directories and
//     termination messages. A process sees the files and the network of the
//     machine.
//   - Resource requests and limits are reported as actuated at once, never
//     enforced. There is no eviction, no OOM kill, no activeDeadlineSeconds.
//   - kubectl logs, exec, attach and port-forward do not work: there is no
//     kubelet endpoint. Container output is in files, see ProcessOptions.
//   - Pod addresses of the process runtime are loopback addresses, reachable
//     from this machine only. The API server refuses them in EndpointSlices,
//     so that a Service with a selector stays without endpoints.
//   - Containers of one Pod that have to be restarted are restarted at the
//     same time; a kubelet stops one after the other. A kubelet also shows
//     CrashLoopBackOff for a moment after an in-place change to an image that
//     is missing; the agent shows ErrImagePull and ImagePullBackOff only.
//   - A terminating Pod is reported not ready at once. A kubelet leaves that
//     to the readiness probe; Options.ReadyUntilStopped does as it does.
//   - A start after the agent died starts containers anew in the process
//     runtime; init containers that had finished are not run again.
//   - gRPC probes only check that the port accepts connections. Ephemeral
//     containers, container restart rules and stopSignal are ignored.
//   - The simulated runtime runs no probes and of hooks only knows sleeps. It
//     writes the status of a Pod that goes away only if a finalizer keeps it.
package node
