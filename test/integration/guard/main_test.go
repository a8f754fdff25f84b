// SPDX-License-Identifier: Apache-2.0

// Package guard_test deletes, evicts and scales Pods on a real API server with the guard's
// webhook as the chart installs it, real controllers, and simulated nodes. A witness checks
// that no Pod is deleted while a registry lists it, or before its callers can know.
package guard_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/internal/guard/endpoint"
	"github.com/usher-dev/usher/internal/registration"
	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/cluster/node"
	"github.com/usher-dev/usher/test/integration/scene"
)

var (
	// plane is the control plane of all stories. Its client repeats requests as every client
	// of client-go does.
	plane *scene.Plane
	// callers are those of the registry and of Services, seen the whole time.
	callers = newWitness()
	// door is the address that the guard serves, host and port.
	door string
	// policies means that the API server puts the readiness gate on Pods, in namespaces that
	// ask for it. Before Kubernetes 1.36 templates have to.
	policies bool
)

// service names the guard's Service, Secret and configuration.
var service = endpoint.Service{Namespace: "usher-system", Name: checkout.GuardName}

func TestMain(m *testing.M) { scene.Main(m, evictionFlags(), setUp) }

func setUp(ctx context.Context, p *scene.Plane) error {
	plane = p
	var err error
	if p.WithWatch, err = client.NewWithWatch(somebody(), client.Options{Scheme: p.Scheme()}); err != nil {
		return err
	}
	if err := startNodes(ctx); err != nil {
		return err
	}
	if err := createRegistries(ctx); err != nil {
		return err
	}
	if err := installPolicy(ctx); err != nil {
		return err
	}
	if door, err = p.StartUsher(ctx, scene.Root, service, registration.Options{
		Connect: callers.connect, DialPods: programs.dial, DialApplications: asked.dial, Evictions: evictionRequests,
	}); err != nil {
		return err
	}
	if err := startEvictions(ctx); err != nil {
		return err
	}
	asked.serve(ctx, asked)
	programs.serve(ctx, programs)
	if err := startCloud(ctx); err != nil {
		return err
	}
	return callers.follow(ctx)
}

// somebody is another user than Usher: the guard lets Usher's own delete a CloneSet's Pods.
func somebody() *rest.Config {
	config := plane.RESTConfig()
	config.Impersonate = rest.ImpersonationConfig{UserName: "somebody", Groups: []string{"system:masters"}}
	return config
}

// createRegistries creates the Registries that the witness plays.
func createRegistries(ctx context.Context) error {
	for name, spec := range map[string]string{
		"memory":       `{etcd: {endpoints: ["http://127.0.0.1:1"]}}`,
		"applications": `{repairInterval: 5s, eureka: {address: "http://127.0.0.1:1"}}`,
		"asking":       `{repairInterval: 5s, insecure: true, zookeeper: {layout: Curator, servers: ["127.0.0.1:1"]}}`,
	} {
		object, err := scene.Parse("{apiVersion: usher.dev/v1alpha1, kind: Registry, spec: " + spec + "}")
		if err != nil {
			return err
		}
		object.SetName(name)
		if err := plane.Create(ctx, object); err != nil {
			return err
		}
	}
	return nil
}

// startNodes starts two nodes, and others that only DaemonSets use: they are cordoned.
func startNodes(ctx context.Context) error {
	const nodes = 8
	err := scene.StartNodes(ctx, plane.Cluster, nodes, 0, node.Traits{DeleteDelay: 20 * time.Millisecond})
	for i := 3; i <= nodes && err == nil; i++ {
		other := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i)}}
		err = plane.Patch(ctx, other, client.RawPatch(types.MergePatchType, []byte(`{"spec": {"unschedulable": true}}`)))
	}
	return err
}

// installPolicy creates the policy that the chart makes for the readiness gate, and the one that names Usher as
// a responder of evictions.
func installPolicy(ctx context.Context) error {
	objects, err := checkout.ReadObjects(scene.Root + "/tools/chart/testdata/golden/guard.yaml")
	if err == nil && evictionRequests {
		var more []*unstructured.Unstructured
		more, err = checkout.ReadObjects(scene.Root + "/tools/chart/testdata/golden/evictions.yaml")
		objects = append(objects, more...)
	}
	if err != nil {
		return err
	}
	for _, object := range objects {
		if !strings.HasPrefix(object.GetKind(), "MutatingAdmissionPolicy") {
			continue
		}
		if err := plane.Create(ctx, object); err != nil {
			if apimeta.IsNoMatchError(err) {
				return nil
			}
			return err
		}
		policies = true
	}
	return nil
}
