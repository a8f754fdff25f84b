// SPDX-License-Identifier: Apache-2.0

// Package realnode runs a Kubernetes cluster of one real node: the control plane of
// package cluster, a kubelet built from its Go module, and containerd, runc and the CNI
// plugins of the distribution, unpacked but not installed.
//
// It must run inside a sandbox (package sandbox); everything here ends with the
// sandbox. The network there is the node's: Pods have addresses in 10.244.77.0/24 that
// the node reaches, and they reach the node and the API server at 10.244.76.2 or, as
// programs in a cluster do, through the Service kubernetes. There is no kube-proxy, no
// DNS and no way out.
package realnode

// The addresses of the node.
const (
	// NodeName is the name of the node.
	NodeName = "node-1"
	// NodeAddress is the node's address; Pods reach there whatever listens on all
	// addresses.
	NodeAddress = "10.244.76.2"
	// PodRange is the range of the Pods' addresses.
	PodRange = "10.244.77.0/24"
	// serviceAddress is the address of the Service kubernetes. The node has this
	// address and the API server listens on the Service's port: that replaces
	// kube-proxy for the one Service that matters.
	serviceAddress = "10.96.0.1"
	apiPort        = 443
)
