// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/clustertest"
)

// shared is the control plane of all tests that need one, and the directory with the
// programs of their images. The first of these tests starts it.
var shared sharedCluster

type sharedCluster struct {
	once     sync.Once
	cluster  *cluster.Cluster
	end      func()
	programs string
	err      error
}

func (s *sharedCluster) start() {
	if s.programs, s.err = os.MkdirTemp("", "usher-programs-"); s.err != nil {
		return
	}
	build := exec.CommandContext(context.Background(), "go", "build", "-o", s.programs, "../../cmd/web")
	if output, err := build.CombinedOutput(); err != nil {
		s.err = fmt.Errorf("build the web service: %w: %s", err, output)
		return
	}
	s.cluster, s.end, s.err = clustertest.StartForMain()
}

func (s *sharedCluster) stop() {
	if s.end != nil {
		s.end()
	}
	if s.programs != "" {
		_ = os.RemoveAll(s.programs)
	}
}

// bench is an agent with its own nodes on the shared control plane.
type bench struct {
	*testing.T
	agent   *Agent
	client  kubernetes.Interface
	options Options
	// writes counts the agent's Pod status writes.
	writes *atomic.Int64
}

func newBench(t *testing.T, change func(*Options)) *bench {
	t.Helper()
	shared.once.Do(shared.start)
	if shared.err != nil {
		t.Fatalf("shared cluster: %v", shared.err)
	}
	client, err := kubernetes.NewForConfig(shared.cluster.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{T: t, client: client, writes: new(atomic.Int64), options: Options{
		Nodes: 1, NamePrefix: strings.ToLower(t.Name()) + "-", BackoffBase: 300 * time.Millisecond,
		Logger: testr.New(t),
	}}
	b.options.RESTConfig = shared.cluster.RESTConfig()
	b.options.RESTConfig.Wrap(func(next http.RoundTripper) http.RoundTripper { return countingTransport{next, b.writes} })
	if change != nil {
		change(&b.options)
	}
	b.startAgent()
	return b
}

type countingTransport struct {
	next   http.RoundTripper
	writes *atomic.Int64
}

func (c countingTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method == http.MethodPatch && strings.HasSuffix(request.URL.Path, "/status") {
		c.writes.Add(1)
	}
	return c.next.RoundTrip(request)
}

// startAgent starts the agent, in the process runtime unless another one is set.
func (b *bench) startAgent() {
	b.Helper()
	options := b.options
	if options.Runtime == nil {
		var err error
		options.Runtime, err = NewProcessRuntime(ProcessOptions{
			Images: ProgramDir(shared.programs, "v1", "v2"), LogDir: b.TempDir(), AddressSeed: hash32(b.Name()),
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	var err error
	if b.agent, err = Start(b.Context(), options); err != nil {
		b.Fatal(err)
	}
	agent := b.agent
	b.Cleanup(func() {
		if err := agent.Stop(context.Background()); err != nil {
			b.Error(err)
		}
	})
}

// webPod builds a Pod of the web service with a quick readiness probe.
func (b *bench) webPod(name string, changes ...func(*corev1.Pod)) *corev1.Pod {
	grace := int64(20)
	object := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: strings.ToLower(b.Name()) + "-" + name, Namespace: metav1.NamespaceDefault},
		Spec: corev1.PodSpec{
			NodeName: b.agent.Nodes()[0], TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{
				Name: "main", Image: "registry.example:5000/shop/web:v1",
				Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
				ReadinessProbe: &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{
					HTTPGet: &corev1.HTTPGetAction{Path: "/readyz", Port: intstr.FromString("http")}}},
			}},
		},
	}
	for _, change := range changes {
		change(object)
	}
	return object
}

// create creates the Pod once its namespace has a service account.
func (b *bench) create(object *corev1.Pod) *corev1.Pod {
	b.Helper()
	var created *corev1.Pod
	eventually(b.T, "the Pod "+object.Name+" can be created", func() bool {
		var err error
		created, err = b.client.CoreV1().Pods(object.Namespace).Create(b.Context(), object, metav1.CreateOptions{})
		if err != nil && !apierrors.IsForbidden(err) {
			b.Fatalf("create Pod: %v", err)
		}
		return err == nil
	})
	return created
}

// get reads the Pod; nil if it is gone.
func (b *bench) get(object *corev1.Pod) *corev1.Pod {
	b.Helper()
	current, err := b.client.CoreV1().Pods(object.Namespace).Get(b.Context(), object.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && current.UID != object.UID {
		return nil
	}
	if err != nil {
		b.Fatalf("get Pod: %v", err)
	}
	return current
}

// await waits until the Pod exists and satisfies the condition.
func (b *bench) await(object *corev1.Pod, what string, condition func(*corev1.Pod) bool) *corev1.Pod {
	b.Helper()
	var current *corev1.Pod
	done := false
	defer func() {
		if !done && current != nil {
			b.Logf("%s was last seen as %+v", object.Name, current.Status)
		}
	}()
	eventually(b.T, what, func() bool {
		current = b.get(object)
		return current != nil && condition(current)
	})
	done = true
	return current
}

func (b *bench) awaitGone(object *corev1.Pod) {
	b.Helper()
	eventually(b.T, "the Pod is gone", func() bool { return b.get(object) == nil })
}

func (b *bench) delete(object *corev1.Pod) {
	b.Helper()
	if err := b.client.CoreV1().Pods(object.Namespace).Delete(b.Context(), object.Name, metav1.DeleteOptions{}); err != nil {
		b.Fatalf("delete Pod: %v", err)
	}
}

// patch changes the Pod's spec, metadata or status with a strategic merge patch.
func (b *bench) patch(object *corev1.Pod, patch string, subresources ...string) {
	b.Helper()
	_, err := b.client.CoreV1().Pods(object.Namespace).Patch(b.Context(), object.Name,
		"application/strategic-merge-patch+json", []byte(patch), metav1.PatchOptions{}, subresources...)
	if err != nil {
		b.Fatalf("patch Pod: %v", err)
	}
}

func (b *bench) setImage(object *corev1.Pod, image string) {
	b.Helper()
	b.patch(object, fmt.Sprintf(`{"spec":{"containers":[{"name":"main","image":%q}]}}`, image))
}

// ask sends a GET to the Pod's own address.
func (b *bench) ask(object *corev1.Pod, path string) string {
	return fetch(b.Context(), "http://"+object.Status.PodIP+":8080"+path)
}

func isReady(object *corev1.Pod) bool {
	return conditionTrue(object.Status.Conditions, corev1.PodReady)
}

// main is the status of the Pod's container "main".
func main(object *corev1.Pod) corev1.ContainerStatus {
	if status := findStatus(object.Status.ContainerStatuses, "main"); status != nil {
		return *status
	}
	return corev1.ContainerStatus{}
}

func waitingFor(reasons ...string) func(*corev1.Pod) bool {
	return func(object *corev1.Pod) bool {
		state := main(object).State.Waiting
		for _, reason := range reasons {
			if state != nil && state.Reason == reason {
				return true
			}
		}
		return false
	}
}
