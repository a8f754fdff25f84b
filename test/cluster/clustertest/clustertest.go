// SPDX-License-Identifier: Apache-2.0

// Package clustertest starts real control planes for tests.
//
// One cluster for one test:
//
//	c := clustertest.Start(t)
//
// One cluster for all tests of a package, which saves a start of some seconds per test:
//
//	func TestMain(m *testing.M) { os.Exit(run(m)) }
//
//	func run(m *testing.M) int {
//		c, stop, err := clustertest.StartForMain(nil)
//		if err != nil {
//			fmt.Fprintln(os.Stderr, err)
//			return 1
//		}
//		defer stop()
//		shared = c
//		return m.Run()
//	}
//
// The first start on a machine builds the control plane, which takes minutes: go test's
// time-out of ten minutes is enough for that on two cores.
package clustertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/process"
)

const (
	// stopTimeout bounds the stop at the end of a test.
	stopTimeout = 30 * time.Second
	// shownLines is how much of each log a failed test shows.
	shownLines = 30
)

// heap lets the components collect garbage less often, which saves a seventh of their
// time, and a twelfth of the test's own.
var heap = map[string]string{"GOGC": "400", "GOMEMLIMIT": "1GiB"}

// Start starts a cluster in a temporary directory and stops it at the end of the test.
// If the test has failed, or a component has ended on its own, it shows the end of each
// component's log.
func Start(t *testing.T) *cluster.Cluster {
	t.Helper()
	return StartWith(t, nil)
}

// StartWith is Start with more arguments of the components.
func StartWith(t *testing.T, extra cluster.ExtraArgs) *cluster.Cluster {
	t.Helper()
	return startFor(t, cluster.Options{ExtraArgs: extra})
}

// StartFrom is Start of a cluster that begins with a snapshot of another one.
func StartFrom(t *testing.T, snapshot string) *cluster.Cluster {
	t.Helper()
	return startFor(t, cluster.Options{Snapshot: snapshot})
}

func startFor(t *testing.T, opts cluster.Options) *cluster.Cluster {
	t.Helper()
	c, err := start(t.Context(), t.TempDir(), opts)
	if err != nil {
		t.Fatalf("start a cluster: %v", err)
	}
	t.Cleanup(func() {
		if err := stop(c); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			for _, log := range c.Logs() {
				t.Log(tail(log))
			}
		}
	})
	return c
}

// stop ends a cluster, and says if a component had ended before.
func stop(c *cluster.Cluster) error {
	ended := c.Err()
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	return errors.Join(ended, c.Stop(ctx))
}

// StartEtcd starts a stand-alone etcd in a temporary directory and stops it at the end
// of the test.
func StartEtcd(t *testing.T) *cluster.Etcd {
	t.Helper()
	return StartEtcdWith(t, cluster.EtcdOptions{})
}

// StartEtcdWith is StartEtcd with options.
func StartEtcdWith(t *testing.T, o cluster.EtcdOptions) *cluster.Etcd {
	t.Helper()
	e, err := cluster.StartEtcd(t.Context(), t.TempDir(), o)
	if err != nil {
		t.Fatalf("start etcd: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(tail(e.Log()))
		}
		if err := e.Close(); err != nil {
			t.Errorf("stop etcd: %v", err)
		}
	})
	return e
}

// StartForMain starts a cluster in a temporary directory for a TestMain, with further arguments of its
// components. Call stop after the tests; it also removes the directory.
func StartForMain(extra cluster.ExtraArgs) (c *cluster.Cluster, end func(), err error) {
	dir, err := os.MkdirTemp("", "usher-cluster-")
	if err != nil {
		return nil, nil, fmt.Errorf("make a folder for the cluster: %w", err)
	}
	c, err = start(context.Background(), dir, cluster.Options{ExtraArgs: extra})
	if err != nil {
		return nil, nil, err
	}
	return c, func() {
		if err := errors.Join(stop(c), os.RemoveAll(dir)); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}, nil
}

func tail(log string) string {
	return "--- the end of " + filepath.Base(log) + "\n" + strings.Join(process.TailFile(log, shownLines), "\n")
}

func start(ctx context.Context, dir string, opts cluster.Options) (*cluster.Cluster, error) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400) // the runtime of this process has read the environment already
	}
	for name, value := range heap {
		if os.Getenv(name) == "" {
			_ = os.Setenv(name, value) // The defaults of Go work too.
		}
	}
	opts.Dir = filepath.Join(dir, "cluster")
	return cluster.Start(ctx, opts)
}
