// SPDX-License-Identifier: Apache-2.0

// Package realnode runs a Kubernetes cluster of one real node: the control plane
// of package cluster, a kubelet built from its Go module, and containerd, runc and
// the CNI plugins of the distribution, unpacked and not installed.
//
// It must run inside a sandbox (package sandbox), whose end is the end of
// everything here. The network there is that of the node: Pods have addresses of
// 10.244.77.0/24 that it reaches, and reach the node and the API server by
// 10.244.76.2 or, as programs in a cluster do, by the Service kubernetes. There is
// no kube-proxy, no DNS and no way out.
package realnode

// The addresses of the node.
const (
	// NodeName is the name of the node.
	NodeName = "node-1"
	// NodeAddress is the node's address; what listens on all addresses is reached
	// there by Pods.
	NodeAddress = "10.244.76.2"
	// PodRange is where Pods get their addresses from.
	PodRange = "10.244.77.0/24"
	// serviceAddress is that of the Service kubernetes. It is an address of the
	// node, and the API server listens on its port: that replaces kube-proxy for
	// the one Service that matters.
	serviceAddress = "10.96.0.1"
	apiPort        = 443
)
