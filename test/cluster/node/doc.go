// SPDX-License-Identifier: Apache-2.0

// Package node is the node agent of the development cluster: it registers nodes, renews
// their leases and acts as the kubelet for every Pod bound to them.
//
// There is one Pod state machine (pod.go, container.go, terminate.go) and two runtimes
// behind the Runtime interface. The process runtime runs every container as an
// operating system process with the Pod's own loopback address; the simulated runtime
// starts nothing and therefore handles thousands of Pods.
//
// One call of pod.step advances a Pod as far as possible now: it starts and stops
// containers, never waits, and returns when to call it again. Whatever takes time (a
// process, a hook, a probe) runs elsewhere, leaves its result in the record and puts
// the Pod back in the queue. The result of the step is written to the Pod's status in
// one patch of the changed fields.
//
// # Differences from a kubelet
//
//   - Volumes, Secrets, ConfigMaps, service account tokens, security contexts
//     and network policies are ignored, and so are environment variables from
//     ConfigMaps, Secrets or resource fields, working directories and
//     termination messages. A process sees the files and the network of the
//     machine.
//   - Resource requests and limits are reported as actuated at once, but never
//     enforced. There is no eviction, no OOM kill, no activeDeadlineSeconds.
//   - kubectl logs, exec, attach and port-forward do not work: there is no
//     kubelet endpoint. Container output is in files, see ProcessOptions.
//   - Pod addresses of the process runtime are loopback addresses, reachable
//     from this machine only. The API server refuses them in EndpointSlices,
//     so a Service with a selector has no endpoints.
//   - Containers of one Pod that have to restart do so at the same time; a
//     kubelet stops one after the other. A kubelet also shows CrashLoopBackOff
//     for a moment after an in-place change to a missing image; the agent shows
//     only ErrImagePull and ImagePullBackOff.
//   - A terminating Pod is reported not ready at once. A kubelet leaves that
//     to the readiness probe, as does the agent with Options.ReadyUntilStopped.
//   - After the agent died, a new one restarts the containers in the process
//     runtime; init containers that had finished are not run again.
//   - gRPC probes only check that the port accepts connections. Ephemeral
//     containers, container restart rules and stopSignal are ignored.
//   - The simulated runtime runs no probes, and of the hooks supports only
//     sleeps. It writes the status of a Pod being deleted only if a finalizer
//     keeps the Pod.
package node
