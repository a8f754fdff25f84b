// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestStartTakesOneWrite(t *testing.T) {
	s := newStage(t, buildPod(withContainers(buildContainer("main"), buildContainer("log"))))
	s.runtime.options.ReadyDelay = 3 * time.Second
	s.step()
	if s.writes != 0 || len(s.runtime.calls) != 0 {
		t.Errorf("%d writes and calls %v before the delay is over", s.writes, s.runtime.calls)
	}
	s.pass(3 * time.Second)
	s.expect("Running main=running! log=running!" + allReady)
	s.expectCalls("start main web:v1", "start log web:v1")
	s.step()
	if s.writes != 1 || !s.next.IsZero() {
		t.Errorf("%d writes, next step %v; want 1 write and no step", s.writes, s.next)
	}
}

func TestStatusOfARunningPod(t *testing.T) {
	s := newStage(t, buildPod())
	s.step()
	status := s.object.Status
	if status.PodIP == "" || status.HostIP != "10.254.0.1" || status.ObservedGeneration != 1 || status.StartTime == nil {
		t.Errorf("status lacks something: %+v", status)
	}
	if c := status.ContainerStatuses[0]; c.ImageID == "" || c.ContainerID == "" || c.Image != "web:v1" || !*c.Started {
		t.Errorf("container status lacks something: %+v", c)
	}
}

func TestImageChangeRestartsThatContainerAlone(t *testing.T) {
	s := newStage(t, buildPod(withContainers(buildContainer("main", withPreStop(5)), buildContainer("log"))))
	s.runtime.options.UpdateDelay = 2 * time.Second
	s.step()
	before := s.object.Status
	s.runtime.calls = nil

	s.setImage("main", "web:v2")
	s.expect("Running main=running! log=running!" + allReady)
	s.pass(4 * time.Second)
	s.expectCalls()
	s.pass(time.Second)
	s.expectCalls("term main")
	s.expect("Running main=Completed(0) log=running! +PodReadyToStartContainers +Initialized")
	s.pass(2 * time.Second)
	s.expectCalls("start main web:v2")
	s.expect("Running main=running×1! log=running!" + allReady)

	after := s.object.Status
	if after.PodIP != before.PodIP || after.ContainerStatuses[1].ContainerID != before.ContainerStatuses[1].ContainerID {
		t.Error("the address or the other container changed")
	}
	was, is := before.ContainerStatuses[0], after.ContainerStatuses[0]
	if is.ContainerID == was.ContainerID || is.ImageID == was.ImageID || is.Image != "web:v2" {
		t.Errorf("container status %+v still tells of the old image", is)
	}
	if last := is.LastTerminationState.Terminated; last == nil || last.ContainerID != was.ContainerID {
		t.Errorf("last state %+v, want that of %s", last, was.ContainerID)
	}
	if after.ObservedGeneration != 2 {
		t.Errorf("observed generation %d, want 2", after.ObservedGeneration)
	}
}

func TestImageChangeWithoutDelayTakesOneWrite(t *testing.T) {
	s := newStage(t, buildPod())
	s.step()
	s.setImage("main", "web:v2")
	s.expect("Running main=running×1!" + allReady)
	if s.writes != 2 {
		t.Errorf("%d writes, want one for the start and one for the change", s.writes)
	}
}

func TestCrashLoop(t *testing.T) {
	s := newStage(t, buildPod())
	s.step()
	s.crash("main", 3)
	s.expect("Running main=running×1!" + allReady) // at once
	s.crash("main", 3)
	s.expect("Running main=CrashLoopBackOff×1 +PodReadyToStartContainers +Initialized")
	if c := s.object.Status.ContainerStatuses[0]; c.LastTerminationState.Terminated.ExitCode != 3 || c.ImageID == "" {
		t.Errorf("waiting container %+v does not tell of its end", c)
	}
	s.pass(9 * time.Second)
	s.expect("Running main=CrashLoopBackOff×1 +PodReadyToStartContainers +Initialized")
	s.pass(time.Second)
	s.expect("Running main=running×2!" + allReady)
	s.crash("main", 3)
	s.pass(19 * time.Second)
	s.expect("Running main=CrashLoopBackOff×2 +PodReadyToStartContainers +Initialized")

	// A good image resets the backoff; its own first crash does not restart at once.
	s.setImage("main", "web:v2")
	s.expect("Running main=running×3!" + allReady)
	s.crash("main", 1)
	s.expect("Running main=CrashLoopBackOff×3 +PodReadyToStartContainers +Initialized")
}

func TestStartErrorIsACrash(t *testing.T) {
	s := newStage(t, buildPod(withContainers(buildContainer("main", func(c *corev1.Container) { c.Image = "broken:v1" }))))
	s.step()
	s.expect("Running main=CrashLoopBackOff×1 +PodReadyToStartContainers +Initialized")
	last := s.object.Status.ContainerStatuses[0].LastTerminationState.Terminated
	if last == nil || last.ExitCode != 128 || last.Reason != "StartError" || last.Message != "no such program" {
		t.Errorf("last state %+v, want StartError 128", last)
	}
}

func TestMissingImage(t *testing.T) {
	s := newStage(t, buildPod(withContainers(buildContainer("main", func(c *corev1.Container) { c.Image = "missing:v1" }))))
	s.step()
	s.expect("Pending main=ErrImagePull +PodReadyToStartContainers +Initialized")
	s.pass(time.Second)
	s.expect("Pending main=ImagePullBackOff +PodReadyToStartContainers +Initialized")
	s.pass(9 * time.Second)
	s.expect("Pending main=ErrImagePull +PodReadyToStartContainers +Initialized")
	s.pass(12 * time.Second)
	s.expect("Pending main=ImagePullBackOff +PodReadyToStartContainers +Initialized")
	s.setImage("main", "web:v1")
	s.expect("Running main=running!" + allReady)
}

func TestChangeToMissingImageKillsFirst(t *testing.T) {
	s := newStage(t, buildPod())
	s.step()
	was := s.object.Status.ContainerStatuses[0]
	s.runtime.calls = nil
	s.setImage("main", "missing:v1")
	s.expectCalls("term main")
	s.expect("Running main=ErrImagePull +PodReadyToStartContainers +Initialized")
	c := s.object.Status.ContainerStatuses[0]
	if c.Image != "web:v1" || c.ContainerID != was.ContainerID || c.LastTerminationState.Terminated == nil {
		t.Errorf("container status %+v, want that of the old image", c)
	}
	s.pass(time.Minute)
	s.setImage("main", "web:v2")
	s.expect("Running main=running×1!" + allReady)
}

func TestImageErrorsForGood(t *testing.T) {
	never := func(c *corev1.Container) { c.Image, c.ImagePullPolicy = "missing:v1", corev1.PullNever }
	invalid := func(c *corev1.Container) { c.Image = "Not An Image" }
	for want, change := range map[string]func(*corev1.Container){"ErrImageNeverPull": never, "InvalidImageName": invalid} {
		s := newStage(t, buildPod(withContainers(buildContainer("main", change))))
		s.step()
		s.expect("Pending main=" + want + " +PodReadyToStartContainers +Initialized")
		if !s.next.IsZero() {
			t.Errorf("%s: another try at %v", want, s.next)
		}
	}
}

func TestRestartPolicies(t *testing.T) {
	for _, test := range []struct {
		policy corev1.RestartPolicy
		code   int32
		want   string
	}{
		{corev1.RestartPolicyAlways, 0, "Running main=running×1!" + allReady},
		{corev1.RestartPolicyAlways, 1, "Running main=running×1!" + allReady},
		{corev1.RestartPolicyOnFailure, 0, "Succeeded main=Completed(0) +PodReadyToStartContainers +Initialized"},
		{corev1.RestartPolicyOnFailure, 1, "Running main=running×1!" + allReady},
		{corev1.RestartPolicyNever, 0, "Succeeded main=Completed(0) +PodReadyToStartContainers +Initialized"},
		{corev1.RestartPolicyNever, 1, "Failed main=Error(1) +PodReadyToStartContainers +Initialized"},
	} {
		s := newStage(t, buildPod(withPolicy(test.policy)))
		s.step()
		s.crash("main", test.code)
		s.step()
		s.expect(test.want)
	}
}

func TestImageChangeRestartsWhateverThePolicy(t *testing.T) {
	s := newStage(t, buildPod(withPolicy(corev1.RestartPolicyNever)))
	s.runtime.options.UpdateDelay = time.Second
	s.step()
	s.setImage("main", "web:v2")
	s.expect("Running main=Completed(0) +PodReadyToStartContainers +Initialized")
	s.pass(time.Second)
	s.expect("Running main=running×1!" + allReady)
}

func TestInitContainersRunInOrder(t *testing.T) {
	s := newStage(t, buildPod(withInit(
		buildContainer("first"), buildContainer("proxy", asSidecar, withPostStart(3)), buildContainer("second"))))
	s.step()
	s.expectCalls("start first web:v1")
	s.expect("Pending first=running proxy=PodInitializing second=PodInitializing main=PodInitializing +PodReadyToStartContainers")
	s.crash("first", 1) // is retried, immediately the first time
	s.expectCalls("start first web:v1")
	s.crash("first", 0)
	s.expectCalls("start proxy web:v1")
	s.expect("Pending first=Completed(0)×1! proxy=running second=PodInitializing main=PodInitializing +PodReadyToStartContainers")
	s.pass(3 * time.Second)
	s.expectCalls("start second web:v1")
	s.crash("second", 0)
	s.expectCalls("start main web:v1")
	s.expect("Running first=Completed(0)×1! proxy=running! second=Completed(0)! main=running!" + allReady)

	s.setImage("proxy", "web:v2")
	s.expectCalls("term proxy", "start proxy web:v2")
	s.pass(3 * time.Second)
	s.expect("Running first=Completed(0)×1! proxy=running×1! second=Completed(0)! main=running!" + allReady)
}

func TestFailedInitFailsThePod(t *testing.T) {
	s := newStage(t, buildPod(withPolicy(corev1.RestartPolicyNever),
		withInit(buildContainer("proxy", asSidecar), buildContainer("first"))))
	s.step()
	s.crash("first", 2)
	s.expect("Failed proxy=running! first=Error(2) main=PodInitializing +PodReadyToStartContainers")
	s.step()
	s.expect("Failed proxy=Completed(0) first=Error(2) main=PodInitializing +PodReadyToStartContainers")
}

func TestSidecarEndsWithTheMainContainers(t *testing.T) {
	s := newStage(t, buildPod(withPolicy(corev1.RestartPolicyOnFailure), withInit(buildContainer("proxy", asSidecar))))
	s.step()
	s.runtime.calls = nil
	s.crash("main", 0)
	s.expectCalls("term proxy")
	s.expect("Succeeded proxy=Completed(0) main=Completed(0) +PodReadyToStartContainers +Initialized")
}

func TestSidecarThatIsSlowToEndIsNotRestarted(t *testing.T) {
	s := newStage(t, buildPod(withPolicy(corev1.RestartPolicyNever), withInit(buildContainer("proxy", asSidecar))))
	s.runtime.deaf["proxy"] = true
	s.step()
	s.runtime.calls = nil
	s.crash("main", 0)
	s.expect("Running proxy=running! main=Completed(0) +PodReadyToStartContainers +Initialized")
	s.pass(time.Minute)
	s.expectCalls("term proxy", "kill proxy")
	s.expect("Succeeded proxy=Error(137) main=Completed(0) +PodReadyToStartContainers +Initialized")
}

func TestRestartingSidecarDoesNotHoldUpTheOthers(t *testing.T) {
	s := newStage(t, buildPod(withInit(buildContainer("proxy", asSidecar, withPostStart(60)))))
	s.step()
	s.pass(time.Minute)
	s.setImage("proxy", "web:v2")
	s.runtime.calls = nil
	s.setImage("main", "web:v2")
	s.expectCalls("term main", "start main web:v2")
}

func TestInitContainersAreNotRunAgain(t *testing.T) {
	s := newStage(t, buildPod(withInit(buildContainer("first")), func(object *corev1.Pod) {
		object.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}}
	}))
	s.step()
	s.expectCalls("start main web:v1")
}

func TestReadinessGates(t *testing.T) {
	s := newStage(t, buildPod(func(object *corev1.Pod) {
		object.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "InPlaceUpdateReady"}, {ConditionType: "usher.dev/registered"}}
		object.Status.Conditions = []corev1.PodCondition{{Type: "InPlaceUpdateReady", Status: corev1.ConditionTrue}}
	}))
	s.step()
	s.expect("Running main=running! +InPlaceUpdateReady +PodReadyToStartContainers +Initialized +ContainersReady")
	closed := findCondition(t, s.object, corev1.PodReady)
	if closed.Reason != "ReadinessGatesNotReady" || closed.Message != `readiness gate "usher.dev/registered" is not True` {
		t.Errorf("Ready condition %+v does not name the closed gate", closed)
	}
	s.clock.SetTime(s.clock.Now().Add(time.Minute))
	s.edit(func(object *corev1.Pod) {
		object.Status.Conditions = append(object.Status.Conditions,
			corev1.PodCondition{Type: "usher.dev/registered", Status: corev1.ConditionTrue})
	})
	ready := findCondition(t, s.object, corev1.PodReady)
	if ready.Status != corev1.ConditionTrue || ready.ObservedGeneration != 2 || !ready.LastTransitionTime.After(closed.LastTransitionTime.Time) {
		t.Errorf("Ready condition %+v, want one that is True since just now", ready)
	}
	if c := findCondition(t, s.object, corev1.ContainersReady); !c.LastTransitionTime.Equal(&closed.LastTransitionTime) || c.ObservedGeneration != 2 {
		t.Errorf("ContainersReady %+v: its status has not changed since %v", c, closed.LastTransitionTime)
	}
}

func findCondition(t *testing.T, object *corev1.Pod, kind corev1.PodConditionType) corev1.PodCondition {
	t.Helper()
	for _, condition := range object.Status.Conditions {
		if condition.Type == kind {
			return condition
		}
	}
	t.Fatalf("no condition %s", kind)
	return corev1.PodCondition{}
}

func cpu(amount string) corev1.ResourceRequirements {
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(amount)}
	return corev1.ResourceRequirements{Requests: list, Limits: list}
}

func TestResize(t *testing.T) {
	restart := func(c *corev1.Container) {
		c.ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.RestartContainer}}
	}
	for _, test := range []struct {
		name    string
		changes []func(*corev1.Container)
		want    string
	}{
		{"in place", nil, "Running main=running!" + allReady},
		{"with a restart", []func(*corev1.Container){restart}, "Running main=running×1!" + allReady},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newStage(t, buildPod(withContainers(buildContainer("main", test.changes...))))
			s.object.Spec.Containers[0].Resources = cpu("1")
			s.step()
			s.edit(func(object *corev1.Pod) { object.Spec.Containers[0].Resources = cpu("2") })
			s.expect(test.want)
			c := s.object.Status.ContainerStatuses[0]
			if got := c.AllocatedResources.Cpu().String() + c.Resources.Limits.Cpu().String(); got != "22" {
				t.Errorf("status shows %s, want 2 CPUs allocated and as limit", got)
			}
			if s.object.Status.ObservedGeneration != 2 {
				t.Error("the new generation is not shown as observed")
			}
		})
	}
}

// A node that has less than a container requests reports so, leaves the container as it
// is, and drops the report when the request is gone.
func TestInfeasibleResize(t *testing.T) {
	s := newStage(t, buildPod(withContainers(buildContainer("main"))))
	s.object.Spec.Containers[0].Resources = cpu("1")
	s.step()
	s.pod.mostCPU = resource.MustParse("4")
	s.edit(func(object *corev1.Pod) { object.Spec.Containers[0].Resources = cpu("5") })
	s.expect("Running main=running!" + allReady + " +PodResizePending")
	pending := findCondition(t, s.object, corev1.PodResizePending)
	if pending.Reason != corev1.PodReasonInfeasible || !strings.Contains(pending.Message, "requested: 5, capacity: 4") {
		t.Errorf("condition %+v", pending)
	}
	if got := s.object.Status.ContainerStatuses[0].Resources.Limits.Cpu().String(); got != "1" {
		t.Errorf("status shows %s", got)
	}
	s.edit(func(object *corev1.Pod) { object.Spec.Containers[0].Resources = cpu("3") })
	if got := s.object.Status.ContainerStatuses[0].Resources.Limits.Cpu().String(); got != "3" {
		t.Errorf("status shows %s", got)
	}
	for _, c := range s.object.Status.Conditions {
		if c.Type == corev1.PodResizePending {
			t.Error("the condition stays")
		}
	}
}

func TestAdoption(t *testing.T) {
	s := newStage(t, buildPod())
	s.step()
	s.crash("main", 1)
	writes := s.writes

	s.restartAgent() // and the container keeps running
	s.step()
	s.expect("Running main=running×1!" + allReady)
	if s.writes != writes {
		t.Error("a status that is right was written again")
	}

	s.restartAgent() // and the container ended with it
	s.runtime.lost = true
	s.step()
	s.expect("Running main=running×2!" + allReady)
	last := s.object.Status.ContainerStatuses[0].LastTerminationState.Terminated
	if last == nil || last.ExitCode != 137 || last.Reason != "ContainerStatusUnknown" {
		t.Errorf("last state %+v, want ContainerStatusUnknown", last)
	}
}

func TestAdoptionOfACrashLoop(t *testing.T) {
	s := newStage(t, buildPod())
	s.step()
	s.crash("main", 1)
	s.crash("main", 7)
	s.restartAgent()
	s.step()
	s.expect("Running main=running×2!" + allReady)
	if last := s.object.Status.ContainerStatuses[0].LastTerminationState.Terminated; last == nil || last.ExitCode != 7 {
		t.Errorf("last state %+v, want exit code 7", last)
	}
}

func TestPostStartHoldsBackReadiness(t *testing.T) {
	s := newStage(t, buildPod(withContainers(buildContainer("main", withPostStart(5)))))
	s.step()
	s.expect("Running main=running +PodReadyToStartContainers +Initialized")
	s.pass(5 * time.Second)
	s.expect("Running main=running!" + allReady)
}
