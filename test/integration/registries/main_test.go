// SPDX-License-Identifier: Apache-2.0

// Package registries_test runs connectors and the hook operator against real
// servers: etcd, gRPC's etcd resolver, and a Kubernetes API server.
//
// Tests that start no operator, and mostly wait, run side by side after the others: an
// operator would act on all namespaces.
package registries_test

import (
	"fmt"
	"os"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/clustertest"
)

// shared is the control plane of all stories of this package.
var shared *cluster.Cluster

func TestMain(m *testing.M) { os.Exit(runAll(m)) }

func runAll(m *testing.M) int {
	c, stop, err := clustertest.StartForMain()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer stop()
	if _, err := envtest.InstallCRDs(c.RESTConfig(), envtest.CRDInstallOptions{
		Paths: []string{"../../../config/crd"}, ErrorIfPathMissing: true,
	}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	shared = c
	return m.Run()
}
