// SPDX-License-Identifier: Apache-2.0

// Package nodes_test plays the lives of Pods on the node agent, on a real API server.
package nodes_test

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr/testr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/cluster/clustertest"
	"github.com/usher-dev/usher/test/cluster/node"
	"github.com/usher-dev/usher/test/integration/scene"
	"github.com/usher-dev/usher/test/servers/run"
	"github.com/usher-dev/usher/test/stage"
)

// story is an agent on a control plane of its own.
type story struct{ *scene.Scene }

// create creates a Pod of the web service with a readiness probe. patch changes it, more its
// container.
func (s *story) create(name, patch, more string) *corev1.Pod {
	s.Helper()
	s.Make(s.Object(fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {containers: [{name: main,
		image: "registry.example:5000/shop/web:v1", ports: [{name: http, containerPort: 8080}],
		readinessProbe: {periodSeconds: 1, httpGet: {path: /readyz, port: http}}, %s}]}}`, name, more), cmp.Or(patch, "{}")))
	return s.Pod(name)
}

// await waits until the Pod satisfies the condition.
func (s *story) await(pod *corev1.Pod, what string, condition func(*corev1.Pod) bool) (current *corev1.Pod) {
	s.Helper()
	s.Until(pod.Name+": "+what, func() string {
		current = s.Pod(pod.Name)
		return registrytest.Unless(current.UID == pod.UID && condition(current), fmt.Sprintf("its status is %+v", current.Status))
	})
	return current
}

func (s *story) remove(pod *corev1.Pod, options ...client.DeleteOption) {
	s.Helper()
	s.Must(s.Delete(s.Context(), pod.DeepCopy(), options...))
}

// ask sends a GET to the Pod's own address; the answer is empty if there is none.
func (s *story) ask(pod *corev1.Pod, path string) (answer string) {
	web := run.HTTP{Address: "http://" + pod.Status.PodIP + ":8080", Header: http.Header{"Connection": {"close"}}}
	_, _ = web.Do(s.Context(), http.MethodGet, path, nil, &answer) // a broken connection is no answer
	return answer
}

func main(pod *corev1.Pod) corev1.ContainerStatus {
	if len(pod.Status.ContainerStatuses) == 0 {
		return corev1.ContainerStatus{}
	}
	return pod.Status.ContainerStatuses[0]
}

// TestProcesses plays the lives of Pods whose containers are processes.
func TestProcesses(t *testing.T) {
	programs := t.TempDir()
	web := checkout.Program{Module: scene.Root + "/test", Pkg: "./cmd/web", Out: filepath.Join(programs, "web")}
	checktest.NoError(t, web.Compile(t.Context(), nil))
	runtime := node.NewProcessRuntime(node.ProcessOptions{Images: node.ProgramDir(programs, "v1", "v2"), LogDir: t.TempDir()})
	p := checktest.Must(scene.New(clustertest.Start(t)))(t)
	agent := checktest.Must(node.Start(t.Context(), node.Options{RESTConfig: p.RESTConfig(), Runtime: runtime, Logger: testr.New(t)}))(t)
	t.Cleanup(func() {
		checktest.NoError(t, agent.Stop(context.Background()))
	})
	for name, play := range map[string]func(*story){"preStop": preStopSavesRequests, "finalizer": finalizerKeepsThePod, "replaced": replacedPod} {
		t.Run(name, func(t *testing.T) { play(&story{&scene.Scene{T: t, Plane: p, Namespace: metav1.NamespaceDefault}}) })
	}
}

// preStopSavesRequests deletes a Pod while it handles a request. The web service cuts
// requests on SIGTERM, as that of a Pod without a hook shows, so an answer shows that SIGTERM
// came after the hook.
func preStopSavesRequests(s *story) {
	answer := make(chan string, 1)
	hasty := s.await(s.create("hasty", "", ""), "is ready", stage.Ready)
	go func() { answer <- s.ask(hasty, "/slow?d=20s") }()
	s.remove(hasty)
	checktest.Same(s, "the answer to a request in flight, without a hook,", "", <-answer)
	ready := s.await(s.create("hooked", "", "lifecycle: {preStop: {sleep: {seconds: 2}}}"), "is ready", stage.Ready)
	go func() { answer <- s.ask(ready, "/slow?d=1s") }()
	s.remove(ready)
	s.await(ready, "is not ready while its hook runs", func(pod *corev1.Pod) bool { return !stage.Ready(pod) })
	if got := <-answer; !strings.Contains(got, ready.Name) {
		s.Errorf("the request in flight was answered %q", got)
	}
	s.Gone(ready.DeepCopy())
	checktest.Same(s, "the answer of a Pod that is gone", "", s.ask(ready, "/"))
}

func finalizerKeepsThePod(s *story) {
	pod := s.create("kept", `{metadata: {finalizers: [usher.dev/test]}, spec: {terminationGracePeriodSeconds: 1}}`, `env: [{name: IGNORE_TERM, value: "yes"}]`)
	ready := s.await(pod, "is ready", stage.Ready)
	s.remove(ready)
	s.await(pod, "ignores SIGTERM", func(pod *corev1.Pod) bool { return !stage.Ready(pod) && main(pod).State.Running != nil })
	ended := s.await(pod, "is let go by the agent", func(pod *corev1.Pod) bool { return *pod.DeletionGracePeriodSeconds == 0 })
	if end := main(ended).State.Terminated; end == nil || end.ExitCode != 137 || ended.Status.Phase != corev1.PodFailed || s.ask(ready, "/") != "" {
		s.Errorf("end %+v in phase %s, want exit code 137 in a Pod that failed", end, ended.Status.Phase)
	}
	s.Change(ended, `metadata: {finalizers: []}`)
	s.Gone(ended)
}

// replacedPod force-deletes a Pod and creates another of the same name, which must
// neither get the first one's container nor keep it alive.
func replacedPod(s *story) {
	first := s.await(s.create("one", "", ""), "is ready", stage.Ready)
	s.remove(first, client.GracePeriodSeconds(0))
	second := s.await(s.create("one", "", ""), "is ready", stage.Ready)
	if second.Status.PodIP == first.Status.PodIP || main(second).ContainerID == main(first).ContainerID {
		s.Errorf("the second Pod has something of the first: %+v", second.Status)
	}
	registrytest.Until(s.T, "the first Pod's container ends", func() bool { return s.ask(first, "/") == "" })
}
