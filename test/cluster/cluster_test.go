// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/cluster/process"
)

// bound limits how long a test waits.
const bound = 30 * time.Second

// world is one running cluster, shared by the steps of TestCluster.
type world struct {
	cluster *cluster.Cluster
	admin   kubernetes.Interface
	audit   string
}

// TestCluster covers the life of a cluster from start to end.
func TestCluster(t *testing.T) {
	w := &world{audit: filepath.Join(t.TempDir(), "audit.log")}
	c, err := cluster.Start(t.Context(), cluster.Options{Dir: t.TempDir(), AuditLog: w.audit})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, c) })
	w.cluster, w.admin = c, client(t, c.RESTConfig())
	steps := []struct {
		name string
		run  func(*testing.T, *world)
	}{
		{"the version is the pinned one", testVersion},
		{"kubectl's configuration works", testKubeconfig},
		{"a user has the rights of RBAC only", testUser},
		{"a group has rights too", testGroup},
		{"controllers and scheduler work", testScheduling},
		{"the audit log tells the user agents", testAudit},
		{"a second cluster in the folder is refused", testSecondCluster},
		{"the API server stops and starts", testAPIServer},
		{"a component that ends is reported", testDeadComponent},
		{"the end leaves no process", testEnd},
	}
	for _, step := range steps {
		if !t.Run(step.name, func(t *testing.T) { step.run(t, w) }) {
			break
		}
	}
}

func client(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	set, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func clientFrom(t *testing.T, kubeconfig string) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return client(t, config)
}

func stop(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), bound)
	defer cancel()
	if err := c.Stop(ctx); err != nil {
		t.Errorf("stop: %v", err)
	}
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() error) {
	t.Helper()
	deadline := time.After(bound)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for err := holds(); err != nil; err = holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within %s: %s: %v", bound, what, err)
		}
	}
}

func testVersion(t *testing.T, w *world) {
	version, err := w.admin.Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	if version.GitVersion != w.cluster.Version() || version.GitVersion != "v1.36.3" || version.Major != "1" || version.Minor != "36" {
		t.Errorf("the server says %+v, pinned is %s", version, w.cluster.Version())
	}
}

func testKubeconfig(t *testing.T, w *world) {
	namespaces, err := clientFrom(t, w.cluster.Kubeconfig()).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(namespaces.Items) < 4 {
		t.Errorf("namespaces: %v, %v; want at least the four first ones", namespaces, err)
	}
	if config := w.cluster.RESTConfig(); config.QPS != -1 {
		t.Errorf("the client's rate limit is %v, want none", config.QPS)
	}
}

func testUser(t *testing.T, w *world) {
	path, err := w.cluster.UserKubeconfig("tester")
	if err != nil {
		t.Fatal(err)
	}
	user := clientFrom(t, path)
	list := func() error {
		_, err := user.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
		return err
	}
	if err := list(); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `"tester"`) {
		t.Fatalf("without a role: %v, want Forbidden for tester", err)
	}
	bind(t, w, "see-pods", rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "tester"})
	eventually(t, "the role is known", list)
	if err := user.CoreV1().Pods("default").Delete(t.Context(), "none", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a delete, which the role does not allow: %v, want Forbidden", err)
	}
}

func testGroup(t *testing.T, w *world) {
	path, err := w.cluster.UserKubeconfig("somebody", "crew")
	if err != nil {
		t.Fatal(err)
	}
	bind(t, w, "crew-sees-pods", rbacv1.Subject{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: "crew"})
	user := clientFrom(t, path)
	eventually(t, "the role is known", func() error {
		_, err := user.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
		return err
	})
}

// bind lets a subject see the Pods of the default namespace.
func bind(t *testing.T, w *world, name string, subject rbacv1.Subject) {
	t.Helper()
	role := &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}}},
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Subjects:   []rbacv1.Subject{subject},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
	}
	_, roleErr := w.admin.RbacV1().Roles("default").Create(t.Context(), role, metav1.CreateOptions{})
	_, bindErr := w.admin.RbacV1().RoleBindings("default").Create(t.Context(), binding, metav1.CreateOptions{})
	if err := errors.Join(roleErr, bindErr); err != nil {
		t.Fatal(err)
	}
}

// testScheduling creates a ReplicationController and a bare Node object: the controller
// manager creates the Pod and the scheduler binds it.
func testScheduling(t *testing.T, w *world) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "paper"}}
	node, err := w.admin.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("10")}
	node.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(),
	}}
	node.ResourceVersion = "" // the controller manager writes to a new node too
	if _, err := w.admin.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{"app": "web"}
	one := int32(1)
	rc := &corev1.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.ReplicationControllerSpec{Replicas: &one, Selector: labels, Template: &corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "example.org/web:1"}}},
		}},
	}
	if _, err := w.admin.CoreV1().ReplicationControllers("default").Create(t.Context(), rc, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a Pod is bound to the node", func() error {
		pods, err := w.admin.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
		if err != nil {
			return err
		}
		if len(pods.Items) != 1 || pods.Items[0].Spec.NodeName != "paper" {
			return errors.New("there is none yet")
		}
		return nil
	})
}

// auditEvent is what the tests read from a line of the audit log.
type auditEvent struct {
	Level, Stage, Verb, UserAgent string
	RequestObject                 json.RawMessage
	ObjectRef                     struct{ Resource string }
}

func readAudit(t *testing.T, path string) []auditEvent {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	events := []auditEvent{}
	for line := range strings.Lines(string(text)) {
		if !strings.HasSuffix(line, "\n") {
			continue // not fully written yet
		}
		var event auditEvent
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		events = append(events, event)
	}
	return events
}

func testAudit(t *testing.T, w *world) {
	creates := map[string]int{}
	for _, event := range readAudit(t, w.audit) {
		if event.Level != "Metadata" || event.RequestObject != nil || event.Stage == "RequestReceived" {
			t.Fatalf("want metadata of answered requests only, got %+v", event)
		}
		if event.Verb == "create" && event.ObjectRef.Resource == "pods" {
			agent, _, _ := strings.Cut(event.UserAgent, "/")
			creates[agent]++
		}
	}
	// The creation of the Pod itself, and the scheduler's binding.
	if creates["kube-controller-manager"] != 1 || creates["kube-scheduler"] != 1 {
		t.Errorf("Pod creations by user agent: %v; want one of the controller manager and one of the scheduler", creates)
	}
}

func testSecondCluster(t *testing.T, w *world) {
	_, err := cluster.Start(t.Context(), cluster.Options{Dir: w.cluster.Dir()})
	var inUse *cluster.InUseError
	if !errors.As(err, &inUse) || inUse.Dir != w.cluster.Dir() {
		t.Errorf("error is %v, want *InUseError", err)
	}
}

func testAPIServer(t *testing.T, w *world) {
	defaults := func() error {
		_, err := w.admin.CoreV1().ReplicationControllers("default").Get(t.Context(), "web", metav1.GetOptions{})
		return err
	}
	ends := map[string]func() error{
		"stopped": func() error { return w.cluster.StopAPIServer(t.Context()) },
		"killed":  w.cluster.KillAPIServer,
	}
	for _, how := range []string{"stopped", "killed"} {
		for range 2 { // the second has nothing to do
			if err := ends[how](); err != nil {
				t.Fatalf("%s: %v", how, err)
			}
		}
		if err := defaults(); err == nil {
			t.Fatalf("an API server that was %s answers", how)
		}
		for range 2 {
			if err := w.cluster.StartAPIServer(t.Context()); err != nil {
				t.Fatalf("start after it was %s: %v", how, err)
			}
		}
		if err := defaults(); err != nil {
			t.Fatalf("after it was %s and started: %v", how, err)
		}
	}
	if err := w.cluster.RestartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := defaults(); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	select {
	case <-w.cluster.Done():
		t.Errorf("an end that was asked for is reported: %v", w.cluster.Err())
	default:
	}
}

func components(t *testing.T, c *cluster.Cluster) []cluster.Component {
	t.Helper()
	list, err := c.Components()
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func testDeadComponent(t *testing.T, w *world) {
	all := components(t, w.cluster)
	names := []string{}
	for _, c := range all {
		names = append(names, c.Name)
	}
	if !slices.Equal(names, build.All()) {
		t.Fatalf("components are %q, want %q", names, build.All())
	}
	scheduler := all[3]
	if err := syscall.Kill(scheduler.Process.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-w.cluster.Done():
	case <-time.After(bound):
		t.Fatal("it is not reported")
	}
	var exit *process.ExitError
	if !errors.As(w.cluster.Err(), &exit) {
		t.Fatalf("reported is %v, want *process.ExitError", w.cluster.Err())
	}
	if exit.Name != build.Scheduler || exit.Status != "signal: killed" || len(exit.Tail) == 0 || exit.Log != scheduler.Log {
		t.Errorf("reported is %+v", exit)
	}
}

func testEnd(t *testing.T, w *world) {
	all := components(t, w.cluster)
	for range 2 {
		stop(t, w.cluster)
	}
	for _, c := range all {
		if (process.Table{}).Alive(c.Process) {
			t.Errorf("%s, process %d, still runs", c.Name, c.Process.PID)
		}
	}
	if left := components(t, w.cluster); len(left) > 0 {
		t.Errorf("components after the end: %+v", left)
	}
	if err := w.cluster.StartAPIServer(t.Context()); !errors.Is(err, cluster.ErrStopped) {
		t.Errorf("starting the API server of a stopped cluster: %v, want ErrStopped", err)
	}
}
