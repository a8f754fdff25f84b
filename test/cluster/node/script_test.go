// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
)

// stage steps one Pod by hand, with a clock and a runtime that do only what a test
// tells them.
type stage struct {
	t       *testing.T
	clock   *clocktesting.FakeClock
	runtime *scriptedRuntime
	pod     *pod
	object  *corev1.Pod
	next    time.Time
	writes  int // resulting status writes
}

func newStage(t *testing.T, object *corev1.Pod) *stage {
	t.Helper()
	clock := clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0))
	simulated, err := NewSimulatedRuntime(SimulatedOptions{Clock: clock, MissingImages: []string{"missing:v1"}, CrashImages: []string{"crash:v1"}})
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{t: t, clock: clock, object: object, runtime: &scriptedRuntime{
		simulatedRuntime: simulated.(*simulatedRuntime), clock: clock, deaf: map[string]bool{}, live: map[string]*scriptedInstance{},
	}}
	s.restartAgent()
	return s
}

// restartAgent forgets the record of the Pod.
func (s *stage) restartAgent() {
	s.pod = &pod{uid: s.object.UID, kubelet: &kubelet{
		runtime: s.runtime, clock: s.clock, backoff: backoffLimits{base: 10 * time.Second, max: 5 * time.Minute},
		enqueue: func(types.UID) {}, base: context.Background(),
	}}
}

// step steps the Pod once and writes its status as the agent would.
func (s *stage) step() {
	s.t.Helper()
	var err error
	s.next, err = s.pod.step(s.object, false, s.clock.Now())
	if err != nil {
		s.t.Fatalf("step: %v", err)
	}
	status := computeStatus(s.object, &s.pod.podState, s.clock.Now())
	if status == nil {
		return
	}
	patch, err := statusPatch(s.object, status)
	if err != nil {
		s.t.Fatalf("patch: %v", err)
	}
	if patch != nil {
		s.writes++
		s.object = s.object.DeepCopy()
		s.object.Status = *status
	}
}

// pass advances the time, stepping the Pod whenever it asked for that.
func (s *stage) pass(duration time.Duration) {
	s.t.Helper()
	end := s.clock.Now().Add(duration)
	for turn := 0; !s.next.IsZero() && !s.next.After(end); turn++ {
		if turn > 1000 {
			s.t.Fatalf("the Pod asks for step after step at %v", s.next)
		}
		if s.next.After(s.clock.Now()) {
			s.clock.SetTime(s.next)
		}
		s.step()
	}
	s.clock.SetTime(end)
}

// edit changes the object as an API client would, and steps the Pod.
func (s *stage) edit(change func(*corev1.Pod)) {
	s.t.Helper()
	s.object = s.object.DeepCopy()
	change(s.object)
	s.object.Generation++
	s.step()
}

func (s *stage) setImage(container, image string) {
	s.t.Helper()
	s.edit(func(object *corev1.Pod) {
		for _, list := range [][]corev1.Container{object.Spec.InitContainers, object.Spec.Containers} {
			for i := range list {
				if list[i].Name == container {
					list[i].Image = image
				}
			}
		}
	})
}

func (s *stage) delete(graceSeconds int64) {
	s.t.Helper()
	s.edit(func(object *corev1.Pod) {
		at := metav1.NewTime(s.clock.Now().Add(time.Duration(graceSeconds) * time.Second))
		object.DeletionTimestamp, object.DeletionGracePeriodSeconds = &at, &graceSeconds
	})
}

// crash ends a container's instance.
func (s *stage) crash(container string, code int32) {
	s.t.Helper()
	instance := s.runtime.live[container]
	if instance == nil {
		s.t.Fatalf("container %s does not run: %s", container, s.summary())
	}
	instance.end(code)
	s.step()
}

// summary is the Pod's status in one line.
func (s *stage) summary() string {
	status := &s.object.Status
	parts := []string{string(status.Phase)}
	for _, c := range append(append([]corev1.ContainerStatus(nil), status.InitContainerStatuses...), status.ContainerStatuses...) {
		parts = append(parts, fmt.Sprintf("%s=%s", c.Name, describeState(&c)))
	}
	for _, condition := range status.Conditions {
		if condition.Status == corev1.ConditionTrue && condition.Type != corev1.PodScheduled {
			parts = append(parts, "+"+string(condition.Type))
		}
	}
	return strings.Join(parts, " ")
}

func describeState(c *corev1.ContainerStatus) string {
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
	return text
}

func (s *stage) expect(want string) {
	s.t.Helper()
	if got := s.summary(); got != want {
		s.t.Errorf("after %v: status\n  %s, want\n  %s", s.clock.Now().Sub(time.Unix(1_800_000_000, 0)), got, want)
	}
}

// expectCalls compares the calls to the runtime since the last check.
func (s *stage) expectCalls(want ...string) {
	s.t.Helper()
	got, wanted := strings.Join(s.runtime.calls, ", "), strings.Join(want, ", ")
	s.runtime.calls = nil
	if got != wanted {
		s.t.Errorf("calls %q, want %q", got, wanted)
	}
}

const allReady = " +PodReadyToStartContainers +Initialized +Ready +ContainersReady"

// buildPod builds a Pod on a node, with a container "main" unless others are given.
func buildPod(changes ...func(*corev1.Pod)) *corev1.Pod {
	object := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web-0", Namespace: "shop", UID: "uid-1", Generation: 1},
		Spec: corev1.PodSpec{
			NodeName: "node-1", RestartPolicy: corev1.RestartPolicyAlways,
			Containers: []corev1.Container{{Name: "main", Image: "web:v1"}},
		},
	}
	for _, change := range changes {
		change(object)
	}
	return object
}

func withContainers(containers ...corev1.Container) func(*corev1.Pod) {
	return func(object *corev1.Pod) { object.Spec.Containers = containers }
}

func withInit(containers ...corev1.Container) func(*corev1.Pod) {
	return func(object *corev1.Pod) { object.Spec.InitContainers = containers }
}

func withPolicy(policy corev1.RestartPolicy) func(*corev1.Pod) {
	return func(object *corev1.Pod) { object.Spec.RestartPolicy = policy }
}

func buildContainer(name string, changes ...func(*corev1.Container)) corev1.Container {
	c := corev1.Container{Name: name, Image: "web:v1"}
	for _, change := range changes {
		change(&c)
	}
	return c
}

func asSidecar(c *corev1.Container) {
	always := corev1.ContainerRestartPolicyAlways
	c.RestartPolicy = &always
}

func withPreStop(seconds int64) func(*corev1.Container) {
	return func(c *corev1.Container) {
		c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: seconds}}}
	}
}

func withPostStart(seconds int64) func(*corev1.Container) {
	return func(c *corev1.Container) {
		c.Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: seconds}}}
	}
}

// scriptedRuntime is a simulated runtime that records its calls and whose instances can
// crash, or ignore SIGTERM.
type scriptedRuntime struct {
	*simulatedRuntime
	clock *clocktesting.FakeClock
	deaf  map[string]bool // by container
	live  map[string]*scriptedInstance
	calls []string
	lost  bool // Adopt finds nothing
	count int
}

func (r *scriptedRuntime) Start(cfg ContainerConfig) (Instance, error) {
	name := cfg.Container.Name
	r.calls = append(r.calls, "start "+name+" "+cfg.Container.Image)
	if cfg.Container.Image == "broken:v1" {
		return nil, fmt.Errorf("no such program")
	}
	r.count++
	i := &scriptedInstance{
		simulatedInstance: simulatedInstance{id: fmt.Sprintf("scripted://%d", r.count), clock: r.clock}, runtime: r, name: name,
	}
	r.live[name] = i
	return i, nil
}

func (r *scriptedRuntime) Adopt(id string) (Instance, bool) {
	for _, i := range r.live {
		if i.id == id && !r.lost {
			return i, true
		}
	}
	return nil, false
}

type scriptedInstance struct {
	simulatedInstance
	runtime *scriptedRuntime
	name    string
}

func (i *scriptedInstance) Terminate() {
	i.runtime.calls = append(i.runtime.calls, "term "+i.name)
	if !i.runtime.deaf[i.name] {
		i.end(0)
	}
}

func (i *scriptedInstance) Kill() {
	i.runtime.calls = append(i.runtime.calls, "kill "+i.name)
	i.end(137)
}
