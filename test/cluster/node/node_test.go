// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/cluster/process"
)

// shell returns an image that consists of the machine's shell.
func shell(string) (string, []string, error) { return "/bin/sh", []string{"APP_VERSION=v7"}, nil }

func newTestRuntime(t *testing.T) *processRuntime {
	t.Helper()
	r := NewProcessRuntime(ProcessOptions{Images: shell, LogDir: t.TempDir()}).(*processRuntime)
	t.Cleanup(func() { checktest.NoError(t, r.Close(context.Background())) })
	return r
}

// alive reports whether a process runs; a zombie does not.
func alive(pid string) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

func TestNothingOutlivesItsContainer(t *testing.T) {
	r := newTestRuntime(t)
	checktest.Must(r.Start(ContainerConfig{
		Pod: buildPod(), IP: "127.77.0.1", Exited: func() {},
		Container: &corev1.Container{Name: "main", Image: "shop/sh:v7", Args: []string{"-c", "sleep 600 & echo $!"}},
	}))(t)
	log := filepath.Join(r.options.LogDir, "shop_web-0_uid-1", "main", "0.log")
	registrytest.Until(t, "the container has a child", func() bool { return len(process.TailFile(log, 1)) > 0 })
	registrytest.Until(t, "the container's child ends", func() bool { return !alive(process.TailFile(log, 1)[0]) })
}

func TestProgramDir(t *testing.T) {
	dir := t.TempDir()
	checktest.NoError(t, os.WriteFile(filepath.Join(dir, "web"), nil, 0o755))
	for image, want := range map[string]string{
		"web:v1": "v1", "reg:5000/a/web:v2": "v2", "web": "", "web:v3": "", "other:v1": "", "web:": "",
	} {
		program, env, err := ProgramDir(dir, "v1", "v2")(image)
		if want == "" && err == nil || want != "" && (err != nil || program != filepath.Join(dir, "web") || env[0] != "APP_VERSION="+want) {
			t.Errorf("image %q: %s with %q, %v; want version %q", image, program, env, err, want)
		}
	}
	if _, _, err := ProgramDir(dir)("web:anything"); err != nil {
		t.Errorf("a tag is refused though none were named: %v", err)
	}
}

func TestAddressesAreEachPodsOwn(t *testing.T) {
	// Two clusters start at the same address.
	one, other := newAddressPool(loopbacks, 77), newAddressPool(loopbacks, 77)
	seen := map[string]bool{}
	for _, pool := range []*addressPool{one, one, other} {
		ip, err := pool.take("uid")
		if err != nil || seen[ip] || !strings.HasPrefix(ip, "127.") {
			t.Errorf("address %s, %v, beside %v", ip, err, seen)
		}
		seen[ip] = true
		defer pool.release("uid")
	}
}

// newIdleAgent creates an agent that does only what a test calls, with one Pod on the
// API server.
func newIdleAgent(t *testing.T, object *corev1.Pod) (a *Agent, reconcileIt func()) {
	t.Helper()
	a = newAgent(fake.NewClientBuilder().WithObjects(object).WithStatusSubresource(object).Build(), Options{Runtime: NewSimulatedRuntime(Traits{})})
	a.base, a.enqueue = t.Context(), func(types.NamespacedName) {}
	return a, func() {
		t.Helper()
		checktest.Must(a.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(object)}))(t)
	}
}

// TestCacheThatLags shows the agent the Pod as it was before the agent's last write: it
// must not act on it again.
func TestCacheThatLags(t *testing.T) {
	object := buildPod()
	object.ResourceVersion = "9"
	a, reconcileIt := newIdleAgent(t, object)
	key := client.ObjectKeyFromObject(object)
	for _, last := range []struct {
		version string
		want    corev1.PodPhase
	}{{"10", ""}, {"9", corev1.PodRunning}} {
		a.pods.Store(key, &pod{kubelet: &a.kubelet, uid: object.UID, version: last.version})
		reconcileIt()
		if err := a.client.Get(t.Context(), key, object); err != nil || object.Status.Phase != last.want {
			t.Errorf("after our version %s: phase %q, %v; want %q", last.version, object.Status.Phase, err, last.want)
		}
	}
}

// TestRecords: the agent has records only of existing Pods on its nodes.
func TestRecords(t *testing.T) {
	object, other := buildPod(), buildPod()
	other.Spec.NodeName = "another"
	recorded := func(a *Agent) bool {
		_, ok := a.pods.Load(client.ObjectKeyFromObject(object))
		return ok
	}
	a, reconcileIt := newIdleAgent(t, other)
	if reconcileIt(); recorded(a) {
		t.Error("the agent has a record of a Pod on another's node")
	}
	a, reconcileIt = newIdleAgent(t, object)
	if reconcileIt(); !recorded(a) {
		t.Error("the agent has no record of its Pod")
	}
	checktest.NoError(t, a.client.Delete(t.Context(), object))
	if reconcileIt(); recorded(a) {
		t.Error("the agent still has a record of a Pod that is gone")
	}
}

func TestSucceeds(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(map[string]int{"/ok": 200, "/moved": 302, "/missing": 404, "/broken": 503}[r.URL.Path])
	}))
	defer server.Close()
	for path, want := range map[string]bool{"/ok": true, "/moved": true, "/missing": false, "/broken": false} {
		checktest.Same(t, "GET "+path+" succeeds", want, succeeds(t.Context(), server.URL+path))
	}
	if server.Close(); succeeds(t.Context(), server.URL+"/ok") {
		t.Error("a GET of a server that is gone succeeds")
	}
}

// TestReadyAgain: a node whose lease has run out reports that it is ready, until that succeeds; other
// nodes do not write their status.
func TestReadyAgain(t *testing.T) {
	now := testclock.NewFakePassiveClock(time.Unix(1000, 0))
	stored := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
	stored.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}, {Type: corev1.NodeDiskPressure}}
	c := fake.NewClientBuilder().WithObjects(stored).WithStatusSubresource(stored).Build()
	a := &Agent{client: c, kubelet: kubelet{clock: now}}
	renewed := map[string]time.Time{}
	for _, step := range []struct {
		after time.Duration
		want  corev1.ConditionStatus
	}{
		{0, corev1.ConditionUnknown}, // it has reported that when it was registered
		{leaseDuration - 1, corev1.ConditionUnknown},
		{leaseDuration, corev1.ConditionTrue},
	} {
		now.SetTime(now.Now().Add(step.after))
		checktest.NoError(t, a.heartbeat(t.Context(), "node-1", renewed))
		node := &corev1.Node{}
		checktest.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: "node-1"}, node))
		if ready := node.Status.Conditions[0].Status; ready != step.want || len(node.Status.Conditions) != 2 {
			t.Errorf("after %s its conditions are %v, want Ready %s", step.after, node.Status.Conditions, step.want)
		}
	}
}
