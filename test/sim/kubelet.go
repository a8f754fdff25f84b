// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// NodeConfig configures the nodes. All durations are the longest that a draw can give;
// the shortest is a tenth.
type NodeConfig struct {
	Nodes int
	// Notice is how long a kubelet takes to see a change to a Pod.
	Notice time.Duration
	// Start is how long a container takes to start, Stop how long it takes to end.
	Start, Stop time.Duration
	// Report is how long a status takes from the kubelet to the server; it describes
	// the moment when it was written.
	Report time.Duration
	// Schedule is how long a Pod waits for a node.
	Schedule time.Duration
	// Resize is how long it takes to change a container's resources.
	Resize time.Duration
}

// nodes are the kubelets and the scheduler.
type nodes struct {
	world  *World
	server *Server
	config NodeConfig
	pods   map[types.UID]*running
	// down holds the nodes whose kubelet is dead.
	down map[string]bool
	// broken holds the images that never start.
	broken map[string]bool
	// roomy nodes have enough for every request.
	roomy bool
	// containers counts all containers ever started.
	containers, placed int
}

// running is what really runs in a Pod.
type running struct {
	containers map[string]*container
	// generation is the generation of the spec that the kubelet acts on.
	generation int64
	planned    bool
	// started reports whether all containers have run.
	started bool
	ending  bool
	// reports counts the reports; reported is the last one that arrived.
	reports, reported int
}

type container struct {
	image, id string
	restarts  int32
	up        bool
	since     time.Time
	starting  string
	// stuck reports whether the kubelet has reported that the container waits for its
	// image; the report carries the resources it will have, even if it is late.
	stuck bool
	// resources are its present resources, wanted those of the spec that the kubelet
	// acts on, and allocated those that the kubelet has reserved.
	resources, wanted corev1.ResourceRequirements
	allocated         corev1.ResourceList
	resizing          bool
}

func newNodes(w *World, s *Server, config NodeConfig) *nodes {
	n := &nodes{
		world: w, server: s, config: config, pods: map[types.UID]*running{},
		down: map[string]bool{}, broken: map[string]bool{},
	}
	s.committed = append(s.committed, n.hear)
	return n
}

func (n *nodes) span(most time.Duration) time.Duration { return n.world.between(most/10, most) }

// hear receives every commit.
func (n *nodes) hear(c *Commit) {
	pod, ok := c.object().(*corev1.Pod)
	if !ok {
		return
	}
	if c.New == nil {
		delete(n.pods, pod.UID)
		return
	}
	if pod.Spec.NodeName == "" {
		if c.Old == nil {
			at := client.ObjectKeyFromObject(pod)
			n.world.after(n.span(n.config.Schedule), func() { n.schedule(at) })
		}
		return
	}
	n.notice(pod)
}

// schedule assigns a node to a Pod.
func (n *nodes) schedule(at types.NamespacedName) {
	object, err := n.server.get(Pods, at)
	if pod, ok := object.(*corev1.Pod); err == nil && ok && !mountable(n.server, pod) {
		if pod.DeletionTimestamp == nil {
			n.world.after(n.span(max(n.config.Schedule, time.Second)), func() { n.schedule(at) })
		}
		return
	}
	n.placed++
	node := fmt.Sprintf("node-%d", n.placed%max(n.config.Nodes, 1))
	n.write("scheduler", at, "", func(pod *corev1.Pod) {
		if pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil {
			pod.Spec.NodeName = node
		}
	})
}

// write changes a Pod that may already be gone.
func (n *nodes) write(actor string, at types.NamespacedName, subresource string, change func(*corev1.Pod)) {
	_, _ = n.server.update(actor, Pods, at, subresource, func(object client.Object) error {
		if pod, ok := object.(*corev1.Pod); ok {
			change(pod)
		}
		return nil
	})
}

// notice plans a look at a Pod.
func (n *nodes) notice(pod *corev1.Pod) {
	r := n.pods[pod.UID]
	if r == nil {
		r = &running{containers: map[string]*container{}}
		n.pods[pod.UID] = r
	}
	if r.planned {
		return
	}
	r.planned = true
	uid, at := pod.UID, client.ObjectKeyFromObject(pod)
	n.world.after(n.span(n.config.Notice), func() {
		r.planned = false
		n.sync(uid, at)
	})
}

// sync is one sync of a Pod by its kubelet.
func (n *nodes) sync(uid types.UID, at types.NamespacedName) {
	pod, r := n.find(uid, at)
	if pod == nil {
		return
	}
	if n.down[pod.Spec.NodeName] {
		return
	}
	switch {
	case pod.DeletionTimestamp != nil:
		n.end(pod, r)
		return
	case pod.Status.Phase == corev1.PodFailed:
		return
	}
	r.generation = pod.Generation
	for i := range pod.Spec.Containers {
		n.start(pod, r, &pod.Spec.Containers[i])
		n.resize(pod, r, &pod.Spec.Containers[i])
	}
	n.report(pod, r)
}

func (n *nodes) find(uid types.UID, at types.NamespacedName) (*corev1.Pod, *running) {
	object, err := n.server.get(Pods, at)
	if err != nil || object.GetUID() != uid || n.pods[uid] == nil {
		return nil, nil
	}
	pod, _ := object.(*corev1.Pod)
	return pod, n.pods[uid]
}

// start brings a container to its specified image.
func (n *nodes) start(pod *corev1.Pod, r *running, want *corev1.Container) {
	c := r.containers[want.Name]
	if c == nil {
		c = &container{}
		r.containers[want.Name] = c
	}
	if (c.up && c.image == want.Image) || c.starting == want.Image {
		return
	}
	c.up, c.starting = false, want.Image
	image, uid, at := want.Image, pod.UID, client.ObjectKeyFromObject(pod)
	n.world.after(n.span(n.config.Start), func() { n.started(uid, at, want.Name, image) })
}

// started completes the start of a container.
func (n *nodes) started(uid types.UID, at types.NamespacedName, name, image string) {
	pod, r := n.find(uid, at)
	if pod == nil || r.containers[name].starting != image {
		return
	}
	if n.down[pod.Spec.NodeName] {
		r.containers[name].starting = "" // starts again when the kubelet is back
		return
	}
	c := r.containers[name]
	c.starting = ""
	if n.broken[image] {
		c.starting = image // waits for its image until that is fixed
		n.report(pod, r)
		return
	}
	n.containers++
	if c.id != "" {
		c.restarts++
	}
	c.since = n.world.now()
	c.resources, c.allocated = c.wanted, c.wanted.Requests
	c.image, c.up, c.stuck, c.id = image, true, false, fmt.Sprintf("containerd://%04d", n.containers)
	n.report(pod, r)
}

// report writes what the kubelet knows now, after a delay.
func (n *nodes) report(pod *corev1.Pod, r *running) {
	statuses := make([]corev1.ContainerStatus, 0, len(pod.Spec.Containers))
	up := true
	for i := range pod.Spec.Containers {
		status := n.status(r.containers[pod.Spec.Containers[i].Name], &pod.Spec.Containers[i])
		up = up && status.Ready
		statuses = append(statuses, status)
	}
	pending, resizing := n.resizeConditions(pod, r)
	r.started = r.started || up
	started, generation := r.started, r.generation
	r.reports++
	order := r.reports
	ready := up && gatesOpen(pod)
	at, uid, node := client.ObjectKeyFromObject(pod), pod.UID, pod.Spec.NodeName
	n.world.after(n.span(n.config.Report), func() {
		if n.down[node] || order < r.reported {
			return
		}
		r.reported = order
		n.write("kubelet", at, "status", func(pod *corev1.Pod) {
			if pod.UID != uid || pod.Status.Phase == corev1.PodFailed {
				return
			}
			if started {
				pod.Status.Phase = corev1.PodRunning
			}
			pod.Status.ContainerStatuses = statuses
			pod.Status.ObservedGeneration = generation
			setResizeConditions(pod, pending, resizing, n.world.now())
			setPodCondition(pod, corev1.ContainersReady, up, n.world.now())
			setPodCondition(pod, corev1.PodReady, ready && pod.DeletionTimestamp == nil, n.world.now())
		})
	})
}

// gatesOpen reports whether all readiness gates of a Pod are True.
func gatesOpen(pod *corev1.Pod) bool {
	for _, gate := range pod.Spec.ReadinessGates {
		if condition(pod, gate.ConditionType).Status != corev1.ConditionTrue {
			return false
		}
	}
	return true
}

func (n *nodes) status(c *container, want *corev1.Container) corev1.ContainerStatus {
	started := c.up
	status := corev1.ContainerStatus{
		Name: want.Name, Ready: c.up, Started: &started, RestartCount: c.restarts, ContainerID: c.id, Image: want.Image,
	}
	if c.id != "" {
		status.ImageID, status.Image = imageID(c.image), c.image
	}
	status.Resources, status.AllocatedResources = c.reported()
	switch {
	case c.up:
		status.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(c.since.Truncate(time.Second))}
	case n.broken[c.starting]:
		c.stuck, status.Image = true, c.starting
		status.State.Waiting = &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}
	default:
		status.State.Waiting = &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
	}
	return status
}

// imageID is equal for two names of one image: "app:2" and "app:2-alias".
func imageID(image string) string { return "sha256:" + strings.TrimSuffix(image, "-alias") }

// setPodCondition writes a condition as a kubelet does.
func setPodCondition(pod *corev1.Pod, kind corev1.PodConditionType, yes bool, now time.Time) {
	status := corev1.ConditionFalse
	if yes {
		status = corev1.ConditionTrue
	}
	i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
	if i < 0 {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind})
		i = len(pod.Status.Conditions) - 1
	}
	c := &pod.Status.Conditions[i]
	if c.Status != status {
		c.Status, c.LastTransitionTime = status, metav1.NewTime(now.Truncate(time.Second))
	}
}

// end stops the containers of a Pod that is being deleted, and then removes it.
func (n *nodes) end(pod *corev1.Pod, r *running) {
	if r.ending {
		return
	}
	r.ending = true
	uid, at := pod.UID, client.ObjectKeyFromObject(pod)
	n.world.after(n.span(n.config.Stop), func() { n.ended(uid, at) })
}

func (n *nodes) ended(uid types.UID, at types.NamespacedName) {
	pod, r := n.find(uid, at)
	if pod == nil {
		return
	}
	if n.down[pod.Spec.NodeName] {
		r.ending = false
		return
	}
	for _, c := range r.containers {
		c.up = false
	}
	_ = n.server.remove("kubelet", Pods, at, removal{uid: uid, now: true})
}
