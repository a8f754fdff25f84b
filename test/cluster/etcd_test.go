// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"errors"
	"net"
	"net/url"
	"strconv"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/process"
)

func startEtcd(t *testing.T) *cluster.Etcd {
	t.Helper()
	e, err := cluster.StartEtcd(t.Context(), t.TempDir(), cluster.EtcdOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Kill(); err != nil {
			t.Errorf("kill etcd: %v", err)
		}
	})
	return e
}

func etcdClient(t *testing.T, e *cluster.Etcd) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{e.Endpoint()}, DialTimeout: bound})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// dial returns nil if something listens on etcd's endpoint.
func dial(t *testing.T, e *cluster.Etcd) error {
	t.Helper()
	at, err := url.Parse(e.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(t.Context(), "tcp", at.Host)
	if err != nil {
		return err
	}
	return conn.Close()
}

func TestEtcdKeepsItsDataAndPort(t *testing.T) {
	cases := map[string]struct {
		end  func(*testing.T, *cluster.Etcd) error
		runs bool // after end
	}{
		"stopped": {func(t *testing.T, e *cluster.Etcd) error { return e.Stop(t.Context()) }, false},
		"killed":  {func(_ *testing.T, e *cluster.Etcd) error { return e.Kill() }, false},
		"running": {func(*testing.T, *cluster.Etcd) error { return nil }, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			e := startEtcd(t)
			endpoint, pid := e.Endpoint(), e.PID()
			if _, err := etcdClient(t, e).Put(t.Context(), "web-1", "127.0.0.1:8080"); err != nil {
				t.Fatal(err)
			}
			if err := c.end(t, e); err != nil {
				t.Fatal(err)
			}
			if runs := dial(t, e) == nil; runs != c.runs || (e.PID() != 0) != c.runs {
				t.Errorf("it runs: %t, process %d; want %t", runs, e.PID(), c.runs)
			}
			if err := e.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			if e.Endpoint() != endpoint || e.PID() == pid || e.Err() != nil {
				t.Errorf("endpoint %s, process %d, error %v after %s, %d", e.Endpoint(), e.PID(), e.Err(), endpoint, pid)
			}
			checkValue(t, e, "web-1", "127.0.0.1:8080")
		})
	}
}

func checkValue(t *testing.T, e *cluster.Etcd, key, want string) {
	t.Helper()
	got, err := etcdClient(t, e).Get(t.Context(), key)
	if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != want {
		t.Errorf("%s is %v, %v; want %s", key, got, err, want)
	}
}

func TestEtcdThatCrashesSaysSo(t *testing.T) {
	e := startEtcd(t)
	if err := syscall.Kill(e.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	var exit *process.ExitError
	eventually(t, "the crash is known", func() error {
		if !errors.As(e.Err(), &exit) {
			return errors.New("not yet")
		}
		return nil
	})
	if exit.Status != "signal: killed" {
		t.Errorf("status is %q", exit.Status)
	}
	if err := e.Restart(t.Context()); err != nil || e.Err() != nil {
		t.Errorf("restart: %v, then %v", err, e.Err())
	}
}

func TestTwoEtcdsDoNotMeet(t *testing.T) {
	first, second := startEtcd(t), startEtcd(t)
	if first.Endpoint() == second.Endpoint() {
		t.Errorf("both are at %s", first.Endpoint())
	}
	at, err := url.Parse(first.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(at.Port())
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	_, err = cluster.StartEtcd(t.Context(), t.TempDir(), cluster.EtcdOptions{Port: port})
	var inUse *cluster.PortInUseError
	if !errors.As(err, &inUse) || inUse.Port != port {
		t.Errorf("error is %v after %s, want *PortInUseError", err, time.Since(began))
	}
}
