// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/test/model"
)

// This file is about a node that lacks images, in models that are Cold.

// annotationHas of a node names the images that it has. Its status lists them later.
const annotationHas = "other/has"

// freeze makes the node a cold one.
func (x *explorer) freeze(c *Config) {
	c.Nodes.Pull = time.Second
	x.cold = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(0), Annotations: map[string]string{}}}
}

// gets gives a node an image.
func (x *explorer) gets(on plan.ImageOnNode) {
	if x.cold == nil {
		return
	}
	model.Change(x.server, "kubelet", key("", on.Node), "", func(node *corev1.Node) {
		all := append(strings.Fields(node.Annotations[annotationHas]), on.Image)
		slices.Sort(all)
		node.Annotations[annotationHas] = strings.Join(slices.Compact(all), " ")
	})
}

// warm notes which images the nodes of a state have.
func (x *explorer) warm() {
	clear(x.sim.images.has)
	for _, node := range model.List[*corev1.Node](x.server.Objects) {
		for image := range strings.FieldsSeq(node.Annotations[annotationHas]) {
			x.sim.images.has[plan.ImageOnNode{Node: node.Name, Image: image}] = true
		}
	}
}

// pullActions are the next steps of the kubelet with a pull Pod.
func (x *explorer) pullActions(pod *corev1.Pod) []action {
	switch {
	case pod.DeletionTimestamp != nil:
		return []action{{byKubelet, func() { x.ends(pod) }}}
	case pod.Status.Phase == corev1.PodSucceeded:
		return nil
	}
	return []action{{byKubelet, func() {
		x.gets(plan.PulledBy(pod))
		x.sim.nodes.status(pod, func(s *corev1.PodStatus) { s.Phase = corev1.PodSucceeded })
	}}}
}

// listActions list the images that a node has.
func (x *explorer) listActions(node *corev1.Node) []action {
	has := strings.Fields(node.Annotations[annotationHas])
	if len(has) == len(node.Status.Images) {
		return nil
	}
	return []action{{byKubelet, func() {
		model.Change(x.server, "kubelet", key("", node.Name), "", func(node *corev1.Node) {
			node.Status.Images = nil
			for _, image := range has {
				node.Status.Images = append(node.Status.Images, corev1.ContainerImage{Names: []string{"docker.io/library/" + image}})
			}
		})
	}}}
}

// pullNumber is the number in the UID of a pull Pod, by its name.
func pullNumber(name string) int {
	end := name[len(name)-2:]
	return 7000 + 16*int(end[0]) + int(end[1])
}
