// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func TestPodServesOnItsOwnAddress(t *testing.T) {
	b := newBench(t, func(o *Options) { o.Nodes = 2 })
	one, two := b.create(b.webPod("one")), b.create(b.webPod("two", func(object *corev1.Pod) {
		object.Spec.NodeName = b.agent.Nodes()[1]
	}))
	one, two = b.await(one, "Pod one is ready", isReady), b.await(two, "Pod two is ready", isReady)
	if one.Status.PodIP == two.Status.PodIP || one.Status.HostIP != "127.0.0.1" {
		t.Errorf("addresses %s and %s on %s", one.Status.PodIP, two.Status.PodIP, one.Status.HostIP)
	}
	if got := b.ask(one, "/"); !strings.Contains(got, one.Name) || !strings.Contains(got, `"v1"`) {
		t.Errorf("Pod one answers %q", got)
	}
	if got := b.ask(two, "/"); !strings.Contains(got, two.Name) {
		t.Errorf("Pod two answers %q", got)
	}
}

func TestContainersAndEventsTellOfAPod(t *testing.T) {
	b := newBench(t, nil)
	one := b.await(b.create(b.webPod("one")), "the Pod is ready", isReady)
	containers := b.agent.Containers()
	if len(containers) != 1 || containers[0].Pod != one.Name || !containers[0].Ready || containers[0].PID == 0 || containers[0].IP != one.Status.PodIP {
		t.Errorf("containers %+v", containers)
	}
	eventually(t, "events tell of the start", func() bool {
		events, err := b.client.CoreV1().Events(one.Namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(one.UID)})
		if err != nil {
			t.Fatal(err)
		}
		reasons := map[string]int{}
		for _, event := range events.Items {
			reasons[event.Reason]++
		}
		return reasons["Pulled"] == 1 && reasons["Started"] == 1
	})
}

func TestInPlaceUpdate(t *testing.T) {
	b := newBench(t, nil)
	object := b.create(b.webPod("one", func(object *corev1.Pod) {
		other := *object.Spec.Containers[0].DeepCopy()
		other.Name, other.Ports = "other", []corev1.ContainerPort{{Name: "other", ContainerPort: 9090}}
		other.ReadinessProbe.HTTPGet.Port = intstr.FromString("other")
		object.Spec.Containers = append(object.Spec.Containers, other)
	}))
	before := b.await(object, "the Pod is ready", isReady)
	otherAnswer := func() string { return fetch(t.Context(), "http://"+before.Status.PodIP+":9090/") }
	was := otherAnswer()

	b.setImage(object, "registry.example:5000/shop/web:v2")
	after := b.await(object, "the Pod is ready with the new image", func(object *corev1.Pod) bool {
		return isReady(object) && main(object).RestartCount == 1
	})
	if got := b.ask(after, "/"); !strings.Contains(got, `"v2"`) {
		t.Errorf("the Pod answers %q, want version v2", got)
	}
	if after.Status.PodIP != before.Status.PodIP || after.UID != before.UID || otherAnswer() != was {
		t.Errorf("address, UID or the other container changed: %s %s, %s", after.Status.PodIP, after.UID, otherAnswer())
	}
	if main(after).ImageID == main(before).ImageID || main(after).ContainerID == main(before).ContainerID ||
		main(after).LastTerminationState.Terminated == nil || after.Status.ObservedGeneration != after.Generation {
		t.Errorf("container status %+v does not tell of the restart", main(after))
	}
}

func TestInPlaceUpdateToAMissingImage(t *testing.T) {
	b := newBench(t, nil)
	object := b.create(b.webPod("one"))
	before := b.await(object, "the Pod is ready", isReady)
	b.setImage(object, "registry.example:5000/shop/web:v9")
	missing := b.await(object, "the pull is given up for now", waitingFor(ReasonImagePullBackOff))
	if main(missing).ContainerID != main(before).ContainerID || isReady(missing) || b.ask(missing, "/") != "" {
		t.Errorf("container status %+v, want that of the killed container", main(missing))
	}
	b.setImage(object, "registry.example:5000/shop/web:v1")
	b.await(object, "the Pod recovers", func(object *corev1.Pod) bool {
		return isReady(object) && main(object).RestartCount == 1 && main(object).ImageID == main(before).ImageID
	})
}

func TestUnknownImage(t *testing.T) {
	b := newBench(t, nil)
	object := b.create(b.webPod("one", func(object *corev1.Pod) { object.Spec.Containers[0].Image = "shop/nothing:v1" }))
	b.await(object, "the image cannot be pulled", waitingFor(ReasonErrImagePull, ReasonImagePullBackOff))
	seen := b.await(object, "the pull is given up for now", waitingFor(ReasonImagePullBackOff))
	if seen.Status.Phase != corev1.PodPending || main(seen).RestartCount != 0 {
		t.Errorf("status %+v, want a Pod that is pending", seen.Status)
	}
	b.setImage(object, "shop/web:v1")
	b.await(object, "the Pod is ready", isReady)
}

func TestCrashingProgram(t *testing.T) {
	b := newBench(t, nil)
	object := b.create(b.webPod("one", func(object *corev1.Pod) { object.Spec.Containers[0].Args = []string{"nonsense"} }))
	seen := b.await(object, "the container is in a crash loop", func(object *corev1.Pod) bool {
		return waitingFor("CrashLoopBackOff")(object) && main(object).RestartCount >= 2
	})
	if last := main(seen).LastTerminationState.Terminated; last == nil || last.ExitCode != 1 || last.Reason != "Error" {
		t.Errorf("last state %+v, want exit code 1", last)
	}
	b.delete(object)
	b.awaitGone(object)
}

// TestPreStopSavesRequests deletes a Pod while it handles a request. The web service
// cuts requests on SIGTERM, so an answer shows that SIGTERM came after the hook.
func TestPreStopSavesRequests(t *testing.T) {
	b := newBench(t, nil)
	object := b.create(b.webPod("one", func(object *corev1.Pod) {
		object.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{
			HTTPGet: &corev1.HTTPGetAction{Path: "/slow?d=2s", Port: intstr.FromString("http")}}}
	}))
	ready := b.await(object, "the Pod is ready", isReady)
	answer := make(chan string, 1)
	go func() { answer <- b.ask(ready, "/slow?d=1s") }()
	b.delete(object)
	b.await(object, "the Pod is not ready while its hook runs", func(object *corev1.Pod) bool { return !isReady(object) })
	if got := <-answer; !strings.Contains(got, ready.Name) {
		t.Errorf("the request in flight was answered %q", got)
	}
	b.awaitGone(object)
	if b.ask(ready, "/") != "" {
		t.Error("the Pod is gone and still answers")
	}
	eventually(t, "the agent forgets the Pod", func() bool { return len(b.agent.Containers()) == 0 })
}

func TestFinalizerKeepsThePodOfAKilledContainer(t *testing.T) {
	b := newBench(t, nil)
	object := b.create(b.webPod("one", func(object *corev1.Pod) {
		grace := int64(1)
		object.Finalizers, object.Spec.TerminationGracePeriodSeconds = []string{"usher.dev/test"}, &grace
		object.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "IGNORE_TERM", Value: "yes"}}
	}))
	ready := b.await(object, "the Pod is ready", isReady)
	b.delete(object)
	b.await(object, "SIGTERM is ignored", func(object *corev1.Pod) bool { return !isReady(object) && main(object).State.Running != nil })
	ended := b.await(object, "the container is killed", func(object *corev1.Pod) bool { return main(object).State.Terminated != nil })
	if end := main(ended).State.Terminated; end.ExitCode != 137 || ended.Status.Phase != corev1.PodFailed || isReady(ended) {
		t.Errorf("end %+v in phase %s, want exit code 137 in a Pod that failed", end, ended.Status.Phase)
	}
	if b.ask(ready, "/") != "" {
		t.Error("the container still answers")
	}
	b.await(object, "the agent lets the object go", func(object *corev1.Pod) bool { return *object.DeletionGracePeriodSeconds == 0 })
	b.patch(object, `{"metadata":{"$deleteFromPrimitiveList/finalizers":["usher.dev/test"]}}`)
	b.awaitGone(object)
}

func TestReadinessGateOfOthers(t *testing.T) {
	b := newBench(t, nil)
	object := b.create(b.webPod("one", func(object *corev1.Pod) {
		object.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "usher.dev/registered"}}
	}))
	b.await(object, "the containers are ready, the Pod is not", func(object *corev1.Pod) bool {
		return conditionTrue(object.Status.Conditions, corev1.ContainersReady) && !isReady(object)
	})
	b.patch(object, `{"status":{"conditions":[{"type":"usher.dev/registered","status":"True"}]}}`, "status")
	b.await(object, "the Pod is ready", isReady)
	b.patch(object, `{"status":{"conditions":[{"type":"usher.dev/registered","status":"False"}]}}`, "status")
	b.await(object, "the Pod is not ready any more", func(object *corev1.Pod) bool { return !isReady(object) })
}

func TestFailedNodeIsSilent(t *testing.T) {
	b := newBench(t, nil)
	object := b.create(b.webPod("one"))
	ready := b.await(object, "the Pod is ready", isReady)
	node := b.agent.Nodes()[0]
	if err := b.agent.FailNode(node); err != nil {
		t.Fatal(err)
	}
	b.delete(object)
	writes := b.writes.Load()
	// A running Pod on a working node shows that the agent has had time to react.
	other := newBench(t, func(o *Options) { o.NamePrefix += "other-" })
	witness := other.create(other.webPod("witness"))
	other.await(witness, "the witness is ready", isReady)
	if current := b.get(object); current == nil || !isReady(current) || b.writes.Load() != writes {
		t.Errorf("the node reacted: Pod %v, %d writes", current, b.writes.Load()-writes)
	}
	if b.ask(ready, "/") == "" {
		t.Error("the container does not go on")
	}
	if err := b.agent.RecoverNode(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	b.awaitGone(object)
}

func TestRestartedAgentStartsContainersAnew(t *testing.T) {
	b := newBench(t, nil)
	object := b.create(b.webPod("one"))
	before := b.await(object, "the Pod is ready", isReady)
	if err := b.agent.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b.ask(before, "/") != "" {
		t.Fatal("the container outlives its agent")
	}
	b.startAgent()
	after := b.await(object, "the container is started anew", func(object *corev1.Pod) bool {
		return isReady(object) && main(object).RestartCount == 1
	})
	if after.Status.PodIP != before.Status.PodIP || b.ask(after, "/") == "" {
		t.Errorf("address %s, was %s", after.Status.PodIP, before.Status.PodIP)
	}
	if last := main(after).LastTerminationState.Terminated; last == nil || last.Reason != "ContainerStatusUnknown" {
		t.Errorf("last state %+v", last)
	}
}

// TestReplacedPod force-deletes a Pod and creates another of the same name, which must
// neither get the first one's container nor keep it alive.
func TestReplacedPod(t *testing.T) {
	b := newBench(t, nil)
	first := b.await(b.create(b.webPod("one")), "the first Pod is ready", isReady)
	none := int64(0)
	if err := b.client.CoreV1().Pods(first.Namespace).Delete(t.Context(), first.Name, metav1.DeleteOptions{GracePeriodSeconds: &none}); err != nil {
		t.Fatal(err)
	}
	second := b.await(b.create(b.webPod("one")), "the second Pod is ready", isReady)
	if second.Status.PodIP == first.Status.PodIP || main(second).ContainerID == main(first).ContainerID {
		t.Errorf("the second Pod has something of the first: %+v", second.Status)
	}
	eventually(t, "the first Pod's container ends", func() bool { return b.ask(first, "/") == "" })
}

func TestSidecarAndInitProcesses(t *testing.T) {
	b := newBench(t, nil)
	object := b.create(b.webPod("one", func(object *corev1.Pod) {
		object.Spec.InitContainers = []corev1.Container{
			{Name: "first", Image: "shop/web:v1", Args: []string{"sleep", "0.1"}},
			{Name: "proxy", Image: "shop/web:v1", Ports: []corev1.ContainerPort{{ContainerPort: 9091}},
				StartupProbe: &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(9091)}}}},
			{Name: "check", Image: "shop/web:v1", Command: []string{"web", "get", "http://$(POD_IP):9091/"}},
		}
		asSidecar(&object.Spec.InitContainers[1])
	}))
	ready := b.await(object, "the Pod is ready", isReady)
	states := map[string]bool{}
	for _, status := range ready.Status.InitContainerStatuses {
		states[status.Name] = status.Ready && status.RestartCount == 0
	}
	if want := map[string]bool{"first": true, "proxy": true, "check": true}; !maps.Equal(states, want) {
		t.Errorf("init containers that are through: %v, want %v", states, want)
	}
	b.delete(object)
	b.awaitGone(object)
}

func TestSimulatedPods(t *testing.T) {
	const count = 100
	runtime, err := NewSimulatedRuntime(SimulatedOptions{ReadyDelay: 100 * time.Millisecond, Jitter: 1})
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, func(o *Options) { o.Runtime, o.Nodes, o.PodsPerNode = runtime, 4, 100 })
	var objects []*corev1.Pod
	for i := range count {
		objects = append(objects, b.create(b.webPod(fmt.Sprint(i), func(object *corev1.Pod) {
			object.Spec.NodeName = b.agent.Nodes()[i%4]
			object.Spec.Containers[0].Resources = cpu("1")
		})))
	}
	for _, object := range objects {
		b.await(object, "the Pod is ready", isReady)
	}
	if got := b.writes.Load(); got != count {
		t.Errorf("%d status writes for %d Pods", got, count)
	}
	b.patch(objects[0], `{"spec":{"containers":[{"name":"main","resources":{"limits":{"cpu":"2"},"requests":{"cpu":"2"}}}]}}`, "resize")
	b.await(objects[0], "the resize is shown", func(object *corev1.Pod) bool {
		return main(object).Resources.Limits.Cpu().String() == "2" && main(object).RestartCount == 0
	})
	for _, object := range objects {
		b.delete(object)
	}
	for _, object := range objects {
		b.awaitGone(object)
	}
}
