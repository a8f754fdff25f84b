// SPDX-License-Identifier: Apache-2.0

// Package realnode runs a Kubernetes cluster of one real node or two: the control plane
// of package cluster, kubelets built from their Go module, and containerd, runc and the
// CNI plugins of the distribution, unpacked but not installed.
//
// It must run inside a sandbox (package sandbox); everything here ends with the
// sandbox. The network there is the nodes': Pods have addresses in 10.244.77.0/24 (those
// of the second node in 10.244.78.0/24) that the nodes reach, and they reach the nodes and
// the API server at 10.244.76.2 or, as programs in a cluster do, through the Service
// kubernetes. There is no kube-proxy, no DNS and no way out.
package realnode

// The nodes and their addresses.
const (
	// NodeName is the name of the first node.
	NodeName = "node-1"
	// NodeAddress is the node's address; Pods reach there whatever listens on all
	// addresses.
	NodeAddress = "10.244.76.2"
	// PodRange is the range of the Pods' addresses.
	PodRange = "10.244.77.0/24"
	// SecondNode is the name of the second node, if there is one.
	SecondNode    = "node-2"
	secondAddress = "10.244.76.3"
	secondRange   = "10.244.78.0/24"
	// SecondTaint keeps Pods off the second node that do not tolerate it.
	SecondTaint = "usher.test/second"
	// serviceAddress is the address of the Service kubernetes. The node has this
	// address and the API server listens on the Service's port: that replaces
	// kube-proxy for the one Service that matters.
	serviceAddress = "10.96.0.1"
	apiPort        = 443
)
