// SPDX-License-Identifier: Apache-2.0

// Package node is the node agent of the development cluster: it registers nodes, renews
// their leases and acts as the kubelet for every Pod bound to them.
//
// agent.go is a controller of Pods. There is one Pod state machine (pod.go, container.go,
// stop.go, probe.go, status.go) and two runtimes behind the Runtime interface. The process
// runtime runs every container as an operating system process with the Pod's own loopback
// address; the simulated runtime starts nothing and therefore handles thousands of Pods.
//
// One call of pod.step advances a Pod as far as possible now: it starts and stops
// containers, never waits, and returns when to call it again. Whatever takes time (a
// process, a probe) runs elsewhere and puts the Pod back in the queue. The result of the
// step is written to the Pod's status in one patch of the changed fields.
//
// The kubelet's own packages were not taken: k8s.io/kubernetes cannot be imported without
// replacing all modules of its staging directory. kwok simulates, but runs no processes.
//
// # Differences from a kubelet
//
//   - The agent runs the Pods of CloneSets: it restarts containers always, and ignores
//     restartPolicy, init containers, sidecars and ephemeral containers.
//   - Volumes, Secrets, ConfigMaps, service account tokens, security contexts
//     and network policies are ignored, and so are environment variables from
//     other objects, $(NAME) in values and arguments, working directories and
//     termination messages. A process sees the files and the network of the
//     machine.
//   - Resource requests and limits are reported as actuated at once, but never
//     enforced. There is no eviction, no OOM kill, no activeDeadlineSeconds.
//   - kubectl logs, exec, attach and port-forward do not work: there is no
//     kubelet endpoint. Container output is in files, see ProcessOptions. There are no
//     events.
//   - Pod addresses of the process runtime are loopback addresses, reachable
//     from this machine only. The API server refuses them in EndpointSlices,
//     so a Service with a selector has no endpoints.
//   - Containers of one Pod that have to restart do so at the same time; a
//     kubelet stops one after the other. A kubelet also shows ErrImagePull and, after
//     an in-place change to a missing image, CrashLoopBackOff for a moment; the agent
//     shows only ImagePullBackOff.
//   - A terminating Pod is reported not ready at once. A kubelet leaves that
//     to the readiness probe.
//   - Of the probes, only a readiness probe by HTTP runs, without thresholds. Of the
//     hooks, only a preStop sleep does.
//   - An agent does not take over the Pods of a former one.
//   - The simulated runtime runs no probes. It writes the status of a Pod being deleted
//     only if a finalizer keeps the Pod.
package node
