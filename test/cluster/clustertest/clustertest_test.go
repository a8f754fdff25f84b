// SPDX-License-Identifier: Apache-2.0

package clustertest_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/discovery"

	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/clustertest"
	"github.com/usher-dev/usher/test/cluster/process"
)

// works asks the API server for its version.
func works(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	client, err := discovery.NewDiscoveryClientForConfig(c.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	version, err := client.ServerVersion()
	if err != nil || version.GitVersion != c.Version() {
		t.Errorf("version %v, %v; want %s", version, err, c.Version())
	}
}

// ended checks that nothing is left of a cluster.
func ended(t *testing.T, c *cluster.Cluster, before []cluster.Component) {
	t.Helper()
	select {
	case <-c.Done():
	default:
		t.Error("the cluster was not stopped")
	}
	for _, component := range before {
		if (process.Table{}).Alive(component.Process) {
			t.Errorf("%s, process %d, still runs", component.Name, component.Process.PID)
		}
	}
}

func running(t *testing.T, c *cluster.Cluster) []cluster.Component {
	t.Helper()
	list, err := c.Components()
	if err != nil || len(list) != 4 {
		t.Fatalf("components: %v, %v; want four", list, err)
	}
	return list
}

func TestStart(t *testing.T) {
	audit := filepath.Join(t.TempDir(), "audit.log")
	var c *cluster.Cluster
	var before []cluster.Component
	t.Run("the test that has the cluster", func(t *testing.T) {
		c = clustertest.Start(t, clustertest.WithAuditLog(audit),
			clustertest.WithExtraArgs(cluster.ExtraArgs{ControllerManager: []string{"--node-monitor-grace-period=10s"}}))
		works(t, c)
		before = running(t, c)
		tails := clustertest.Tails(c)
		for _, name := range []string{"etcd.log", "kube-apiserver.log", "kube-controller-manager.log", "kube-scheduler.log"} {
			if !strings.Contains(tails, "--- the end of "+name+"\n") {
				t.Errorf("the tails lack %s", name)
			}
		}
	})
	ended(t, c, before)
	if info, err := os.Stat(audit); err != nil || info.Size() == 0 {
		t.Errorf("audit log: %v", err)
	}
}

func TestStartForMain(t *testing.T) {
	c, stop, err := clustertest.StartForMain()
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	works(t, c)
	before := running(t, c)
	stop()
	ended(t, c, before)
	if _, err := os.Stat(c.Dir()); !os.IsNotExist(err) {
		t.Errorf("the folder %s is left: %v", c.Dir(), err)
	}
}

func TestStartEtcd(t *testing.T) {
	var e *cluster.Etcd
	t.Run("the test that has it", func(t *testing.T) {
		e = clustertest.StartEtcd(t)
		if e.PID() == 0 || e.Err() != nil {
			t.Errorf("process %d, error %v", e.PID(), e.Err())
		}
	})
	if e.PID() != 0 {
		t.Errorf("process %d still runs", e.PID())
	}
	if err := e.Stop(context.Background()); err != nil {
		t.Errorf("stopping it again: %v", err)
	}
}
