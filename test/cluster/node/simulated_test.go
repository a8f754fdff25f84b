// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// newSimulatedStage steps a Pod by hand in the simulated runtime itself.
func newSimulatedStage(t *testing.T, object *corev1.Pod) *stage {
	t.Helper()
	s := newStage(t, object)
	s.pod.runtime = s.runtime.simulatedRuntime
	return s
}

func TestSimulatedInitContainersTakeNoTime(t *testing.T) {
	s := newSimulatedStage(t, buildPod(withInit(buildContainer("first"), buildContainer("proxy", asSidecar))))
	s.step()
	s.expect("Running first=Completed(0)! proxy=running! main=running!" + allReady)
	if s.writes != 1 {
		t.Errorf("%d writes, want one", s.writes)
	}
}

func TestSimulatedCrashImage(t *testing.T) {
	s := newSimulatedStage(t, buildPod(withContainers(buildContainer("main", func(c *corev1.Container) { c.Image = "crash:v1" }))))
	s.step()
	s.expect("Running main=CrashLoopBackOff×1 +PodReadyToStartContainers +Initialized")
	s.pass(10 * time.Second)
	s.expect("Running main=CrashLoopBackOff×2 +PodReadyToStartContainers +Initialized")
	if s.writes != 2 {
		t.Errorf("%d writes, want one for each turn", s.writes)
	}
	s.setImage("main", "web:v1")
	s.expect("Running main=running×3!" + allReady)
}

func TestSimulatedHooks(t *testing.T) {
	s := newSimulatedStage(t, buildPod(withContainers(buildContainer("main", func(c *corev1.Container) {
		exec := func(command ...string) *corev1.LifecycleHandler {
			return &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: command}}
		}
		c.Lifecycle = &corev1.Lifecycle{PostStart: exec("sleep", "2.5"), PreStop: exec("/bin/drain")}
	}))))
	s.step()
	s.expect("Running main=running +PodReadyToStartContainers +Initialized")
	s.pass(2500 * time.Millisecond)
	s.expect("Running main=running!" + allReady)
	s.delete(30)
	s.expect("Succeeded main=Completed(0) +Initialized") // an unknown command takes no time
}

func TestJitter(t *testing.T) {
	delay := func(seed uint64, name string) time.Duration {
		t.Helper()
		r, err := NewSimulatedRuntime(SimulatedOptions{ReadyDelay: time.Second, Jitter: 0.5, Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		object := buildPod()
		object.Name = name
		if d := r.Delay(DelayUpdate, object); d != 0 {
			t.Errorf("a delay of 0 became %v", d)
		}
		return r.Delay(DelayReady, object)
	}
	distinct := map[time.Duration]bool{}
	for _, name := range strings.Fields("a b c d e f g h") {
		d := delay(1, name)
		if d < time.Second || d > 1500*time.Millisecond || d != delay(1, name) {
			t.Errorf("delay %v of %s: want one between 1 and 1.5 s, always the same", d, name)
		}
		distinct[d] = true
	}
	if len(distinct) < 6 || delay(1, "a") == delay(2, "a") {
		t.Errorf("delays %v hardly differ", distinct)
	}
}
