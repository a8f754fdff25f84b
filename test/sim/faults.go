// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/test/model"
)

// on lists the Pods of a node.
func (n *nodes) on(node string) []*corev1.Pod {
	return slices.DeleteFunc(model.List[*corev1.Pod](n.server.Objects), func(pod *corev1.Pod) bool { return pod.Spec.NodeName != node })
}

// nodeDown kills a kubelet: its Pods become not ready, and nothing happens to them
// until it is back.
func (n *nodes) nodeDown(node int) {
	name := fmt.Sprintf("node-%d", node)
	if n.down[name] {
		return
	}
	n.world.say("nodes", "%s is not ready", name)
	n.down[name] = true
	for _, pod := range n.on(name) {
		if pod.Status.Phase == corev1.PodRunning {
			n.write("nodes", client.ObjectKeyFromObject(pod), "status", func(pod *corev1.Pod) {
				model.SetCondition(pod, corev1.PodReady, false, n.world.now())
			})
		}
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
	for _, pod := range n.on(name) {
		n.notice(pod)
	}
}

// restart restarts the containers of a Pod with the image they have.
func (n *nodes) restart(pod *corev1.Pod) {
	r := n.pods[pod.UID]
	if r == nil || len(r.Containers) == 0 || pod.DeletionTimestamp != nil || n.down[pod.Spec.NodeName] {
		return
	}
	n.world.say("nodes", "the containers of Pod %s crash", pod.Name)
	r.End()
	n.report(pod, r)
	n.notice(pod)
}

// evict fails a Pod.
func (n *nodes) evict(pod *corev1.Pod) {
	if pod.DeletionTimestamp != nil || pod.Spec.NodeName == "" || pod.Status.Phase == corev1.PodFailed {
		return
	}
	n.world.say("nodes", "Pod %s is evicted", pod.Name)
	if r := n.pods[pod.UID]; r != nil {
		r.End()
		r.forget()
	}
	n.write("kubelet", client.ObjectKeyFromObject(pod), "status", func(pod *corev1.Pod) { model.Evict(pod, n.world.now()) })
}

// forget makes the kubelet resolve again the images that it waits for.
func (r *running) forget() {
	for i := range r.Containers {
		if c := &r.Containers[i]; !c.Up {
			c.Starting = ""
		}
	}
}

// heal brings all nodes back and lets all images start.
func (n *nodes) heal() {
	for node := range max(n.config.Nodes, 1) {
		n.nodeUp(node)
	}
	n.Broken, n.Roomy, n.server.RefuseResizes = map[string]bool{}, true, false
	for _, pod := range model.List[*corev1.Pod](n.server.Objects) {
		if r := n.pods[pod.UID]; r != nil {
			r.forget()
			n.notice(pod)
		}
	}
}
