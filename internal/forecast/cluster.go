// SPDX-License-Identifier: Apache-2.0

package forecast

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/cloneset/write"
	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/podread"
	regplan "github.com/usher-dev/usher/internal/registration/plan"
)

var errEndless = errors.New("the forecast comes to no end; please report this with the CloneSet and its Pods")

// perform carries out an action, with the controller's own patches.
func (p *player) perform(a *plan.Action) error {
	switch a.Verb {
	case plan.Create:
		return p.create(a)
	case plan.Delete:
		pod := a.Pod.DeepCopy()
		pod.DeletionTimestamp = &metav1.Time{Time: p.Now}
		p.replace(a.Pod, pod)
		p.discard(a.Claims)
	case plan.Discard:
		p.discard(a.Claims)
	case plan.Provide:
		return p.provide(a.Instance)
	default:
		pod, err := p.written(a.Pod, a)
		if err != nil {
			return fmt.Errorf("foresee what happens to Pod %s: %w", a.Pod.Name, err)
		}
		p.replace(a.Pod, pod)
	}
	return nil
}

// written returns the Pod after the writes of an action, in the executor's order.
func (p *player) written(before *corev1.Pod, a *plan.Action) (*corev1.Pod, error) {
	pod, err := before, error(nil)
	for _, subresource := range write.Subresources(a) {
		if err == nil {
			kind, data := write.Patch(subresource, pod, a, true, p.Now)
			pod, err = patched(pod, kind, data)
		}
	}
	if err == nil && !equality.Semantic.DeepEqual(before.Spec, pod.Spec) {
		if pod.Generation > 0 {
			pod.Generation++
		}
		p.behind[pod.Name] = pod.Spec.NodeName != ""
		delete(p.broken, pod.Name)
	}
	return pod, err
}

// patched returns a Pod after a patch; without data, the Pod itself.
func patched(pod *corev1.Pod, kind types.PatchType, data []byte) (*corev1.Pod, error) {
	if data == nil {
		return pod, nil
	}
	var after []byte
	before, err := encode.JSON(pod), error(nil)
	if kind == types.StrategicMergePatchType {
		after, err = strategicpatch.StrategicMergePatch(before, data, pod)
	} else {
		var patch jsonpatch.Patch
		if patch, err = jsonpatch.DecodePatch(data); err == nil {
			after, err = patch.Apply(before)
		}
	}
	if err != nil {
		return nil, err
	}
	out := &corev1.Pod{}
	return out, json.Unmarshal(after, out)
}

// create makes a Pod as the controller does, and the API server completes it.
func (p *player) create(a *plan.Action) error {
	p.made++
	id := cmp.Or(a.Instance, fmt.Sprintf("new%d", p.made))
	if err := p.provide(id); err != nil {
		return err
	}
	manifest := write.PodManifest(p.set, a.Revision, id, p.Now)
	pod := &corev1.Pod{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(manifest.Object, pod); err != nil {
		return fmt.Errorf("spec.template: %w", err)
	}
	pod.UID, pod.Generation = types.UID("new-"+id), 1
	pod.CreationTimestamp = metav1.Time{Time: p.Now.Truncate(time.Second)}
	pod.Status.Phase = corev1.PodPending
	for _, gate := range pod.Spec.ReadinessGates {
		setCondition(pod, gate.ConditionType, corev1.ConditionTrue, p.Now)
	}
	at, _ := slices.BinarySearchFunc(p.Pods, pod, byName)
	p.Pods = slices.Insert(slices.Clone(p.Pods), at, pod)
	p.expect(pod)
	return nil
}

// provide creates the claims that an instance lacks.
func (p *player) provide(id string) error {
	for i := range p.set.Spec.VolumeClaimTemplates {
		manifest, err := write.ClaimManifest(p.set, &p.set.Spec.VolumeClaimTemplates[i], id)
		if err != nil {
			return fmt.Errorf("spec.volumeClaimTemplates: %w", err)
		}
		there := func(c *corev1.PersistentVolumeClaim) bool { return c.Name == manifest.GetName() }
		if slices.ContainsFunc(p.Claims, there) {
			continue
		}
		p.Claims = append(p.Claims, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
			Namespace: p.set.Namespace, Name: manifest.GetName(), Labels: manifest.GetLabels(), OwnerReferences: manifest.GetOwnerReferences(),
		}})
	}
	return nil
}

func (p *player) discard(claims []*corev1.PersistentVolumeClaim) {
	p.Claims = slices.DeleteFunc(slices.Clone(p.Claims), func(c *corev1.PersistentVolumeClaim) bool {
		return slices.ContainsFunc(claims, func(gone *corev1.PersistentVolumeClaim) bool { return gone.Name == c.Name })
	})
}

// step is a change of a Pod that is not the controller's; does is nil if the Pod is removed.
type step struct {
	name string
	does func(*player, *corev1.Pod)
}

// next returns the next step of a Pod, and how long it takes; no step if there is none.
func (p *player) next(pod *corev1.Pod) (step, time.Duration) {
	switch {
	case pod.DeletionTimestamp != nil:
		return step{name: "end"}, stopTakes
	case pod.Status.Phase == corev1.PodFailed, pod.Status.Phase == corev1.PodSucceeded:
		return step{}, 0
	case p.broken[pod.Name]:
	case !started(pod):
		return step{"start", (*player).run}, p.pace.start.takes()
	case p.behind[pod.Name]:
		return step{"restart", (*player).run}, p.pace.restart.takes()
	case ready(pod) != podread.IsTrue(pod, corev1.PodReady):
		return step{"ready", func(p *player, pod *corev1.Pod) { setReady(pod, p.Now) }}, 0
	}
	if after, answered := p.answers(pod); answered {
		return step{"answer", (*player).answer}, after
	}
	return step{}, 0
}

// take takes a step.
func (p *player) take(s step, old *corev1.Pod) {
	if s.does == nil {
		p.replace(old, nil)
		return
	}
	pod := old.DeepCopy()
	s.does(p, pod)
	p.replace(old, pod)
}

// run makes a kubelet run the spec of a Pod.
func (p *player) run(pod *corev1.Pod) {
	if pod.Spec.NodeName == "" {
		pod.Spec.NodeName = "a node for " + pod.Name // each has its own, as schedulers spread Pods
	}
	pod.Status.Phase = corev1.PodRunning
	if pod.Status.ObservedGeneration > 0 || len(pod.Status.ContainerStatuses) == 0 {
		pod.Status.ObservedGeneration = pod.Generation
	}
	record, _ := inplace.ParseState(pod.Annotations[apps.AnnotationInPlaceUpdateState]) // an unreadable one names no container
	for i := range pod.Spec.Containers {
		p.runContainer(&pod.Spec.Containers[i], &pod.Status.ContainerStatuses, &record)
	}
	for i := range pod.Spec.InitContainers {
		if always := pod.Spec.InitContainers[i].RestartPolicy; always != nil && *always == corev1.ContainerRestartPolicyAlways {
			p.runContainer(&pod.Spec.InitContainers[i], &pod.Status.InitContainerStatuses, &record)
		}
	}
	pod.Status.Conditions = slices.DeleteFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress
	})
	delete(p.behind, pod.Name)
	setReady(pod, p.Now)
}

// runContainer starts a container unless it runs the image and nothing has to restart it. It gets
// ready: a forecast cannot know whether the new image works.
func (p *player) runContainer(c *corev1.Container, statuses *[]corev1.ContainerStatus, record *inplace.State) {
	at := slices.IndexFunc(*statuses, func(s corev1.ContainerStatus) bool { return s.Name == c.Name })
	if at < 0 {
		*statuses = append(*statuses, corev1.ContainerStatus{Name: c.Name})
		at = len(*statuses) - 1
	}
	status := &(*statuses)[at]
	status.Resources, status.AllocatedResources = c.Resources.DeepCopy(), c.Resources.Requests
	last, updated := record.LastContainerStatuses[c.Name]
	same := status.State.Running != nil && inplace.SameImage(status.Image, c.Image)
	status.Ready = true
	if same && (!updated || last.ContainerID != status.ContainerID) {
		return
	}
	p.containers++
	status.Image, status.ImageID = c.Image, "forecast://"+c.Image
	status.ContainerID = fmt.Sprintf("forecast://%d", p.containers)
	status.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Time{Time: p.Now}}}
}

func started(pod *corev1.Pod) bool {
	return pod.Spec.NodeName != "" && pod.Status.Phase == corev1.PodRunning
}

// patience is how long a Pod may be not ready before the forecast assumes that it stays so.
const patience = 2 * time.Minute

// stuck reports whether the Pod has no node, or a container that cannot start.
func stuck(pod *corev1.Pod) bool {
	statuses := slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
	return podread.Status(pod, corev1.PodScheduled) == corev1.ConditionFalse || slices.ContainsFunc(statuses, func(s corev1.ContainerStatus) bool {
		return s.State.Waiting != nil && plan.Persistent(s.State.Waiting)
	})
}

func containersReady(pod *corev1.Pod) bool {
	return !slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return !s.Ready })
}

// ready reports whether the Pod counts as ready: its containers are, and its gates are open.
func ready(pod *corev1.Pod) bool {
	return containersReady(pod) &&
		!slices.ContainsFunc(pod.Spec.ReadinessGates, func(g corev1.PodReadinessGate) bool { return !podread.IsTrue(pod, g.ConditionType) })
}

func setReady(pod *corev1.Pod, now time.Time) {
	status := corev1.ConditionFalse
	if ready(pod) {
		status = corev1.ConditionTrue
	}
	setCondition(pod, corev1.PodReady, status, now)
}

func setCondition(pod *corev1.Pod, kind corev1.PodConditionType, status corev1.ConditionStatus, now time.Time) {
	c := podread.Condition(pod, kind)
	if c == nil {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind})
		c = &pod.Status.Conditions[len(pod.Status.Conditions)-1]
	}
	if c.Status != status {
		c.Status, c.LastTransitionTime = status, metav1.Time{Time: now.Truncate(time.Second)}
	}
}

// answers reports whether the hook that holds a Pod will be answered, and after how long.
func (p *player) answers(pod *corev1.Pod) (time.Duration, bool) {
	seen := lifecycle.Pod{State: regplan.StateOf(pod), Labels: pod.Labels, Finalizers: pod.Finalizers}
	at, keys := lifecycle.Waiting(seen, p.Spec.Hooks)
	if _, _, joins := p.Spec.Hooks.At(seen.State); len(keys) == 0 || joins && !podread.IsTrue(pod, corev1.PodReady) {
		return 0, false
	}
	g := p.gateOf(pod, at, keys)
	return g.takes, g.answered
}

func (p *player) answer(pod *corev1.Pod) {
	if _, hook, joins := p.Spec.Hooks.At(regplan.StateOf(pod)); joins {
		hook.Confirm(pod)
	} else {
		hook.Release(pod)
	}
}
