// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/cluster/clustertest"
)

// bench is an agent on a control plane.
type bench struct {
	*testing.T
	client kubernetes.Interface
	writes atomic.Int64 // the agent's Pod status writes
}

func newBench(t *testing.T, runtime Runtime, err error) *bench {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{T: t}
	config := clustertest.Start(t).RESTConfig()
	if b.client, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(request *http.Request) (*http.Response, error) {
			if request.Method == http.MethodPatch && strings.HasSuffix(request.URL.Path, "/status") {
				b.writes.Add(1)
			}
			return next.RoundTrip(request)
		})
	})
	agent, err := Start(t.Context(), Options{RESTConfig: config, Runtime: runtime, Logger: testr.New(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := agent.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return b
}

type roundTrip func(*http.Request) (*http.Response, error)

func (r roundTrip) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

// create creates a Pod of the web service with a readiness probe.
func (b *bench) create(name string, changes ...func(*corev1.Pod)) *corev1.Pod {
	b.Helper()
	object := buildPod(build("main", func(c *corev1.Container) {
		c.Image, c.Ports = "registry.example:5000/shop/web:v1", []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}
		c.ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, ProbeHandler: get("/readyz")}
	}))
	object.ObjectMeta = metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault}
	for _, change := range changes {
		change(object)
	}
	created, err := b.client.CoreV1().Pods(object.Namespace).Create(b.Context(), object, metav1.CreateOptions{})
	if err != nil {
		b.Fatal(err)
	}
	return created
}

func get(path string) corev1.ProbeHandler {
	return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString("http")}}
}

// await waits until the Pod exists and satisfies the condition.
func (b *bench) await(object *corev1.Pod, what string, condition func(*corev1.Pod) bool) (current *corev1.Pod) {
	b.Helper()
	eventually(b.T, object.Name+": "+what, func() bool {
		var err error
		current, err = b.client.CoreV1().Pods(object.Namespace).Get(b.Context(), object.Name, metav1.GetOptions{})
		return err == nil && current.UID == object.UID && condition(current)
	})
	return current
}

func (b *bench) awaitGone(object *corev1.Pod) {
	b.Helper()
	eventually(b.T, object.Name+" is gone", func() bool {
		_, err := b.client.CoreV1().Pods(object.Namespace).Get(b.Context(), object.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

func (b *bench) delete(object *corev1.Pod, options metav1.DeleteOptions) {
	b.Helper()
	if err := b.client.CoreV1().Pods(object.Namespace).Delete(b.Context(), object.Name, options); err != nil {
		b.Fatal(err)
	}
}

// patch changes the Pod with a strategic merge patch.
func (b *bench) patch(object *corev1.Pod, patch string, subresources ...string) {
	b.Helper()
	_, err := b.client.CoreV1().Pods(object.Namespace).Patch(b.Context(), object.Name,
		"application/strategic-merge-patch+json", []byte(patch), metav1.PatchOptions{}, subresources...)
	if err != nil {
		b.Fatal(err)
	}
}

// ask sends a GET to the Pod's own address; the answer is empty if there is none.
func (b *bench) ask(object *corev1.Pod, path string) string {
	request, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "http://"+object.Status.PodIP+":8080"+path, nil)
	if err != nil {
		b.Fatal(err)
	}
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return ""
	}
	defer func() { _ = response.Body.Close() }()
	body, _ := io.ReadAll(response.Body) // a broken connection is no answer
	return string(body)
}

func isReady(object *corev1.Pod) bool {
	return conditionTrue(object.Status.Conditions, corev1.PodReady)
}

func main(object *corev1.Pod) corev1.ContainerStatus {
	if len(object.Status.ContainerStatuses) == 0 {
		return corev1.ContainerStatus{}
	}
	return object.Status.ContainerStatuses[0]
}

// TestProcesses plays the lives of Pods whose containers are processes.
func TestProcesses(t *testing.T) {
	root, err := checkout.Find(os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	programs := t.TempDir()
	web := checkout.Program{Module: filepath.Join(root, "test"), Pkg: "./cmd/web", Out: filepath.Join(programs, "web")}
	if err := web.Compile(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	runtime, err := NewProcessRuntime(ProcessOptions{Images: ProgramDir(programs, "v1", "v2"), LogDir: t.TempDir()})
	b := newBench(t, runtime, err)
	for name, story := range map[string]func(*bench){
		"in-place update": inPlaceUpdate, "preStop": preStopSavesRequests, "finalizer": finalizerKeepsThePod, "replaced": replacedPod,
	} {
		t.Run(name, func(t *testing.T) { story(&bench{T: t, client: b.client}) })
	}
}

func inPlaceUpdate(b *bench) {
	object := b.create("updated", func(object *corev1.Pod) {
		object.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "usher.dev/test"}}
	})
	other := b.await(b.create("other"), "is ready", isReady)
	b.await(object, "only the containers are ready", func(object *corev1.Pod) bool {
		return conditionTrue(object.Status.Conditions, corev1.ContainersReady) && !isReady(object)
	})
	b.patch(object, `{"status":{"conditions":[{"type":"usher.dev/test","status":"True"}]}}`, "status")
	before := b.await(object, "is ready", isReady)
	b.patch(object, `{"spec":{"containers":[{"name":"main","image":"registry.example:5000/shop/web:v2"}]}}`)
	after := b.await(object, "is ready with the new image", func(object *corev1.Pod) bool {
		return isReady(object) && main(object).RestartCount == 1
	})
	if got := b.ask(after, "/"); !strings.Contains(got, `"v2"`) || !strings.Contains(got, after.Name) {
		b.Errorf("the Pod answers %q, want version v2", got)
	}
	if after.Status.PodIP != before.Status.PodIP || after.Status.PodIP == other.Status.PodIP || after.Status.HostIP != "127.0.0.1" {
		b.Errorf("address %s on %s after %s; another Pod has %s", after.Status.PodIP, after.Status.HostIP, before.Status.PodIP, other.Status.PodIP)
	}
}

// preStopSavesRequests deletes a Pod while it handles a request. The web service cuts
// requests on SIGTERM, so an answer shows that SIGTERM came after the hook.
func preStopSavesRequests(b *bench) {
	object := b.create("hooked", func(object *corev1.Pod) {
		hook := sleep(2)
		object.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &hook}
	})
	ready := b.await(object, "is ready", isReady)
	answer := make(chan string, 1)
	go func() { answer <- b.ask(ready, "/slow?d=1s") }()
	b.delete(object, metav1.DeleteOptions{})
	b.await(object, "is not ready while its hook runs", func(object *corev1.Pod) bool { return !isReady(object) })
	if got := <-answer; !strings.Contains(got, ready.Name) {
		b.Errorf("the request in flight was answered %q", got)
	}
	b.awaitGone(object)
	if b.ask(ready, "/") != "" {
		b.Error("the Pod is gone and still answers")
	}
}

func finalizerKeepsThePod(b *bench) {
	object := b.create("kept", func(object *corev1.Pod) {
		grace := int64(1)
		object.Finalizers, object.Spec.TerminationGracePeriodSeconds = []string{"usher.dev/test"}, &grace
		object.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "IGNORE_TERM", Value: "yes"}}
	})
	ready := b.await(object, "is ready", isReady)
	b.delete(object, metav1.DeleteOptions{})
	b.await(object, "ignores SIGTERM", func(object *corev1.Pod) bool { return !isReady(object) && main(object).State.Running != nil })
	ended := b.await(object, "is let go by the agent", func(object *corev1.Pod) bool { return *object.DeletionGracePeriodSeconds == 0 })
	if end := main(ended).State.Terminated; end == nil || end.ExitCode != 137 || ended.Status.Phase != corev1.PodFailed || b.ask(ready, "/") != "" {
		b.Errorf("end %+v in phase %s, want exit code 137 in a Pod that failed", end, ended.Status.Phase)
	}
	b.patch(object, `{"metadata":{"$deleteFromPrimitiveList/finalizers":["usher.dev/test"]}}`)
	b.awaitGone(object)
}

// replacedPod force-deletes a Pod and creates another of the same name, which must
// neither get the first one's container nor keep it alive.
func replacedPod(b *bench) {
	first := b.await(b.create("one"), "is ready", isReady)
	b.delete(first, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
	second := b.await(b.create("one"), "is ready", isReady)
	if second.Status.PodIP == first.Status.PodIP || main(second).ContainerID == main(first).ContainerID {
		b.Errorf("the second Pod has something of the first: %+v", second.Status)
	}
	eventually(b.T, "the first Pod's container ends", func() bool { return b.ask(first, "/") == "" })
}

func TestSimulatedPods(t *testing.T) {
	const count = 40
	runtime, err := NewSimulatedRuntime(SimulatedOptions{ReadyDelay: 100 * time.Millisecond})
	b := newBench(t, runtime, err)
	var objects []*corev1.Pod
	for i := range count {
		objects = append(objects, b.create(fmt.Sprint("web-", i), func(object *corev1.Pod) {
			object.Spec.NodeName = fmt.Sprint("node-", i%2+1)
			object.Spec.Containers[0].Resources = cpu("1")
		}))
	}
	for _, object := range objects {
		b.await(object, "is ready", isReady)
	}
	if got := b.writes.Load(); got != count {
		t.Errorf("%d status writes for %d Pods", got, count)
	}
	b.patch(objects[0], `{"spec":{"containers":[{"name":"main","resources":{"limits":{"cpu":"2"},"requests":{"cpu":"2"}}}]}}`, "resize")
	b.await(objects[0], "shows the resize", func(object *corev1.Pod) bool {
		return main(object).Resources.Limits.Cpu().String() == "2" && main(object).RestartCount == 0
	})
	for _, object := range objects {
		b.delete(object, metav1.DeleteOptions{})
	}
	for _, object := range objects {
		b.awaitGone(object)
	}
}
