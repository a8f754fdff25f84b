// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func TestTerminationRunsHooksThenSignals(t *testing.T) {
	s := newStage(t, buildPod(withContainers(buildContainer("slow", withPreStop(5)), buildContainer("quick"))))
	s.step()
	s.runtime.calls = nil
	s.delete(30)
	s.expectCalls("term quick") // the other container's hook does not delay it
	s.expect("Running slow=running quick=Completed(0) +PodReadyToStartContainers +Initialized")
	s.pass(4 * time.Second)
	s.expectCalls()
	s.pass(time.Second)
	s.expectCalls("term slow")
	s.expect("Succeeded slow=Completed(0) quick=Completed(0) +Initialized")
	if !s.pod.down {
		t.Error("the Pod is not seen to be down")
	}
}

func TestReadyUntilStopped(t *testing.T) {
	s := newStage(t, buildPod(withContainers(buildContainer("main", withPreStop(5)))))
	s.pod.readyUntilStopped = true
	s.step()
	s.delete(30)
	s.expect("Running main=running!" + allReady)
	s.pass(5 * time.Second)
	s.expect("Succeeded main=Completed(0) +Initialized")
}

func TestKillAfterGrace(t *testing.T) {
	s := newStage(t, buildPod())
	s.runtime.deaf["main"] = true
	s.step()
	s.runtime.calls = nil
	s.delete(7)
	s.expectCalls("term main")
	s.pass(6 * time.Second)
	s.expectCalls()
	s.pass(time.Second)
	s.expectCalls("kill main")
	s.expect("Failed main=Error(137) +Initialized")
}

func TestHookThatUsesUpTheGrace(t *testing.T) {
	s := newStage(t, buildPod(withContainers(buildContainer("main", withPreStop(60)))))
	s.runtime.deaf["main"] = true
	s.step()
	s.runtime.calls = nil
	s.delete(10)
	s.pass(10 * time.Second)
	s.expectCalls("term main")
	s.pass(minimumGrace)
	s.expectCalls("kill main")
}

func TestShorterGraceCutsTerminationShort(t *testing.T) {
	s := newStage(t, buildPod(withContainers(buildContainer("hooked", withPreStop(60)), buildContainer("deaf"))))
	s.runtime.deaf["deaf"], s.runtime.deaf["hooked"] = true, true
	s.step()
	s.runtime.calls = nil
	s.delete(300)
	s.expectCalls("term deaf")
	s.pass(5 * time.Second)
	s.delete(3)
	s.pass(3 * time.Second)
	s.expectCalls("kill deaf", "term hooked")
	s.pass(minimumGrace)
	s.expectCalls("kill hooked")
}

func TestSidecarsEndLastInReverse(t *testing.T) {
	s := newStage(t, buildPod(
		withInit(buildContainer("one", asSidecar), buildContainer("two", asSidecar)),
		withContainers(buildContainer("main", withPreStop(5)))))
	s.step()
	s.runtime.calls = nil
	s.delete(30)
	s.expectCalls()
	s.pass(5 * time.Second)
	s.expectCalls("term main", "term two", "term one")

	late := newStage(t, buildPod(withInit(buildContainer("one", asSidecar))))
	late.runtime.deaf["main"] = true
	late.step()
	late.runtime.calls = nil
	late.delete(10)
	late.pass(10 * time.Second)
	late.expectCalls("term main", "kill main", "term one")
}

func TestDeletionDuringImageChange(t *testing.T) {
	s := newStage(t, buildPod(withContainers(buildContainer("main", withPreStop(20)))))
	s.step()
	s.runtime.calls = nil
	s.setImage("main", "web:v2")
	s.pass(time.Second)
	s.delete(5)
	s.pass(5 * time.Second)
	s.expectCalls("term main") // and no start of the new image
	s.expect("Succeeded main=Completed(0) +Initialized")
}

func TestDeletionOfWhatDoesNotRun(t *testing.T) {
	s := newStage(t, buildPod())
	s.step()
	s.crash("main", 1)
	s.crash("main", 1)
	s.runtime.calls = nil
	s.delete(30)
	s.expectCalls()
	s.expect("Failed main=Error(1)×1 +Initialized")
	if !s.pod.down {
		t.Error("the Pod is not seen to be down")
	}
}

func TestDeleteDelay(t *testing.T) {
	s := newStage(t, buildPod())
	s.runtime.options.DeleteDelay = 4 * time.Second
	s.step()
	s.runtime.calls = nil
	s.delete(30)
	s.expect("Running main=running +PodReadyToStartContainers +Initialized")
	s.pass(4*time.Second - 1)
	s.expectCalls()
	s.pass(1)
	s.expectCalls("term main")
}

func TestObjectGoneKillsAtOnce(t *testing.T) {
	s := newStage(t, buildPod(withContainers(buildContainer("main", withPreStop(60)))))
	s.step()
	s.runtime.calls = nil
	if _, err := s.pod.step(s.object, true, s.clock.Now()); err != nil {
		t.Fatal(err)
	}
	s.expectCalls("kill main")
	if !s.pod.down {
		t.Error("the Pod is not seen to be down")
	}
}

func TestProbeFailureRestarts(t *testing.T) {
	grace := int64(3)
	s := newStage(t, buildPod(withContainers(buildContainer("main", func(c *corev1.Container) {
		c.LivenessProbe = &corev1.Probe{TerminationGracePeriodSeconds: &grace}
	}))))
	s.runtime.deaf["main"] = true
	s.step()
	s.runtime.calls = nil
	s.pod.containers[0].liveness = probeFailure
	s.step()
	s.expectCalls("term main")
	s.pass(3 * time.Second)
	s.expectCalls("kill main", "start main web:v1")
	s.expect("Running main=running×1!" + allReady)
}
