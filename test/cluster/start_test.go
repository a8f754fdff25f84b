// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/cluster/process"
	"github.com/usher-dev/usher/test/cluster/progress"
)

// thief takes the API server's port once, between its choice and its use.
type thief struct {
	t    *testing.T
	dir  string
	once sync.Once
	took string
}

func (th *thief) hear(e progress.Event) {
	if e.Task != build.APIServer || e.State != progress.Starting {
		return
	}
	th.once.Do(func() {
		config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(th.dir, "kubeconfig"))
		if err != nil {
			th.t.Error(err)
			return
		}
		th.took = config.Host
		var listen net.ListenConfig
		l, err := listen.Listen(th.t.Context(), "tcp", strings.TrimPrefix(config.Host, "https://"))
		if err != nil {
			th.t.Error(err)
			return
		}
		th.t.Cleanup(func() { _ = l.Close() })
	})
}

func TestAStartThatLosesAPortTakesAnother(t *testing.T) {
	th := &thief{t: t, dir: t.TempDir()}
	c, err := cluster.Start(t.Context(), cluster.Options{Dir: th.dir, Tell: th.hear})
	if err != nil {
		t.Fatal(err)
	}
	defer stop(t, c)
	if th.took == "" || c.Server() == th.took {
		t.Errorf("the cluster is at %s, the thief at %q", c.Server(), th.took)
	}
	if _, err := client(t, c.RESTConfig()).Discovery().ServerVersion(); err != nil {
		t.Error(err)
	}
}

func TestAStartThatLosesAFixedPortSaysSo(t *testing.T) {
	// The port of an etcd that has just ended is free, and outside the range that the
	// kernel assigns to others.
	e := startEtcd(t)
	at, err := url.Parse(e.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(at.Port())
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	th := &thief{t: t, dir: t.TempDir()}
	_, err = cluster.Start(t.Context(), cluster.Options{Dir: th.dir, Port: port, Tell: th.hear})
	var inUse *cluster.PortInUseError
	if !errors.As(err, &inUse) || inUse.Port != port {
		t.Errorf("error is %v, want *PortInUseError", err)
	}
}

func TestAStartThatFailsNamesTheComponent(t *testing.T) {
	dir := t.TempDir()
	_, err := cluster.Start(t.Context(), cluster.Options{
		Dir: dir, ExtraArgs: cluster.ExtraArgs{APIServer: []string{"--no-such-flag"}},
	})
	var exit *process.ExitError
	if !errors.As(err, &exit) || exit.Name != build.APIServer || !strings.Contains(err.Error(), "no-such-flag") {
		t.Fatalf("error is %v, want the API server's with its last words", err)
	}
	// The directory is free again, and nothing disturbs the next start.
	etcdLog := filepath.Join(dir, "logs", "etcd.log")
	if _, err := os.Stat(etcdLog); err != nil {
		t.Errorf("the logs are gone: %v", err)
	}
	again, err := cluster.Start(t.Context(), cluster.Options{Dir: dir})
	if err != nil {
		t.Fatalf("the next start: %v", err)
	}
	stop(t, again)
	<-again.Done()
	if err := again.Err(); err != nil {
		t.Errorf("after a stop: %v", err)
	}
}

// etcd is killed while the API server starts: the start must report that at once,
// instead of later blaming the API server, which waits for etcd.
func TestAStartNoticesThatAnotherComponentEnds(t *testing.T) {
	dir := t.TempDir()
	var killed sync.Once
	_, err := cluster.Start(t.Context(), cluster.Options{Dir: dir, Tell: func(e progress.Event) {
		if e.Task != build.APIServer || e.State != progress.Starting {
			return
		}
		killed.Do(func() {
			pid := pidOf(t, filepath.Join(dir, "etcd"))
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Errorf("kill etcd: %v", err)
			}
		})
	}})
	var exit *process.ExitError
	if !errors.As(err, &exit) || exit.Name != build.Etcd {
		t.Fatalf("error is %v, want the end of etcd", err)
	}
}

// pidOf finds the process that has an argument.
func pidOf(t *testing.T, argument string) int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(line), "="+argument+"\x00") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			t.Fatal(err)
		}
		return pid
	}
	t.Fatalf("no process has the argument %s", argument)
	return 0
}
