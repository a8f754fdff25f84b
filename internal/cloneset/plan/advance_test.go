// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
)

// withCPU edits a revision: its container asks for cpu.
func withCPU(cpu string) func(map[string]any) {
	return func(template map[string]any) {
		mainOf(template)["resources"] = map[string]any{"requests": map[string]any{"cpu": cpu}}
	}
}

// withBase edits a revision: it adds a second container, which goes first.
func withBase(n int) func(map[string]any) {
	return func(template map[string]any) {
		spec := template["spec"].(map[string]any)
		spec["containers"] = append(spec["containers"].([]any), map[string]any{
			"name": "base", "image": fmt.Sprintf("base:%d", n),
			"env": []any{map[string]any{"name": apps.EnvContainerPriority, "value": "10"}},
		})
	}
}

func cpuOf(amount string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(amount)}}
}

// hasCPU makes the container ask for cpu, and the kubelet report it.
func hasCPU(amount string) podOption {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources = cpuOf(amount)
		if len(p.Status.ContainerStatuses) > 0 {
			p.Status.ContainerStatuses[0].Resources = new(cpuOf(amount))
		}
	}
}

// hasBase is the second container of withBase(1).
func hasBase(p *corev1.Pod) {
	const image = "base:1"
	p.Spec.Containers = append(p.Spec.Containers, corev1.Container{
		Name: "base", Image: image, Env: []corev1.EnvVar{{Name: apps.EnvContainerPriority, Value: "10"}},
	})
	p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{
		Name: "base", Image: image, ImageID: "id-" + image, ContainerID: "b1", Ready: true,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
	})
}

// sizedSet is one Pod of r1 with cpu 100m in a set that rolls out r2 with 200m.
func sizedSet(p *corev1.Pod, options ...option) *Snapshot {
	first := rev(1, withCPU("100m"))
	second := rev(2, withCPU("200m"), withImage("app:1"))
	all := []option{toRevision(first), toRevision(second), method(InPlaceIfPossible), with(p)}
	return snap(1, append(all, options...)...)
}

// resizing is on its way to cpu 200m: its record is written, and its spec if asked.
func resizing(written bool) podOption {
	return func(p *corev1.Pod) {
		begun(2, &inplace.Change{Resources: map[string]corev1.ResourceRequirements{"main": cpuOf("200m")}})(p)
		if written {
			p.Spec.Containers[0].Resources = cpuOf("200m")
			p.Generation++
		}
	}
}

func resized(p *corev1.Pod) {
	p.Status.ObservedGeneration = p.Generation
	hasCPU("200m")(p)
}

func kubeletSays(kind corev1.PodConditionType, reason string) podOption {
	return func(p *corev1.Pod) {
		p.Status.ObservedGeneration = p.Generation
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: "not enough cpu"})
	}
}

const resizesA = "continue a (ResizeContainers)"

// TestResizeSteps leads one Pod through a change of cpu.
func TestResizeSteps(t *testing.T) {
	small := hasCPU("100m")
	expectEach(t, []planCase{
		{"drains", sizedSet(pod("a", 1, small)), []string{updatesA(2)}},
		{"grace begins", sizedSet(pod("a", 1, small), grace(time.Minute)), []string{"move a (StartInPlaceUpdate)" + readyFalse}},
		{"in grace", sizedSet(pod("a", 1, small, out(2, 59*time.Second)), grace(time.Minute)), nil},
		{"no node: the state shows that a write is due", sizedSet(pod("a", 1, small, fresh)), []string{updatesA(2)}},
		{"the resize was not written", sizedSet(pod("a", 1, small, resizing(false))), []string{resizesA}},
		{"… and somebody put the Pod back into service",
			sizedSet(pod("a", 1, small, resizing(false), condition(apps.ConditionInPlaceUpdateReady, corev1.ConditionTrue, ""))), []string{resizesA + readyFalse}},
		{"… and somebody took the state away", sizedSet(pod("a", 1, small, resizing(false), state(""))), []string{resizesA + " to Updating"}},
		{"… of an update that began in the midst of another", sizedSet(pod("a", 1, small, resizing(false), state(""), out(7, 2*time.Minute))), []string{resizesA + " to Updating"}},
		{"an autoscaler resized the Pod after its update, and another one was called off",
			sizedSet(pod("a", 1, resizing(true), resized, hasCPU("500m"), state(apps.StateNormal), out(3, time.Second)), paused),
			[]string{"move a (Conditions) InPlaceUpdateReady=True"}},
		{"… while paused: what has begun goes on", sizedSet(pod("a", 1, small, resizing(false)), paused), []string{resizesA}},
		{"… on its way out", sizedSet(pod("a", 1, small, resizing(false), state(apps.StatePreparingDelete), label(apps.LabelSpecifiedDelete, "true"), finalizers(keyDelete)),
			hooks(preDelete())), nil},
		{"under way", sizedSet(pod("a", 1, small, resizing(true))), nil},
		{"pending", sizedSet(pod("a", 1, small, resizing(true), kubeletSays(corev1.PodResizePending, "Infeasible"))), nil},
		{"in progress", sizedSet(pod("a", 1, small, resizing(true), resized, kubeletSays(corev1.PodResizeInProgress, ""))), nil},
		{"done", sizedSet(pod("a", 1, small, resizing(true), resized)), []string{"move a (UpdateDone) to Normal InPlaceUpdateReady=True"}},
		{"the same amount by another name", sizedSet(pod("a", 1, small), toRevision(rev(2, withCPU("0.1"), onlyLabel))),
			[]string{"update a (InPlaceUpdate) revision web-r2"}},
	})
}

// TestResizeIsInTheChange: what the executor has to write.
func TestResizeIsInTheChange(t *testing.T) {
	p := Make(sizedSet(pod("a", 1, hasCPU("100m"))))
	cpu := p.Actions[0].Change.Resources["main"].Requests[corev1.ResourceCPU]
	if cpu.String() != "200m" || len(p.Actions[0].Change.Images) > 0 {
		t.Errorf("change %+v", p.Actions[0].Change)
	}
}

// TestResizeRefusedByTheKubelet: it is reported with the Pod's name and the kubelet's
// words, no Pod is recreated, the others stay, and both ways out work.
func TestResizeRefusedByTheKubelet(t *testing.T) {
	for _, kind := range []string{"Infeasible", "Deferred"} {
		stuck := pod("a", 1, hasCPU("100m"), resizing(true), kubeletSays(corev1.PodResizePending, kind))
		s := sizedSet(stuck, with(pod("b", 1, hasCPU("100m"))), maxUnavailable(1))
		s.Spec.Replicas = 2
		p := expect(t, s)
		expectProblem(t, p, ProblemResize, "Pod a ", "containers main", kind+": not enough cpu", "spec.template")
		toRevision(s.Revisions["r1"])(s)
		if p := expect(t, s, "update a (InPlaceUpdate) to Updating revision web-r1"); len(p.Problems) > 0 {
			t.Errorf("problems = %v", p.Problems)
		}
		toRevision(rev(3, withCPU("150m")))(s)
		expect(t, s, "update a (InPlaceUpdate) to Updating revision web-r3")
		s.Spec.Method = InPlaceOnly
		expect(t, s, "update a (InPlaceUpdate) to Updating revision web-r3")
	}
}

// TestResizeNotPossible: another QoS class needs a new Pod.
func TestResizeNotPossible(t *testing.T) {
	guaranteed := toRevision(rev(2, func(template map[string]any) {
		mainOf(template)["resources"] = map[string]any{"limits": map[string]any{"cpu": "1", "memory": "1Gi"}}
	}))
	small := func() *corev1.Pod { return pod("a", 1, hasCPU("100m")) }
	expect(t, sizedSet(small(), guaranteed), recreates("a"))
	expectProblem(t, expect(t, sizedSet(small(), guaranteed, method(InPlaceOnly))), ProblemNotInPlace,
		"containers[main].resources cannot change in place: the QoS class would change")
}

// TestResizeWithoutTheSubresource: with an API server that resizes no Pods, Pods are
// recreated, or the set reports why they stay; images still change in place.
func TestResizeWithoutTheSubresource(t *testing.T) {
	noResize := func(s *Snapshot) { s.NoResize = true }
	small := func() *corev1.Pod { return pod("a", 1, hasCPU("100m")) }
	expect(t, sizedSet(small(), noResize), recreates("a"))
	expectProblem(t, expect(t, sizedSet(small(), noResize, method(InPlaceOnly))), ProblemNotInPlace,
		"cpu or memory of container main cannot change in place: the API server has no subresource pods/resize")
	expect(t, five(method(InPlaceOnly), noResize), updatesA(2))
}

// rankedSet is one Pod of r1 with two containers in a set that rolls out r2.
func rankedSet(p *corev1.Pod, options ...option) *Snapshot {
	all := []option{toRevision(rev(1, withBase(1))), toRevision(rev(2, withBase(2))), method(InPlaceIfPossible), with(p)}
	return snap(1, append(all, options...)...)
}

// inBatch is on its way to r2: base is updated, main waits.
func inBatch(p *corev1.Pod) {
	begun(2, &inplace.Change{Images: map[string]string{"main": "app:2", "base": "base:2"}})(p)
	p.Spec.Containers[1].Image = "base:2"
	p.Generation++
}

func baseRuns(ready bool) podOption {
	return func(p *corev1.Pod) {
		restarted(p)
		p.Status.ContainerStatuses[1].Ready = ready
	}
}

const nextA = "continue a (NextContainers)"

// TestPrioritySteps leads one Pod from the first containers to the next.
func TestPrioritySteps(t *testing.T) {
	two := hasBase
	expectEach(t, []planCase{
		{"begins like any other", rankedSet(pod("a", 1, two)), []string{updatesA(2)}},
		{"the first restarts", rankedSet(pod("a", 1, two, inBatch)), nil},
		{"the first is not ready", rankedSet(pod("a", 1, two, inBatch, baseRuns(false))), nil},
		{"the first is ready", rankedSet(pod("a", 1, two, inBatch, baseRuns(true))), []string{nextA}},
		{"… while paused: what has begun goes on", rankedSet(pod("a", 1, two, inBatch, baseRuns(true)), paused), []string{nextA}},
		{"… and the partition keeps the Pod old", rankedSet(pod("a", 1, two, inBatch, baseRuns(true)), partition(1)), []string{nextA}},
		{"the hook was given back: to the gate first", rankedSet(pod("a", 1, two, inBatch, baseRuns(true), state(apps.StateNormal), finalizers(keyUpdate)), hooks(updateGate())),
			[]string{"move a (PrepareUpdate) to PreparingUpdate"}},
		{"… where it waits", rankedSet(pod("a", 1, two, inBatch, baseRuns(true), state(apps.StatePreparingUpdate), finalizers(keyUpdate)), hooks(updateGate()), paused), nil},
		{"… and goes on", rankedSet(pod("a", 1, two, inBatch, baseRuns(true), state(apps.StatePreparingUpdate)), hooks(updateGate()), paused), []string{nextA + " to Updating"}},
		{"rolled back: the next do not begin", rankedSet(pod("a", 1, two, inBatch, baseRuns(true)), toRevision(rev(1, withBase(1)))),
			[]string{"update a (InPlaceUpdate) to Updating revision web-r1"}},
		{"newer: the next do not begin", rankedSet(pod("a", 1, two, inBatch, baseRuns(true)), toRevision(rev(3, withBase(3)))),
			[]string{"update a (InPlaceUpdate) to Updating revision web-r3"}},
		{"newer, metadata only: the rest is still to come, out of service", rankedSet(pod("a", 1, two, inBatch), toRevision(rev(3, withBase(2), onlyLabel, withImage("app:2")))),
			[]string{"update a (InPlaceUpdate) to Updating revision web-r3"}},
	})
}

// TestPriorityWaitIsReported: which Pod, which container, what waits for it, since when.
func TestPriorityWaitIsReported(t *testing.T) {
	waits := rankedSet(pod("a", 1, hasBase, inBatch, baseRuns(false)))
	blocked := waiting(waits)
	if len(blocked) != 1 {
		t.Fatalf("blocked = %v", blocked)
	}
	want := "Pod a is in Updating and waits for its containers base to be ready before it updates main, which have a lower " +
		"KRUISE_CONTAINER_PRIORITY, since 2026-01-02T03:03:05Z"
	if got := blocked[0].String(); got != want {
		t.Errorf("reported: %q, want %q", got, want)
	}
	if b := waiting(rankedSet(pod("a", 1, hasBase, inBatch, baseRuns(true)))); len(b) > 0 {
		t.Errorf("blocked = %v", b)
	}
}

// TestPriorityUnreadable is reported, and delays nothing.
func TestPriorityUnreadable(t *testing.T) {
	odd := func(n int) option {
		return toRevision(rev(n, withBase(n), func(template map[string]any) {
			base := template["spec"].(map[string]any)["containers"].([]any)[1].(map[string]any)
			base["env"].([]any)[0].(map[string]any)["value"] = "first"
		}))
	}
	p := expect(t, snap(1, odd(1), odd(2), method(InPlaceIfPossible), with(pod("a", 1, hasBase))), updatesA(2))
	expectProblem(t, p, ProblemPriority, "of container base in spec.template is not a whole number")
}

// TestDigestOfAResize: what a resize waits for changes the digest.
func TestDigestOfAResize(t *testing.T) {
	start := func(edits ...podOption) uint64 {
		return Digest(pod("a", 1, append([]podOption{hasCPU("100m"), resizing(true)}, edits...)...))
	}
	before := start()
	for name, edit := range map[string]podOption{
		"resources":    func(p *corev1.Pod) { p.Status.ContainerStatuses[0].Resources = new(cpuOf("200m")) },
		"no resources": func(p *corev1.Pod) { p.Status.ContainerStatuses[0].Resources = nil },
		"allocated":    func(p *corev1.Pod) { p.Status.ContainerStatuses[0].AllocatedResources = cpuOf("200m").Requests },
		"pending": func(p *corev1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodResizePending})
		},
		"why a container waits": func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
		},
	} {
		if start(edit) == before {
			t.Errorf("%s: the digest stays", name)
		}
	}
}
