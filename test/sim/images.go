// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/test/model"
)

// This file is about images on nodes, in runs with NodeConfig.Pull.

// images has the images on nodes, and the nodes where pull Pods fail.
type images struct {
	has, rejected map[plan.ImageOnNode]bool
	// refused is when the server last refused a pull Pod.
	refused time.Time
}

// pulls reports whether an object is a pull Pod.
func pulls(object client.Object) bool { return object.GetLabels()[apps.LabelPullsFor] != "" }

// pulling reports whether a request is about a pull Pod.
func pulling(r *model.Request) bool {
	object, ok := r.Out.(client.Object)
	return ok && pulls(object)
}

// ownerOf returns the key under which the controller's cache finds an object.
func ownerOf(object client.Object) string {
	if pulls(object) {
		return "pulls/" + object.GetLabels()[apps.LabelPullsFor]
	}
	return model.OwnerOf(object)
}

// fetch draws how long a node takes to get an image.
func (n *nodes) fetch(on plan.ImageOnNode) time.Duration {
	if n.config.Nodes.Pull == 0 || n.images.has[on] {
		return 0
	}
	return n.span(n.config.Nodes.Pull)
}

// fetched records that a node has an image, which it sometimes lists.
func (n *nodes) fetched(on plan.ImageOnNode) {
	if n.config.Nodes.Pull == 0 || n.images.has[on] {
		return
	}
	n.images.has[on] = true
	if !n.World.roll(0.5) {
		return
	}
	n.change("kubelet", on.Node, func(node *corev1.Node) { node.Status.Images = append(node.Status.Images, listed(on.Image)) })
}

// listed returns an image as a node lists it.
func listed(image string) corev1.ContainerImage {
	return corev1.ContainerImage{Names: []string{"docker.io/library/" + image}}
}

// pull makes one sync of a pull Pod by its kubelet.
func (n *nodes) pull(pod *corev1.Pod, r *running) {
	ended := pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
	switch {
	case pod.DeletionTimestamp != nil:
		n.stop(pod, r)
		return
	case ended || r.pulling:
		return
	}
	r.pulling = true
	on := plan.PulledBy(pod)
	if !n.closing && n.World.roll(0.1) { // the node is full
		n.images.rejected[on] = true
		n.status(pod, func(s *corev1.PodStatus) { s.Phase, s.Reason = corev1.PodFailed, "OutOfpods" })
		return
	}
	deadline := pod.CreationTimestamp.Add(time.Duration(*pod.Spec.ActiveDeadlineSeconds) * time.Second)
	n.World.after(max(n.fetch(on), time.Millisecond), func() {
		r.pulling = false
		pod := model.Get[*corev1.Pod](n.Server.Objects, client.ObjectKeyFromObject(pod))
		if pod == nil || n.pods[pod.UID] != r || pod.DeletionTimestamp != nil || n.down[on.Node] {
			return
		}
		n.pulled(pod, on, n.World.now().After(deadline))
	})
}

// pulled ends a try to pull an image.
func (n *nodes) pulled(pod *corev1.Pod, on plan.ImageOnNode, late bool) {
	switch {
	case late:
		n.status(pod, func(s *corev1.PodStatus) { s.Phase, s.Reason = corev1.PodFailed, "DeadlineExceeded" })
	case n.Broken[on.Image]:
		n.status(pod, func(s *corev1.PodStatus) {
			waiting := &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: on.Image + " not found"}
			s.ContainerStatuses = []corev1.ContainerStatus{{Name: plan.PullContainer, State: corev1.ContainerState{Waiting: waiting}}}
		})
		n.later(pod, 10*time.Second, n.pull)
	default:
		n.fetched(on)
		n.status(pod, func(s *corev1.PodStatus) { s.Phase = corev1.PodSucceeded })
	}
}

func (n *nodes) status(pod *corev1.Pod, change func(*corev1.PodStatus)) {
	model.Change(n.Server, "kubelet", client.ObjectKeyFromObject(pod), "status", func(pod *corev1.Pod) { change(&pod.Status) })
}

// refusePull reports whether the server refuses a pull Pod: its quota may be used up.
func (s *Simulation) refusePull() bool {
	if s.closing || !s.World.roll(0.05) {
		return false
	}
	s.images.refused = s.World.now()
	return true
}

// withoutImage: before a Pod leaves service for an update in place, its node has the new images, if
// they can be pulled.
func withoutImage(w *podWrite) {
	s := w.process.Simulation
	if s.config.Nodes.Pull == 0 || !w.leavesService() || w.process.World.now().Sub(s.images.refused) < time.Minute {
		return
	}
	template := must(w.set.Spec.Template.Decode())
	for i := range w.old.Spec.Containers {
		on := plan.ImageOnNode{Node: w.old.Spec.NodeName, Image: template.Spec.Containers[i].Image}
		if on.Node != "" && on.Image != w.old.Spec.Containers[i].Image && !s.images.has[on] && !s.images.rejected[on] {
			w.fail("leaves service, and %s does not have %s", on.Node, on.Image)
		}
	}
}

// leavesService reports whether the write takes a Pod out of service for an update in place.
func (w *podWrite) leavesService() bool {
	if w.old == nil || w.new == nil || !inService(w.old) {
		return false
	}
	return model.State(w.new) == apps.StatePreparingUpdate || w.changesContainers() ||
		model.Condition(w.new, apps.ConditionInPlaceUpdateReady).Status == corev1.ConditionFalse
}

func inService(pod *corev1.Pod) bool {
	return model.State(pod) == apps.StateNormal && model.Condition(pod, corev1.PodReady).Status == corev1.ConditionTrue &&
		model.Condition(pod, apps.ConditionInPlaceUpdateReady).Status != corev1.ConditionFalse
}
