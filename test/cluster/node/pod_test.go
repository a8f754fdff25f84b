// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

// stage steps one Pod by hand, with a clock that stands still, and records the calls to
// its runtime.
type stage struct {
	*testing.T
	clock  *clocktesting.FakeClock
	pod    *pod
	object *corev1.Pod
	next   time.Time
	writes int      // of the status
	calls  []string // since the last check
}

func newStage(t *testing.T, object *corev1.Pod, o SimulatedOptions) *stage {
	t.Helper()
	clock := clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0))
	o.MissingImages = []string{"missing:v1"}
	simulated, err := NewSimulatedRuntime(o)
	registrytest.NoError(t, err)
	simulated.(*simulatedRuntime).clock = clock
	s := &stage{T: t, clock: clock, object: object}
	s.pod = &pod{uid: object.UID, podState: podState{hostIP: "10.254.0.1"}, kubelet: &kubelet{
		runtime: &scriptedRuntime{simulated.(*simulatedRuntime), s}, traits: simulated.Traits(), clock: clock,
		enqueue: func(types.NamespacedName) {}, base: t.Context(),
	}}
	return s
}

// scriptedRuntime is a simulated runtime that records its calls. A container named deaf
// ignores SIGTERM, and the image broken:v1 cannot be started.
type scriptedRuntime struct {
	*simulatedRuntime
	stage *stage
}

func (r *scriptedRuntime) Start(cfg ContainerConfig) (Instance, error) {
	r.stage.calls = append(r.stage.calls, "start "+cfg.Container.Name+" "+cfg.Container.Image)
	if cfg.Container.Image == "broken:v1" {
		return nil, fmt.Errorf("no such program")
	}
	return &scriptedInstance{simulatedInstance{id: newContainerID(r), clock: r.clock}, r.stage, cfg.Container.Name}, nil
}

type scriptedInstance struct {
	simulatedInstance
	stage *stage
	name  string
}

func (i *scriptedInstance) Terminate() {
	i.stage.calls = append(i.stage.calls, "term "+i.name)
	if i.name != "deaf" {
		i.end(0)
	}
}

func (i *scriptedInstance) Kill() {
	i.stage.calls = append(i.stage.calls, "kill "+i.name)
	i.end(137)
}

// step steps the Pod once and writes its status as the agent would.
func (s *stage) step() {
	s.Helper()
	var err error
	if s.next, err = s.pod.step(s.object, s.clock.Now()); err != nil {
		s.Fatalf("step: %v", err)
	}
	status := computeStatus(s.object, &s.pod.podState, s.clock.Now())
	patch, err := statusPatch(s.object, status)
	if err != nil {
		s.Fatalf("patch: %v", err)
	}
	if patch != nil {
		s.writes++
		s.object = s.object.DeepCopy()
		s.object.Status = *status
	}
}

// move is something that happens to a Pod.
type move func(*stage)

// pass advances the time, stepping the Pod whenever it asked for that.
func pass(duration time.Duration) move {
	return func(s *stage) {
		s.Helper()
		end := s.clock.Now().Add(duration)
		for turn := 0; !s.next.IsZero() && !s.next.After(end); turn++ {
			if turn > 1000 {
				s.Fatalf("the Pod asks for step after step at %v", s.next)
			}
			s.clock.SetTime(later(s.next, s.clock.Now()))
			s.step()
		}
		s.clock.SetTime(end)
	}
}

// edit changes the object as an API client would.
func edit(change func(*corev1.Pod)) move {
	return func(s *stage) {
		s.Helper()
		s.object = s.object.DeepCopy()
		change(s.object)
		s.object.Generation++
		s.step()
	}
}

// image sets the image of the Pod's first container.
func image(name string) move {
	return edit(func(object *corev1.Pod) { object.Spec.Containers[0].Image = name })
}

func cpus(amount string) move {
	return edit(func(object *corev1.Pod) { object.Spec.Containers[0].Resources = cpu(amount) })
}

func condition(kind corev1.PodConditionType, status corev1.ConditionStatus) move {
	return edit(func(object *corev1.Pod) {
		setCondition(&object.Status, corev1.PodCondition{Type: kind, Status: status}, time.Time{})
	})
}

// remove deletes the Pod with a grace period.
func remove(seconds int64) move {
	return edit(func(object *corev1.Pod) {
		object.DeletionTimestamp, object.DeletionGracePeriodSeconds = &metav1.Time{}, &seconds
	})
}

// crash ends the first container's instance.
func crash(s *stage) {
	s.Helper()
	s.pod.containers[0].instance.(*scriptedInstance).end(3)
	s.step()
}

// lose makes the Pod's object disappear.
func lose(s *stage) {
	s.Helper()
	s.pod.down = s.pod.killAll(s.clock.Now())
}

// summary is the Pod's status in one line.
func (s *stage) summary() string {
	status := &s.object.Status
	parts := []string{string(status.Phase)}
	for _, c := range status.ContainerStatuses {
		parts = append(parts, c.Name+"="+describe(&c))
	}
	for _, c := range status.Conditions {
		switch {
		case c.Status != corev1.ConditionTrue:
		default:
			parts = append(parts, string(c.Type))
		}
	}
	return strings.Join(parts, " ")
}

func describe(c *corev1.ContainerStatus) string {
	var text string
	switch state := c.State; {
	case state.Running != nil:
		text = "running"
	case state.Terminated != nil:
		text = fmt.Sprintf("%s(%d)", state.Terminated.Reason, state.Terminated.ExitCode)
	case state.Waiting != nil:
		text = state.Waiting.Reason
	}
	if c.RestartCount > 0 {
		text += fmt.Sprintf("×%d", c.RestartCount)
	}
	if c.Ready {
		text += "!"
	}
	if cpu := c.Resources.Limits.Cpu(); !cpu.IsZero() {
		text += " " + cpu.String() + "cpu"
	}
	return text
}

// buildPod builds a Pod on node-1 with these containers, or with one named main.
func buildPod(containers ...corev1.Container) *corev1.Pod {
	if len(containers) == 0 {
		containers = []corev1.Container{build("main")}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web-0", Namespace: "shop", UID: "uid-1", Generation: 1},
		Spec:       corev1.PodSpec{NodeName: "node-1", Containers: containers},
	}
}

func build(name string, changes ...func(*corev1.Container)) corev1.Container {
	c := corev1.Container{Name: name, Image: "web:v1"}
	for _, change := range changes {
		change(&c)
	}
	return c
}

func preStop(handler corev1.LifecycleHandler) func(*corev1.Container) {
	return func(c *corev1.Container) { c.Lifecycle = &corev1.Lifecycle{PreStop: &handler} }
}

func sleep(seconds int64) corev1.LifecycleHandler {
	return corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: seconds}}
}

func cpu(amount string) corev1.ResourceRequirements {
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(amount)}
	return corev1.ResourceRequirements{Requests: list, Limits: list}
}

func oneCPU(c *corev1.Container) { c.Resources = cpu("1") }

func restartForCPU(c *corev1.Container) {
	c.ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.RestartContainer}}
}

func gated(object *corev1.Pod) *corev1.Pod {
	object.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "a"}, {ConditionType: "b"}}
	return object
}

const second = time.Second

// events are what happens to a Pod, and what follows.
type events []struct {
	move   move
	status string // as summary writes it
	calls  string // to the runtime
}

// TestPods plays what happens to Pods. The first move is the Pod's first step.
func TestPods(t *testing.T) {
	first := func(s *stage) { s.step() }
	const ready = " ContainersReady Ready"
	begun := func(then ...struct {
		move          move
		status, calls string
	}) events {
		return append(events{{first, "Running main=running!" + ready, "start main web:v1"}}, then...)
	}
	for name, test := range map[string]struct {
		object  *corev1.Pod
		options SimulatedOptions
		events  events
	}{
		"a start after a delay": {buildPod(build("main"), build("log")), SimulatedOptions{ReadyDelay: 3 * second}, events{
			{first, "", ""},
			{pass(3 * second), "Running main=running! log=running!" + ready, "start main web:v1, start log web:v1"},
		}},
		"an image change restarts that container alone, after its hook": {
			buildPod(build("main", preStop(sleep(5))), build("log")), SimulatedOptions{UpdateDelay: 2 * second}, events{
				{first, "Running main=running! log=running!" + ready, "start main web:v1, start log web:v1"},
				{image("web:v2"), "Running main=running! log=running!" + ready, ""},
				{pass(4 * second), "Running main=running! log=running!" + ready, ""},
				{pass(second), "Running main=Completed(0) log=running!", "term main"},
				{pass(2 * second), "Running main=running×1! log=running!" + ready, "start main web:v2"},
			}},
		"a crash loop": {buildPod(), SimulatedOptions{}, begun(events{
			{crash, "Running main=running×1!" + ready, "start main web:v1"},
			{crash, "Running main=CrashLoopBackOff×1", ""},
			{pass(9 * second), "Running main=CrashLoopBackOff×1", ""},
			{pass(second), "Running main=running×2!" + ready, "start main web:v1"},
			{crash, "Running main=CrashLoopBackOff×2", ""},
			{pass(19 * second), "Running main=CrashLoopBackOff×2", ""},
			// Another image resets the backoff.
			{image("web:v2"), "Running main=running×3!" + ready, "start main web:v2"},
			{crash, "Running main=running×4!" + ready, "start main web:v2"},
			{pass(11 * time.Minute), "Running main=running×4!" + ready, ""},
			{crash, "Running main=running×5!" + ready, "start main web:v2"},
		}...)},
		"a program that cannot be started": {buildPod(build("main", func(c *corev1.Container) { c.Image = "broken:v1" })), SimulatedOptions{}, events{
			{first, "Running main=CrashLoopBackOff×1", "start main broken:v1, start main broken:v1"},
		}},
		"a missing image": {buildPod(build("main", func(c *corev1.Container) { c.Image = "missing:v1" })), SimulatedOptions{}, events{
			{first, "Pending main=ImagePullBackOff", ""},
			{pass(12 * second), "Pending main=ImagePullBackOff", ""},
			{image("web:v1"), "Running main=running!" + ready, "start main web:v1"},
		}},
		"a change to a missing image": {buildPod(), SimulatedOptions{}, begun(events{
			{image("missing:v1"), "Running main=ImagePullBackOff", "term main"},
			{pass(time.Minute), "Running main=ImagePullBackOff", ""},
			{image("web:v2"), "Running main=running×1!" + ready, "start main web:v2"},
		}...)},
		"readiness gates": {gated(buildPod()), SimulatedOptions{}, events{
			{first, "Running main=running! ContainersReady", "start main web:v1"},
			{condition("a", corev1.ConditionTrue), "Running main=running! ContainersReady a", ""},
			{condition("b", corev1.ConditionTrue), "Running main=running! ContainersReady Ready a b", ""},
			{condition("a", corev1.ConditionFalse), "Running main=running! ContainersReady b", ""},
		}},
		"a resize": {buildPod(build("main", oneCPU)), SimulatedOptions{MostCPU: "4"}, events{
			{first, "Running main=running! 1cpu" + ready, "start main web:v1"},
			{cpus("2"), "Running main=running! 2cpu" + ready, ""},
			{cpus("5"), "Running main=running! 2cpu" + ready + " PodResizePending", ""},
			{image("web:v2"), "Running main=running×1! 2cpu" + ready + " PodResizePending", "term main, start main web:v2"},
			{cpus("3"), "Running main=running×1! 3cpu" + ready, ""},
		}},
		"a resize with a restart": {buildPod(build("main", oneCPU, restartForCPU, preStop(sleep(2)))), SimulatedOptions{MostCPU: "4"}, events{
			{first, "Running main=running! 1cpu" + ready, "start main web:v1"},
			{cpus("2"), "Running main=running! 1cpu" + ready + " PodResizeInProgress", ""},
			{pass(2 * second), "Running main=running×1! 2cpu" + ready, "term main, start main web:v1"},
			{cpus("5"), "Running main=running×1! 2cpu" + ready + " PodResizePending", ""},
		}},
		"a deletion runs each container's hook, then signals": {buildPod(build("slow", preStop(sleep(5))), build("quick")), SimulatedOptions{}, events{
			{first, "Running slow=running! quick=running!" + ready, "start slow web:v1, start quick web:v1"},
			{remove(30), "Running slow=running quick=Completed(0)", "term quick"},
			{pass(4 * second), "Running slow=running quick=Completed(0)", ""},
			{pass(second), "Succeeded slow=Completed(0) quick=Completed(0)", "term slow"},
		}},
		"a kill after the grace period": {buildPod(build("deaf")), SimulatedOptions{}, events{
			{first, "Running deaf=running!" + ready, "start deaf web:v1"},
			{remove(7), "Running deaf=running", "term deaf"},
			{pass(6 * second), "Running deaf=running", ""},
			{pass(second), "Failed deaf=Error(137)", "kill deaf"},
		}},
		"a hook that uses up the grace period": {buildPod(build("deaf", preStop(sleep(60)))), SimulatedOptions{}, events{
			{first, "Running deaf=running!" + ready, "start deaf web:v1"},
			{remove(10), "Running deaf=running", ""},
			{pass(10 * second), "Running deaf=running", "term deaf"},
			{pass(minimumGrace), "Failed deaf=Error(137)", "kill deaf"},
		}},
		"a second deletion with a shorter grace period": {buildPod(build("deaf")), SimulatedOptions{}, events{
			{first, "Running deaf=running!" + ready, "start deaf web:v1"},
			{remove(300), "Running deaf=running", "term deaf"},
			{pass(5 * second), "Running deaf=running", ""},
			{remove(3), "Running deaf=running", ""},
			{pass(3 * second), "Failed deaf=Error(137)", "kill deaf"},
		}},
		"a deletion during an image change": {buildPod(build("main", preStop(sleep(20)))), SimulatedOptions{}, begun(events{
			{image("web:v2"), "Running main=running!" + ready, ""},
			{pass(second), "Running main=running!" + ready, ""},
			{remove(5), "Running main=running", ""},
			{pass(5 * second), "Succeeded main=Completed(0)", "term main"}, // and no start of the new image
		}...)},
		"a deletion of what does not run": {buildPod(), SimulatedOptions{}, begun(events{
			{crash, "Running main=running×1!" + ready, "start main web:v1"},
			{crash, "Running main=CrashLoopBackOff×1", ""},
			{remove(30), "Failed main=Error(3)×1", ""},
		}...)},
		"a deletion with a delay": {buildPod(), SimulatedOptions{DeleteDelay: 4 * second}, begun(events{
			{remove(30), "Running main=running", ""},
			{pass(4*second - 1), "Running main=running", ""},
			{pass(1), "Succeeded main=Completed(0)", "term main"},
		}...)},
		"an object that is gone": {buildPod(build("main", preStop(sleep(60)))), SimulatedOptions{}, begun(events{
			{lose, "Running main=running!" + ready, "kill main"},
		}...)},
		"an end that somebody else declares": {buildPod(), SimulatedOptions{}, begun(events{
			{edit(func(object *corev1.Pod) { object.Status.Phase = corev1.PodFailed }), "Failed main=Completed(0)", "term main"},
		}...)},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, test.object, test.options)
			for i, e := range test.events {
				e.move(s)
				if got := s.summary(); got != e.status {
					t.Errorf("move %d: status\n  %s, want\n  %s", i, got, e.status)
				}
				if got := strings.Join(s.calls, ", "); got != e.calls {
					t.Errorf("move %d: calls %q, want %q", i, got, e.calls)
				}
				s.calls = nil
			}
			if down := s.object.DeletionTimestamp != nil || name == "an object that is gone"; s.pod.down != down {
				t.Errorf("the Pod is down: %t, want %t", s.pod.down, down)
			}
		})
	}
}

// TestStatusOfAnInPlaceUpdate checks what the product reads of an update, and that each
// change takes one write.
func TestStatusOfAnInPlaceUpdate(t *testing.T) {
	s := newStage(t, buildPod(), SimulatedOptions{})
	s.step()
	before := s.object.Status
	s.clock.Step(time.Minute)
	image("web:v2")(s)
	s.step()
	after := s.object.Status
	was, is := before.ContainerStatuses[0], after.ContainerStatuses[0]
	for what, values := range map[string][2]any{
		"address":    {after.PodIP, before.PodIP},
		"host":       {after.HostIP, "10.254.0.1"},
		"generation": {after.ObservedGeneration, before.ObservedGeneration + 1},
		"start":      {*after.StartTime, *before.StartTime},
		"image":      {is.Image, "web:v2"},
		"last state": {is.LastTerminationState.Terminated.ContainerID, was.ContainerID},
		"writes":     {s.writes, 2},
	} {
		if values[0] != values[1] {
			t.Errorf("%s is %v, want %v", what, values[0], values[1])
		}
	}
	if is.ContainerID == was.ContainerID || is.ImageID == was.ImageID || is.ImageID == "" || after.PodIP == "" {
		t.Errorf("container %+v at %s after %+v", is, after.PodIP, was)
	}
	for i, c := range after.Conditions {
		if c.ObservedGeneration != 2 || !c.LastTransitionTime.Equal(&before.Conditions[i].LastTransitionTime) {
			t.Errorf("condition %+v, want one of generation 2 without a transition", c)
		}
	}
}

// TestStatusPatch leaves out what others wrote.
func TestStatusPatch(t *testing.T) {
	object := buildPod()
	object.Status.Conditions = []corev1.PodCondition{{Type: "KruisePodReady", Status: corev1.ConditionTrue}}
	object.Status.QOSClass = corev1.PodQOSBestEffort
	s := newStage(t, object, SimulatedOptions{})
	s.step()
	patch, err := statusPatch(object, &s.object.Status)
	registrytest.NoError(t, err)
	for part, want := range map[string]bool{`"uid":"uid-1"`: true, `"podIP":"10.`: true, `"type":"Ready"`: true, "qosClass": false, `"status":"True","type":"KruisePodReady"`: false, `"name":"web-0"`: false} {
		if strings.Contains(string(patch), part) != want {
			t.Errorf("patch contains %s: %t, want %t:\n%s", part, !want, want, patch)
		}
	}
}

func TestReadyCondition(t *testing.T) {
	s := newStage(t, gated(buildPod()), SimulatedOptions{})
	s.step()
	for _, c := range s.object.Status.Conditions {
		if c.Type == corev1.PodReady && (c.Reason != "ReadinessGatesNotReady" || !strings.Contains(c.Message, `"a" is not True`)) {
			t.Errorf("condition %+v does not name the closed gate", c)
		}
	}
}
