// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/scenariotest"
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

func newStage(t *testing.T, object *corev1.Pod, o Traits) *stage {
	t.Helper()
	clock := clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0))
	o.MissingImages = []string{"missing:v1"}
	simulated := NewSimulatedRuntime(o).(*simulatedRuntime)
	simulated.clock = clock
	s := &stage{T: t, clock: clock, object: object}
	s.pod = &pod{uid: object.UID, podState: podState{hostIP: "10.254.0.1"}, kubelet: &kubelet{
		runtime: &scriptedRuntime{simulated, s}, traits: simulated.Traits(), clock: clock,
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

// pass advances the time, stepping the Pod whenever it asked for that.
func (s *stage) pass(duration time.Duration) {
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

// edit changes the object as an API client would.
func (s *stage) edit(change func(*corev1.Pod)) {
	s.Helper()
	s.object = s.object.DeepCopy()
	change(s.object)
	s.object.Generation++
	s.step()
}

// image sets the image of the Pod's first container.
func (s *stage) image(name string) {
	s.Helper()
	s.edit(func(object *corev1.Pod) { object.Spec.Containers[0].Image = name })
}

// result returns the Pod's status, whether it is down, and the calls since the last result.
func (s *stage) result() string {
	status := &s.object.Status
	parts := []string{cmp.Or(string(status.Phase), "-")}
	for _, c := range status.ContainerStatuses {
		parts = append(parts, c.Name+"="+describe(&c))
	}
	for _, c := range status.Conditions {
		if c.Status == corev1.ConditionTrue {
			parts = append(parts, string(c.Type))
		}
	}
	if s.pod.down {
		parts = append(parts, "(down)")
	}
	text := strings.Join(parts, " ")
	if len(s.calls) > 0 {
		text += "; " + strings.Join(s.calls, ", ")
	}
	s.calls = nil
	return text
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

// buildPod builds a Pod on node-1 with a container named main.
func buildPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web-0", Namespace: "shop", UID: "uid-1", Generation: 1},
		Spec:       corev1.PodSpec{NodeName: "node-1", Containers: []corev1.Container{build("main")}},
	}
}

func build(name string) corev1.Container { return corev1.Container{Name: name, Image: "web:v1"} }

func cpu(amount string) corev1.ResourceRequirements {
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(amount)}
	return corev1.ResourceRequirements{Requests: list, Limits: list}
}

func gated(object *corev1.Pod) *corev1.Pod {
	object.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "a"}, {ConditionType: "b"}}
	return object
}

// moves are events of a Pod.
var moves = map[string]func(s *stage, about string){
	"step":  func(s *stage, _ string) { s.step() },
	"pass":  func(s *stage, about string) { s.pass(scenariotest.Duration(about)) },
	"crash": func(s *stage, _ string) { s.pod.containers[0].instance.(*scriptedInstance).end(3); s.step() },
	"lose":  func(s *stage, _ string) { s.pod.down = s.pod.killAll(s.clock.Now()) },
	"image": (*stage).image,
	"cpu": func(s *stage, about string) {
		s.edit(func(object *corev1.Pod) { object.Spec.Containers[0].Resources = cpu(about) })
	},
	"phase": func(s *stage, about string) {
		s.edit(func(object *corev1.Pod) { object.Status.Phase = corev1.PodPhase(about) })
	},
	"condition": func(s *stage, about string) {
		kind, status, _ := strings.Cut(about, " ")
		s.edit(func(object *corev1.Pod) {
			setCondition(&object.Status, corev1.PodCondition{Type: corev1.PodConditionType(kind), Status: corev1.ConditionStatus(status)}, time.Time{})
		})
	},
	"delete": func(s *stage, about string) {
		s.edit(func(object *corev1.Pod) {
			object.DeletionTimestamp, object.DeletionGracePeriodSeconds = &metav1.Time{}, new(int64(scenariotest.Duration(about).Seconds()))
		})
	},
}

// aboutNodes and aboutContainers are the words about nodes and containers.
var (
	aboutNodes = map[string]func(o *Traits, value string){
		"readyDelay":  func(o *Traits, value string) { o.ReadyDelay = scenariotest.Duration(value) },
		"updateDelay": func(o *Traits, value string) { o.UpdateDelay = scenariotest.Duration(value) },
		"deleteDelay": func(o *Traits, value string) { o.DeleteDelay = scenariotest.Duration(value) },
		"mostCPU":     func(o *Traits, value string) { o.MostCPU = resource.MustParse(value) },
	}
	aboutContainers = map[string]func(c *corev1.Container, value string){
		"image": func(c *corev1.Container, value string) { c.Image = value },
		"cpu":   func(c *corev1.Container, value string) { c.Resources = cpu(value) },
		"mounts": func(c *corev1.Container, value string) {
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: value})
		},
		"restartForCPU": func(c *corev1.Container, _ string) {
			c.ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.RestartContainer}}
		},
		"preStop": func(c *corev1.Container, value string) {
			sleep := &corev1.SleepAction{Seconds: int64(scenariotest.Duration(value).Seconds())}
			c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: sleep}}
		},
	}
)

// TestPods plays the scenarios of testdata/pods.txt.
func TestPods(t *testing.T) {
	scenariotest.Run(t, "testdata/pods.txt", func(t *testing.T, lines []string) (results []string) {
		object, options := buildPod(), Traits{}
		object.Spec.Containers = nil
		var s *stage
		for _, line := range lines {
			verb, about, _ := strings.Cut(line, " ")
			switch verb {
			case "Node:":
				checktest.NoError(t, scenariotest.Say(aboutNodes, &options, about))
			case "Container":
				name, words, _ := strings.Cut(about, ":")
				c := build(name)
				checktest.NoError(t, scenariotest.Say(aboutContainers, &c, strings.TrimSpace(words)))
				object.Spec.Containers = append(object.Spec.Containers, c)
			case "Mountable:":
				object.Spec.Volumes = append(object.Spec.Volumes, corev1.Volume{
					Name: about, VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: about + ":v1"}},
				})
			case "Gates:":
				gated(object)
			default:
				if s == nil {
					s = newStage(t, object, options)
				}
				moves[verb](s, about)
				results = append(results, s.result())
			}
		}
		return results
	})
}

// TestStatusOfAnInPlaceUpdate checks the status of an update that Usher reads, and that each change
// takes one write.
func TestStatusOfAnInPlaceUpdate(t *testing.T) {
	s := newStage(t, buildPod(), Traits{})
	s.step()
	before := s.object.Status
	s.clock.Step(time.Minute)
	s.image("web:v2")
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
		checktest.Same(t, what, values[1], values[0])
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

// TestStatusPatch: the patch leaves out fields that others wrote.
func TestStatusPatch(t *testing.T) {
	object := buildPod()
	object.Status.Conditions = []corev1.PodCondition{{Type: "KruisePodReady", Status: corev1.ConditionTrue}}
	object.Status.QOSClass = corev1.PodQOSBestEffort
	s := newStage(t, object, Traits{})
	s.step()
	patch := checktest.Must(statusPatch(object, &s.object.Status))(t)
	for part, want := range map[string]bool{`"uid":"uid-1"`: true, `"podIP":"10.`: true, `"type":"Ready"`: true, "qosClass": false, `"status":"True","type":"KruisePodReady"`: false, `"name":"web-0"`: false} {
		if strings.Contains(string(patch), part) != want {
			t.Errorf("patch contains %s: %t, want %t:\n%s", part, !want, want, patch)
		}
	}
}

func TestReadyCondition(t *testing.T) {
	s := newStage(t, gated(buildPod()), Traits{})
	s.step()
	for _, c := range s.object.Status.Conditions {
		if c.Type == corev1.PodReady && (c.Reason != "ReadinessGatesNotReady" || !strings.Contains(c.Message, `"a" is not True`)) {
			t.Errorf("condition %+v does not name the closed gate", c)
		}
	}
}
