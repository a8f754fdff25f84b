// SPDX-License-Identifier: Apache-2.0

// Package registries_test runs connectors and the hook operator against real
// servers: etcd, gRPC's etcd resolver, and a Kubernetes API server.
package registries_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/clustertest"
)

// shared is the control plane of all stories of this package.
var shared *cluster.Cluster

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	c, stop, err := clustertest.StartForMain()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer stop()
	if err := applyCRDs(c.RESTConfig()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	shared = c
	return m.Run()
}
