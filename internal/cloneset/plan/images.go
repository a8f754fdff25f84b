// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/podread"
)

// This file is about images that nodes pull before Pods there leave service. The kubelet stops the old
// container before it pulls the new image. So without this, a Pod is out of service while its node
// pulls, and for good if the image does not exist. For each node and image a pull Pod, which mounts the
// image, is there until no Pod of the node waits for it.

// PullSpec is how the user wants images to be pulled before Pods leave service.
type PullSpec struct {
	// Off means not at all.
	Off bool
	// Parallel bounds the nodes that pull at a time: a number, or a share of the replicas.
	// nil means as many as Pods may be unavailable, and at least leastParallel.
	Parallel *Count
	// Ready is a number of Pods: until so many Pods of the update revision are ready, nodes pull for no
	// more than so many of the next Pods.
	Ready int
	// Timeout is how long a pull Pod may run.
	Timeout time.Duration
}

// DefaultPullTimeout is PullSpec.Timeout of a set that names none.
const DefaultPullTimeout = 10 * time.Minute

// leastParallel is how many nodes may pull at a time even if only one Pod may be unavailable.
const leastParallel = 10

// Pulls describes the images on nodes.
type Pulls struct {
	// Possible means that pull Pods can be created; otherwise no Pod waits.
	Possible bool
	// RefusedUntil is until when no pull Pod is created, because the API server has refused one; zero
	// if it has not. No Pod waits meanwhile.
	RefusedUntil time.Time
	// GivenUp are images that their nodes do not pull because a pull Pod did not run, and until when.
	// No Pod waits for them meanwhile.
	GivenUp map[ImageOnNode]time.Time
	// Pods are the set's pull Pods.
	Pods []*corev1.Pod
	// Listed are the images that nodes report, by node. A node reports only its largest ones.
	Listed map[string][]corev1.ContainerImage
}

// ImageOnNode is an image on a node.
type ImageOnNode struct{ Node, Image string }

// Pull is a pull Pod to be created.
type Pull struct {
	ImageOnNode
	Policy  corev1.PullPolicy
	Timeout time.Duration
}

// PullContainer is the name of a pull Pod's container, PullVolume that of its volume.
const (
	PullContainer = "end"
	PullVolume    = "image"
)

// PullState is the progress of a pull Pod.
type PullState string

// The states of pull Pods.
const (
	// Pulling: the node does not have the image yet.
	Pulling PullState = "Pulling"
	// PullFails: the kubelet cannot pull the image, and tries again.
	PullFails PullState = "PullFails"
	// PullExpired: the pull Pod has reached its deadline, and another one replaces it.
	PullExpired PullState = "PullExpired"
	// Pulled: the node has the image.
	Pulled PullState = "Pulled"
	// PullRejected: the node does not run the pull Pod, so Pods do not wait for it.
	PullRejected PullState = "PullRejected"
)

// noSandboxFor is how long something other than the image may keep a pull Pod from pulling.
const noSandboxFor = 30 * time.Second

// hindered returns what keeps a pull Pod from pulling, and when other Pods stop waiting for it; zero if
// they do not. They gain nothing from waiting for a node that cannot run the pull Pod. A kubelet that
// has reported nothing about the Pod may be down: such a node would not run an updated Pod either.
func (w *images) hindered(pod *corev1.Pod) (cause string, from time.Time) {
	if state, _, _ := PullOf(pod); state != Pulling || pod.DeletionTimestamp != nil || len(pod.Status.ContainerStatuses) == 0 {
		return "", time.Time{}
	}
	soon := pod.CreationTimestamp.Add(min(noSandboxFor, w.Spec.Pull.Timeout/2))
	sandbox := podread.Condition(pod, corev1.PodReadyToStartContainers)
	if sandbox != nil && sandbox.Status == corev1.ConditionFalse {
		return "it gets no sandbox to run in, such as an address in the Pods' network", soon
	}
	if c := list.Find(pod.Status.InitContainerStatuses, func(c *corev1.ContainerStatus) bool { return !c.Ready }); c != nil {
		why := "it does not end"
		if c.State.Waiting != nil {
			why = c.State.Waiting.Reason
		}
		return fmt.Sprintf("somebody has added container %s to it: %s", c.Name, why), soon
	}
	return fmt.Sprintf("it has not got the image within %s", w.Spec.Pull.Timeout), pod.CreationTimestamp.Add(w.Spec.Pull.Timeout * 9 / 10) // before the kubelet ends it
}

// PullOf reads a pull Pod: its state, and the kubelet's reason and message. The kubelet pulls the image
// of a volume before it does anything else for a container.
func PullOf(pod *corev1.Pod) (state PullState, reason, message string) {
	switch {
	case pod.DeletionTimestamp != nil:
		return Pulling, "", ""
	case pod.Status.Reason == "DeadlineExceeded" && pod.Status.Phase == corev1.PodFailed:
		return PullExpired, pod.Status.Reason, pod.Status.Message
	case pod.Status.Reason != "" && pod.Status.Phase == corev1.PodFailed: // the kubelet has ended it, or never began
		return PullRejected, pod.Status.Reason, pod.Status.Message
	}
	is := ptr.Deref(inplace.StatusOf(pod, PullContainer), corev1.ContainerStatus{}).State
	if ended := pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded; ended || is.Running != nil || is.Terminated != nil {
		return Pulled, "", ""
	}
	return waitingPull(pod, ptr.Deref(is.Waiting, corev1.ContainerStateWaiting{}))
}

// waitingPull reads a pull Pod whose container waits.
func waitingPull(pod *corev1.Pod, waiting corev1.ContainerStateWaiting) (state PullState, reason, message string) {
	switch waiting.Reason {
	case "", "ContainerCreating", "PodInitializing":
		return Pulling, "", ""
	case "ErrImagePull", reasonImage, "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed":
	default:
		return Pulled, "", "" // a step after the pull fails
	}
	image := PulledBy(pod).Image
	if own := inplace.ImageOf(pod, PullContainer); strings.Contains(waiting.Message, own) && !strings.Contains(waiting.Message, image) {
		return Pulled, "", "" // the container's own image comes next
	}
	message = waiting.Message
	if _, cause, found := strings.Cut(message, "ErrImagePull: "); found { // without this, a back-off would look like news
		message = cause
	}
	return PullFails, cmp.Or(persistentReason(&waiting), waiting.Reason), message
}

// PulledBy returns the image that a pull Pod pulls, and the node.
func PulledBy(pod *corev1.Pod) ImageOnNode {
	pulls := func(v *corev1.Volume) bool { return v.Name == PullVolume && v.Image != nil }
	if v := list.Find(pod.Spec.Volumes, pulls); v != nil {
		return ImageOnNode{pod.Spec.NodeName, v.Image.Reference}
	}
	return ImageOnNode{Node: pod.Spec.NodeName}
}

// ReasonImagePullFails is the condition's: a node cannot pull the new image, and Pods there stay
// in service.
const ReasonImagePullFails = "ImagePullFails"

// GateImage stands for a gate where a Pod, in service, waits for an image on its node.
const GateImage = "image"

// ImageWait is an image that a Pod's node does not have yet.
type ImageWait struct {
	ImageOnNode
	// Reason and Message are the kubelet's if it cannot pull the image.
	Reason, Message string
}

// Fails reports whether the kubelet cannot pull the image.
func (w *ImageWait) Fails() bool { return w.Reason != "" }

func (w *ImageWait) text(pod string, at time.Time) string {
	if !w.Fails() {
		return fmt.Sprintf("Pod %s stays in service until node %s has image %s, which it pulls%s", pod, w.Node, w.Image, since("", at))
	}
	return fmt.Sprintf("Pod %s stays in service: node %s cannot pull image %s%s (%s: %s); correct the image in spec.template, its registry or the imagePullSecrets, or roll back",
		pod, w.Node, w.Image, since(",", at), w.Reason, w.Message)
}

// images decides which chosen Pods wait for an image on their node, and which nodes pull now.
type images struct {
	*pass
	// pods are the pull Pods; wanted are those of them that some Pod still needs.
	pods   map[ImageOnNode]*corev1.Pod
	wanted sets.Set[ImageOnNode]
	// runs are the nodes where a Pod of the update revision runs.
	runs sets.Set[string]
	// free is how many more nodes may pull, ahead is for how many of the next Pods they pull.
	free, ahead int
}

// awaitImages unchooses Pods whose node has yet to pull an image: they stay in service, or return to
// it.
func (p *pass) awaitImages() {
	if !p.Pulls.Possible || p.Spec.Pull.Off || p.Spec.Method == apps.UpdateReCreate || len(p.queue)+len(p.Pulls.Pods) == 0 {
		p.plan.EndPulls = p.Pulls.Pods
		return
	}
	w := p.newImages()
	for _, v := range list.Only(p.queue, func(v *podState) bool { return v.chosen }) { // of others, the update is refused
		if change, err := p.change(v); err == nil && w.mayWait(v) {
			v.chosen = !w.waits(v, change)
			w.ahead -= one(!v.chosen)
		}
	}
	for _, pod := range p.Pulls.Pods {
		state, reason, message := PullOf(pod)
		by := PulledBy(pod)
		switch {
		case !w.wanted.Has(by), state == PullExpired:
			p.plan.EndPulls = append(p.plan.EndPulls, pod)
		case state == PullRejected:
			p.plan.PullsSkipped = append(p.plan.PullsSkipped, fmt.Sprintf("node %s rejects the Pod that pulls image %s (%s: %s)", by.Node, by.Image, reason, message))
		}
	}
}

func (p *pass) newImages() *images {
	w := &images{
		pass: p, pods: map[ImageOnNode]*corev1.Pod{}, wanted: sets.New[ImageOnNode](),
		runs: sets.New[string](), ahead: len(p.queue), free: max(p.Spec.maxUnavailable(), leastParallel),
	}
	if parallel := p.Spec.Pull.Parallel; parallel != nil {
		w.free = max(parallel.up(p.Spec.Replicas), 1)
	}
	for _, pod := range p.Pulls.Pods {
		w.pods[PulledBy(pod)] = pod
		w.free -= one(w.pulls(pod))
	}
	ready := 0
	for _, v := range p.pods {
		if v.isUpdated && v.ready && !v.restarting {
			ready++
			w.runs.Insert(v.node)
		}
	}
	if ready < p.Spec.Pull.Ready {
		w.ahead = p.Spec.Pull.Ready
	}
	return w
}

// pulls reports whether a pull Pod is pulling, or may be.
func (w *images) pulls(pod *corev1.Pod) bool {
	state, _, _ := PullOf(pod)
	_, from := w.hindered(pod)
	return (state == Pulling || state == PullFails) && w.Now.Before(w.late(pod)) && (from.IsZero() || w.Now.Before(from))
}

// late returns when a pull Pod stops counting as pulling: a node that is down must not keep the others
// waiting.
func (w *images) late(pod *corev1.Pod) time.Time {
	return pod.CreationTimestamp.Add(w.Spec.Pull.Timeout)
}

// mayWait reports whether the Pod serves, or could: its containers are as they were, and ready. The
// Pod's own readiness does not count: the beginning of an update sets it to False, and a Pod that waits
// gets it back.
func (w *images) mayWait(v *podState) bool {
	return v.scheduled && !v.restarting && v.state != apps.StateUpdating && v.able
}

// waits reports whether the Pod waits for one of the new images, and plans pulls of them.
func (w *images) waits(v *podState, change *inplace.Change) bool {
	waits := false
	for _, container := range slices.Sorted(maps.Keys(change.Images)) {
		on := ImageOnNode{v.node, change.Images[container]}
		policy := pullPolicy(v.pod, container, on.Image)
		if w.runs.Has(v.node) || inplace.Runs(v.pod, container, on.Image) || policy != corev1.PullAlways && w.lists(on) {
			continue
		}
		w.wanted.Insert(on)
		waits = w.await(v, on, policy) || waits
	}
	return waits
}

// await reports whether the Pod waits for an image.
func (w *images) await(v *podState, on ImageOnNode, policy corev1.PullPolicy) bool {
	pod := w.pods[on]
	if w.Now.Before(w.Pulls.GivenUp[on]) {
		return false
	}
	if pod == nil {
		return w.pull(on, policy)
	}
	state, reason, message := PullOf(pod)
	if state == Pulled || state == PullRejected {
		return false
	}
	cause, from := w.hindered(pod)
	if !from.IsZero() && !w.Now.Before(from) {
		w.giveUp(on, pod, cause)
		return false
	}
	if late := w.late(pod); w.Now.Before(late) {
		w.wakeAt(list.Earliest(late, from))
	}
	w.plan.Waits = append(w.plan.Waits, Blocked{
		Pod: v.pod.Name, Gate: GateImage, State: v.state, Keys: []string{cmp.Or(reason, string(Pulling))}, Since: pod.CreationTimestamp.Time,
		Image: &ImageWait{ImageOnNode: on, Reason: reason, Message: message},
	})
	return true
}

// pull plans that a node pulls an image, if more may be pulled now, and reports whether the Pod waits
// for that.
func (w *images) pull(on ImageOnNode, policy corev1.PullPolicy) bool {
	refused := w.Now.Before(w.Pulls.RefusedUntil)
	pulling := slices.ContainsFunc(w.plan.Pulls, func(p Pull) bool { return p.ImageOnNode == on })
	if !pulling && !refused && w.free > 0 && w.ahead > 0 {
		w.free--
		w.plan.Pulls = append(w.plan.Pulls, Pull{on, policy, w.Spec.Pull.Timeout})
	}
	return !refused
}

// giveUp records that Pods do not wait for an image on a node.
func (w *images) giveUp(on ImageOnNode, pod *corev1.Pod, cause string) {
	if slices.Contains(w.plan.PullsGivenUp, on) {
		return
	}
	w.plan.PullsGivenUp = append(w.plan.PullsGivenUp, on)
	w.plan.PullsSkipped = append(w.plan.PullsSkipped, fmt.Sprintf("node %s does not run Pod %s, which pulls image %s: %s; see kubectl describe pod %s",
		on.Node, pod.Name, on.Image, cause, pod.Name))
}

// lists reports whether the node lists the image.
func (w *images) lists(on ImageOnNode) bool {
	name := fullName(on.Image)
	return slices.ContainsFunc(w.Pulls.Listed[on.Node], func(i corev1.ContainerImage) bool { return slices.Contains(i.Names, name) })
}

// pullPolicy returns whether the kubelet pulls an image that it has. It need not for a digest, which
// always names the same image.
func pullPolicy(pod *corev1.Pod, container, image string) corev1.PullPolicy {
	policy := cmp.Or(ptr.Deref(inplace.ContainerOf(pod, container), corev1.Container{}).ImagePullPolicy, corev1.PullIfNotPresent)
	if policy == corev1.PullAlways && strings.Contains(image, "@") {
		return corev1.PullIfNotPresent
	}
	return policy
}

// fullName returns an image's name as nodes list it: with its registry, and its digest or tag.
func fullName(image string) string {
	name, digest, byDigest := strings.Cut(image, "@")
	if tag := strings.LastIndexByte(name, ':'); byDigest && tag > strings.LastIndexByte(name, '/') {
		image = name[:tag] + "@" + digest
	}
	return inplace.FullImage(image)
}
