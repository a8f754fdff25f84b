// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// nodeDown kills a kubelet: its Pods become not ready, and nothing happens to them
// until it is back.
func (n *nodes) nodeDown(node int) {
	name := fmt.Sprintf("node-%d", node)
	if n.down[name] {
		return
	}
	n.world.say("nodes", "%s is not ready", name)
	n.down[name] = true
	for _, object := range n.server.list(Pods) {
		pod, ok := object.(*corev1.Pod)
		if !ok || pod.Spec.NodeName != name || pod.Status.Phase != corev1.PodRunning {
			continue
		}
		n.write("nodes", client.ObjectKeyFromObject(pod), "status", func(pod *corev1.Pod) {
			setPodCondition(pod, corev1.PodReady, false, n.world.now())
		})
	}
}

// nodeUp brings a kubelet back; its containers kept running.
func (n *nodes) nodeUp(node int) {
	name := fmt.Sprintf("node-%d", node)
	if !n.down[name] {
		return
	}
	n.world.say("nodes", "%s is back", name)
	delete(n.down, name)
	for _, object := range n.server.list(Pods) {
		if pod, ok := object.(*corev1.Pod); ok && pod.Spec.NodeName == name {
			n.notice(pod)
		}
	}
}

// restart restarts the containers of a Pod with the image they have.
func (n *nodes) restart(pod *corev1.Pod) {
	r := n.pods[pod.UID]
	if r == nil || len(r.containers) == 0 || pod.DeletionTimestamp != nil || n.down[pod.Spec.NodeName] {
		return
	}
	n.world.say("nodes", "the containers of Pod %s crash", pod.Name)
	for i := range pod.Spec.Containers {
		if c := r.containers[pod.Spec.Containers[i].Name]; c != nil {
			c.up = false
		}
	}
	n.report(pod, r)
	n.notice(pod)
}

// evict fails a Pod, as a kubelet does that runs out of memory or disk.
func (n *nodes) evict(pod *corev1.Pod) {
	if pod.DeletionTimestamp != nil || pod.Spec.NodeName == "" || pod.Status.Phase == corev1.PodFailed {
		return
	}
	n.world.say("nodes", "Pod %s is evicted", pod.Name)
	if r := n.pods[pod.UID]; r != nil {
		for _, c := range r.containers {
			c.up, c.starting = false, ""
		}
	}
	n.write("kubelet", client.ObjectKeyFromObject(pod), "status", func(pod *corev1.Pod) {
		pod.Status.Phase, pod.Status.Reason = corev1.PodFailed, "Evicted"
		setPodCondition(pod, corev1.PodReady, false, n.world.now())
	})
}

// heal brings all nodes back and lets all images start.
func (n *nodes) heal() {
	for node := range max(n.config.Nodes, 1) {
		n.nodeUp(node)
	}
	n.broken, n.roomy, n.server.noResize = map[string]bool{}, true, false
	for _, object := range n.server.list(Pods) {
		pod, ok := object.(*corev1.Pod)
		if !ok || n.pods[pod.UID] == nil {
			continue
		}
		for _, c := range n.pods[pod.UID].containers {
			if !c.up {
				c.starting = "" // its image is resolved again
			}
		}
		if pod.Spec.NodeName != "" {
			n.notice(pod)
		}
	}
}
