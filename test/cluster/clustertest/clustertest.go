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
//		c, stop, err := clustertest.StartForMain()
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
	"fmt"
	"os"
	"path/filepath"
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
// time.
var heap = map[string]string{"GOGC": "400", "GOMEMLIMIT": "1GiB"}

// Option changes the options of a test's cluster.
type Option func(*cluster.Options)

// WithExtraArgs appends arguments to those of the components.
func WithExtraArgs(extra cluster.ExtraArgs) Option {
	return func(o *cluster.Options) { o.ExtraArgs = extra }
}

// Start starts a cluster in a temporary directory and stops it at the end of the test.
// If the test has failed, or a component has ended on its own, it shows the end of each
// component's log.
func Start(t *testing.T, opts ...Option) *cluster.Cluster {
	t.Helper()
	c, err := start(t.Context(), t.TempDir(), opts)
	if err != nil {
		t.Fatalf("start a cluster: %v", err)
	}
	t.Cleanup(func() {
		if err := c.Err(); err != nil {
			t.Errorf("a component ended during the test: %v", err)
		}
		if t.Failed() {
			t.Log(tails(c))
		}
		// t.Context() has ended by now.
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		if err := c.Stop(ctx); err != nil {
			t.Errorf("stop the cluster: %v", err)
		}
	})
	return c
}

// StartEtcd starts a stand-alone etcd in a temporary directory and stops it at the end
// of the test.
func StartEtcd(t *testing.T) *cluster.Etcd {
	t.Helper()
	e, err := cluster.StartEtcd(t.Context(), t.TempDir(), cluster.EtcdOptions{})
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

// StartForMain starts a cluster in a temporary directory for a TestMain. Call stop
// after the tests; it also removes the directory.
func StartForMain() (c *cluster.Cluster, stop func(), err error) {
	dir, err := os.MkdirTemp("", "usher-cluster-")
	if err != nil {
		return nil, nil, fmt.Errorf("make a folder for the cluster: %w", err)
	}
	c, err = start(context.Background(), dir, nil)
	if err != nil {
		return nil, nil, err
	}
	return c, func() {
		if err := c.Err(); err != nil {
			fmt.Fprintln(os.Stderr, "a component ended during the tests:", err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		if err := c.Stop(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "stop the cluster:", err)
		}
		_ = os.RemoveAll(dir)
	}, nil
}

// tails are the last lines of the logs of all components, for a failed test.
func tails(c *cluster.Cluster) string {
	parts := []string{}
	for _, log := range c.Logs() {
		parts = append(parts, tail(log))
	}
	return strings.Join(parts, "\n")
}

func tail(log string) string {
	return "--- the end of " + filepath.Base(log) + "\n" + strings.Join(process.TailFile(log, shownLines), "\n")
}

func start(ctx context.Context, dir string, opts []Option) (*cluster.Cluster, error) {
	for name, value := range heap {
		if os.Getenv(name) == "" {
			_ = os.Setenv(name, value) // The defaults of Go work too.
		}
	}
	options := cluster.Options{Dir: filepath.Join(dir, "cluster")}
	for _, opt := range opts {
		opt(&options)
	}
	return cluster.Start(ctx, options)
}
