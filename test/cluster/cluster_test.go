// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/cluster/process"
)

// bound limits how long a test waits.
const bound = 30 * time.Second

func client(t *testing.T, config *rest.Config, err error) kubernetes.Interface {
	t.Helper()
	registrytest.NoError(t, err)
	set, err := kubernetes.NewForConfig(config)
	registrytest.NoError(t, err)
	return set
}

// start starts a cluster and stops it at the end of the test.
func start(t *testing.T, o cluster.Options) *cluster.Cluster {
	t.Helper()
	c, err := cluster.Start(t.Context(), o)
	registrytest.NoError(t, err)
	t.Cleanup(func() {
		if err := c.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return c
}

// TestCluster covers the life of a cluster from start to end.
func TestCluster(t *testing.T) {
	dir, audit := t.TempDir(), filepath.Join(t.TempDir(), "audit.log")
	c := start(t, cluster.Options{Dir: dir, AuditLog: audit})
	admin := client(t, c.RESTConfig(), nil)
	version, err := admin.Discovery().ServerVersion()
	if err != nil || version.GitVersion != c.Version() {
		t.Errorf("the server is %v, %v; pinned is %s", version, err, c.Version())
	}
	_, err = cluster.Start(t.Context(), cluster.Options{Dir: dir})
	var inUse *cluster.InUseError
	if !errors.As(err, &inUse) || inUse.PID != os.Getpid() {
		t.Errorf("a second cluster in the directory: %v, want *InUseError", err)
	}
	user(t, c, admin)
	text, err := os.ReadFile(audit)
	if err != nil || !strings.Contains(string(text), `"user":{"username":"tester"`) || strings.Contains(string(text), `"stage":"RequestReceived"`) {
		t.Errorf("the audit log lacks a user's requests, or has each twice: %v", err)
	}
	apiServer(t, c, admin)
	end(t, c, dir)
}

// user checks that a user has the rights that RBAC grants, and no others.
func user(t *testing.T, c *cluster.Cluster, admin kubernetes.Interface) {
	path, err := c.UserKubeconfig("tester", "crew")
	registrytest.NoError(t, err)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%s: mode %v, %v; want 0600", path, info, err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	tester := client(t, config, err)
	list := func() error {
		_, err := tester.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
		return err
	}
	if err := list(); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `"tester"`) {
		t.Fatalf("without a role: %v, want Forbidden for tester", err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "crew"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: "crew"}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
	}
	if _, err := admin.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	registrytest.Eventually(t, "the role", func() string {
		err := list()
		return registrytest.Unless(err == nil, fmt.Sprint(err))
	})
	if err := tester.CoreV1().Pods("default").Delete(t.Context(), "none", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a delete, which the role does not allow: %v, want Forbidden", err)
	}
}

// apiServer checks that the API server ends and comes back with its data.
func apiServer(t *testing.T, c *cluster.Cluster, admin kubernetes.Interface) {
	read := func() error {
		_, err := admin.RbacV1().ClusterRoleBindings().Get(t.Context(), "crew", metav1.GetOptions{})
		return err
	}
	for range 2 { // the second has nothing to do
		registrytest.NoError(t, c.KillAPIServer())
	}
	if err := read(); err == nil {
		t.Fatal("an API server that was killed answers")
	}
	for range 2 {
		registrytest.NoError(t, c.StartAPIServer(t.Context()))
	}
	if err := read(); err != nil || c.Err() != nil {
		t.Fatalf("after it was killed and started: %v; the cluster: %v", err, c.Err())
	}
}

// unexpectedEnd checks that the end of a component is reported.
func unexpectedEnd(t *testing.T, c *cluster.Cluster) {
	registrytest.NoError(t, syscall.Kill(c.PIDs()[build.Scheduler], syscall.SIGKILL))
	select {
	case <-c.Done():
	case <-time.After(bound):
		t.Fatal("it is not reported")
	}
	var exit *process.ExitError
	if !errors.As(c.Err(), &exit) || exit.Name != build.Scheduler || exit.Status != "signal: killed" || len(exit.Tail) == 0 {
		t.Errorf("reported is %v", c.Err())
	}
}

// end checks that Stop ends all components and unlocks the directory.
func end(t *testing.T, c *cluster.Cluster, dir string) {
	pids := c.PIDs()
	if len(pids) != 4 {
		t.Fatalf("components are %v, want four", pids)
	}
	unexpectedEnd(t, c)
	lockedBy(t, dir, os.Getpid())
	for range 2 {
		if err := c.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
	for name, pid := range pids {
		if syscall.Kill(pid, 0) == nil {
			t.Errorf("%s, process %d, still runs", name, pid)
		}
	}
	lockedBy(t, dir, 0)
	if err := c.StartAPIServer(t.Context()); !errors.Is(err, cluster.ErrStopped) {
		t.Errorf("starting the API server of a stopped cluster: %v, want ErrStopped", err)
	}
}

// lockedBy checks which process runs a cluster in a directory.
func lockedBy(t *testing.T, dir string, want int) {
	t.Helper()
	if pid, err := cluster.Running(dir); pid != want || err != nil {
		t.Errorf("process %d runs a cluster, %v; want %d", pid, err, want)
	}
}

func TestFailedStart(t *testing.T) {
	dir := t.TempDir()
	_, err := cluster.Start(t.Context(), cluster.Options{Dir: dir, ExtraArgs: cluster.ExtraArgs{APIServer: []string{"--no-such-flag"}}})
	var exit *process.ExitError
	if !errors.As(err, &exit) || exit.Name != build.APIServer || !strings.Contains(err.Error(), "no-such-flag") {
		t.Fatalf("error is %v, want the API server's with its last lines", err)
	}
	lockedBy(t, dir, 0)
	other := t.TempDir()
	registrytest.NoError(t, os.WriteFile(filepath.Join(other, "thesis.txt"), nil, 0o600))
	if _, err := cluster.Start(t.Context(), cluster.Options{Dir: other}); err == nil || !strings.Contains(err.Error(), "thesis.txt") {
		t.Errorf("a directory with other files: %v", err)
	}
}

func TestEtcdKeepsItsDataAndPort(t *testing.T) {
	e, err := cluster.StartEtcd(t.Context(), t.TempDir(), cluster.EtcdOptions{})
	registrytest.NoError(t, err)
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{e.Endpoint()}, DialTimeout: bound})
	registrytest.NoError(t, err)
	defer func() { _ = c.Close() }()
	defer func() { _ = e.Close() }()
	for i, end := range []func() error{e.Kill, func() error { return nil }} {
		endpoint, pid := e.Endpoint(), e.PID()
		if _, err := c.Put(t.Context(), "web", string(rune('a'+i))); err != nil {
			t.Fatal(err)
		}
		registrytest.NoError(t, errors.Join(end(), e.Restart(t.Context())))
		got, err := c.Get(t.Context(), "web")
		if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != string(rune('a'+i)) || e.Endpoint() != endpoint || e.PID() == pid {
			t.Errorf("end %d: %v, %v at %s, process %d; it was at %s, process %d", i, got, err, e.Endpoint(), e.PID(), endpoint, pid)
		}
	}
}
