// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"slices"
)

// ContainerInfo is what can be shown of a container.
type ContainerInfo struct {
	Node, Namespace, Pod, Container string
	PodUID                          string
	IP                              string // the Pod's; empty until it has one
	Image                           string // of the instance that runs, or ran last
	Restarts                        int32
	Running, Ready                  bool
	Description
}

// Containers lists the containers of all Pods that the agent has a record of, by
// namespace, Pod, and order in the Pod's spec.
func (a *Agent) Containers() []ContainerInfo {
	var infos []ContainerInfo
	for _, e := range a.entriesOf(allNodes) {
		infos = append(infos, a.describe(e.pod)...)
	}
	slices.SortStableFunc(infos, func(x, y ContainerInfo) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Pod, y.Pod), cmp.Compare(x.PodUID, y.PodUID))
	})
	return infos
}

func (a *Agent) describe(p *pod) []ContainerInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	infos := make([]ContainerInfo, 0, len(p.containers))
	for _, c := range p.containers {
		info := ContainerInfo{
			Node: a.names[p.node], Namespace: p.object.Namespace, Pod: p.object.Name, PodUID: string(p.uid),
			Container: c.name, IP: p.ip, Image: c.image, Restarts: c.restarts, Ready: c.ready() && !p.unready,
		}
		if c.instance != nil {
			info.Running, info.Description = true, c.instance.Describe()
		}
		infos = append(infos, info)
	}
	return infos
}

// allNodes, in place of a node's index, means every node.
const allNodes = -1

// entriesOf lists the entries of the Pods on the node with the given index.
func (a *Agent) entriesOf(node int) []*entry {
	a.mu.Lock()
	defer a.mu.Unlock()
	var entries []*entry
	for _, e := range a.entries {
		if node == allNodes || e.pod.node == node {
			entries = append(entries, e)
		}
	}
	return entries
}
