// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/internal/cloneset/revision"
)

// apply changes a Pod as the executor would have the API server do.
func apply(p *corev1.Pod, a Action, now time.Time) {
	for _, c := range a.Conditions {
		conditionSince(c.Type, c.Status, c.Message, now)(p)
	}
	switch a.Verb {
	case Update:
		applyStep(p, inplace.Begin(p, a.Change, a.Revision.Name, now))
		p.Labels[apps.LabelRevision], p.Labels[apps.LabelTemplateHash] = a.Revision.Name, revision.Short(a.Revision.Name)
		setLabels(p, a.Change.Labels)
	case Continue:
		if step, ok := inplace.Next(p, now); ok {
			applyStep(p, step)
		}
	}
	setLabels(p, a.Labels)
	if a.To != "" {
		p.Labels[apps.LabelLifecycleState] = string(a.To)
	}
	p.Finalizers = slices.DeleteFunc(p.Finalizers, func(f string) bool { return slices.Contains(a.RemoveFinalizers, f) })
	for _, f := range a.AddFinalizers {
		if !slices.Contains(p.Finalizers, f) {
			p.Finalizers = append(p.Finalizers, f)
		}
	}
}

// applyStep writes a step of an update, and the resources after it.
func applyStep(p *corev1.Pod, step inplace.Step) {
	p.Annotations[apps.AnnotationInPlaceUpdateState] = step.State.String()
	resizes := inplace.Resizes(p)
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		image, restarts := step.Images[c.Name]
		resources, resized := resizes[c.Name]
		if restarts {
			c.Image = image
		}
		if resized {
			c.Resources = resources
		}
		if restarts || resized {
			p.Generation++
		}
	}
}

func setLabels(p *corev1.Pod, labels map[string]*string) {
	for key, value := range labels {
		if value == nil {
			delete(p.Labels, key)
		} else {
			p.Labels[key] = *value
		}
	}
}

// cluster simulates the rest of the cluster: it executes what a plan asks for, and makes the next step
// of each Pod's kubelet and hook operator.
type cluster struct {
	s    *Snapshot
	made int
}

// carryOut executes a plan.
func (w *cluster) carryOut(p Plan) {
	for _, a := range p.Actions {
		switch a.Verb {
		case Create:
			w.made++
			n := int(a.Revision.Number)
			w.s.Pods = append(w.s.Pods, pod(fmt.Sprintf("z%03d", w.made), n, fresh, func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(w.s.Now) }))
		case Delete:
			w.s.Pods = slices.DeleteFunc(w.s.Pods, func(p *corev1.Pod) bool { return p == a.Pod })
		default:
			apply(a.Pod, a, w.s.Now)
		}
	}
	slices.SortFunc(w.s.Pods, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
}

// step lets one Pod's kubelet or hook operator act; false if neither has anything to do.
func (w *cluster) step(p *corev1.Pod) bool { return w.kubelet(p) || w.operator(p) }

func (w *cluster) kubelet(p *corev1.Pod) bool {
	defer w.readiness(p)
	if p.Spec.NodeName == "" || len(p.Status.ContainerStatuses) == 0 {
		if !w.schedule(p) {
			return false
		}
		p.Status.Phase, p.Status.ObservedGeneration = corev1.PodRunning, p.Generation
		p.Status.ContainerStatuses = nil
		for _, c := range p.Spec.Containers {
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{
				Name: c.Name, Image: c.Image, ImageID: "id-" + c.Image, ContainerID: "c1", Ready: true, Resources: c.Resources.DeepCopy(),
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
			})
		}
		return true
	}
	for i := range p.Spec.Containers {
		if p.Status.ContainerStatuses[i].Image != p.Spec.Containers[i].Image || p.Status.ObservedGeneration != p.Generation {
			restarted(p)
			return true
		}
	}
	return false
}

// schedule binds the Pod to the first node that does not go.
func (w *cluster) schedule(p *corev1.Pod) bool {
	for _, node := range []string{"n1", "n2"} {
		if len(w.s.GoingNodes[node]) == 0 {
			p.Spec.NodeName = cmp.Or(p.Spec.NodeName, node)
		}
	}
	return p.Spec.NodeName != ""
}

// readiness is what the kubelet derives from the readiness gates.
func (w *cluster) readiness(p *corev1.Pod) {
	ready := corev1.ConditionTrue
	for _, kind := range []corev1.PodConditionType{apps.ConditionInPlaceUpdateReady, apps.ConditionPodReady} {
		if !slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind && c.Status == corev1.ConditionTrue }) {
			ready = corev1.ConditionFalse
		}
	}
	f := readPod(p)
	if f.ready != (ready == corev1.ConditionTrue) || len(p.Status.Conditions) == 0 {
		conditionSince(corev1.PodReady, ready, "", w.s.Now)(p)
	}
}

// operator answers the hook that the Pod waits for.
func (w *cluster) operator(p *corev1.Pod) bool {
	f := readPod(p)
	at := lifecycle.Pod{State: f.state, Labels: p.Labels, Finalizers: p.Finalizers}
	waiting := lifecycle.Waiting(at, w.s.Spec.Hooks)
	if len(waiting) == 0 {
		return false
	}
	if f.state == apps.StatePreparingNormal || f.state == apps.StateUpdated {
		p.Finalizers = append(p.Finalizers, waiting...)
		if f.state == apps.StatePreparingNormal {
			p.Finalizers = append(p.Finalizers, keyUpdate, keyDelete) // protected from now on
			slices.Sort(p.Finalizers)
			p.Finalizers = slices.Compact(p.Finalizers)
		}
		return true
	}
	p.Finalizers = slices.DeleteFunc(p.Finalizers, func(f string) bool { return slices.Contains(waiting, f) })
	return true
}

func readPod(p *corev1.Pod) PodInfo {
	var f PodInfo
	f.read(p)
	return f
}

// runToEnd runs plans, kubelets and operators until nothing more happens.
func runToEnd(t testing.TB, s *Snapshot) {
	t.Helper()
	runRounds(t, s, func() {})
}

// runRounds does the same, and looks at each round's end.
func runRounds(t testing.TB, s *Snapshot, look func()) {
	t.Helper()
	w := &cluster{s: s}
	for range 200 {
		p := decide(t, s)
		w.carryOut(p)
		moved := len(p.Actions) > 0
		for _, pod := range s.Pods {
			w.readiness(pod)
			moved = w.step(pod) || moved
		}
		look()
		s.Now = s.Now.Add(time.Minute)
		if !moved && p.RequeueAt.IsZero() {
			return
		}
	}
	t.Fatalf("does not come to an end; the last plan: %v", describe(Make(s)))
}
