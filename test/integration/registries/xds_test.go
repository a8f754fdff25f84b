// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/internal/registration/registry/xds"
	"github.com/usher-dev/usher/test/integration/scene"
	"github.com/usher-dev/usher/test/servers/run"
)

// freePort returns a free loopback address, for a server that restarts on it.
func freePort(t *testing.T) string {
	t.Helper()
	ports, err := run.FreePorts(t.Context(), 1)
	registrytest.NoError(t, err)
	return fmt.Sprintf("127.0.0.1:%d", ports[0])
}

// replica is only Usher's xDS server.
type replica struct {
	store *xds.Store
	stop  func()
}

// startXDS starts one, and returns when it answers.
func startXDS(s *scene.Scene, config *rest.Config, o xds.ServerOptions) *replica {
	s.Helper()
	r, probes, manager := &replica{}, freePort(s.T), options()
	manager.HealthProbeBindAddress = probes
	r.stop = s.Manage(config, manager, func(ctx context.Context, mgr ctrl.Manager) (err error) {
		o.Registerer = prometheus.NewRegistry()
		r.store, err = xds.Setup(ctx, mgr, o)
		return err
	})
	registrytest.Until(s.T, "readiness", func() bool {
		_, err := run.HTTP{Address: "http://" + probes}.Do(s.Context(), http.MethodGet, "/readyz", nil, nil)
		return err == nil
	})
	return r
}

// mesh is a namespace whose entries a replica serves.
type mesh struct {
	registry.Connector
	*replica
	*scene.Scene
	address string
}

func newMesh(t *testing.T, on *scene.Plane) *mesh {
	t.Helper()
	s, address := on.Begin(t), freePort(t)
	return meshOf(s, startXDS(s, s.RESTConfig(), xds.ServerOptions{Address: address}), address)
}

// meshOf is a mesh on a running replica.
func meshOf(s *scene.Scene, r *replica, address string) *mesh {
	s.Helper()
	m := &mesh{replica: r, Scene: s, address: address}
	m.connect()
	return m
}

// connect recreates the connector, as the process of the replica has it.
func (m *mesh) connect() {
	m.Helper()
	c := registrytest.Connect(m.T, xds.New, xds.Options{Reader: m.Scene, Writer: m.Scene, Namespace: m.Namespace, Store: m.store})
	m.Connector = c
}

// target is what clients dial.
func (m *mesh) target() string { return "xds:///web." + m.Namespace }

func TestXDSConformance(t *testing.T) {
	t.Parallel()
	server, address := newPlane(t), freePort(t)
	r := startXDS(server.Begin(t), server.RESTConfig(), xds.ServerOptions{Address: address})
	registrytest.Run(t, func(t *testing.T) registrytest.Fixture {
		// Each test begins with an empty namespace.
		m := meshOf(server.Begin(t), r, address)
		return registrytest.Fixture{
			Connector: m.Connector,
			HoldsBack: true,
			Seed: func(_ *testing.T, service, id string) {
				seed(m.Scene, "seed", xds.LabelService, service, "usher.dev", theirs(id))
			},
			Break: server.KillAPIServer, Mend: server.StartAPIServer,
		}
	})
}

// TestXDSHidden hides entries from readers of Services.
func TestXDSHidden(t *testing.T) {
	m := newMesh(t, shared)
	registrytest.Put(t, m, member(1))
	var list discoveryv1.EndpointSliceList
	if m.All(&list); len(list.Items) != 1 {
		t.Fatalf("%d slices", len(list.Items))
	}
	labels := list.Items[0].Labels
	if _, named := labels[discoveryv1.LabelServiceName]; named || labels[xds.LabelService] != "web" {
		t.Errorf("the slice has the labels %v", labels)
	}
	registrytest.Remove(t, m, member(1))
	if m.All(&list); len(list.Items) != 0 {
		t.Errorf("%d slices are left", len(list.Items))
	}
}

// TestXDSBehind confirms nothing that this replica does not serve.
func TestXDSBehind(t *testing.T) {
	m := newMesh(t, shared)
	registrytest.Put(t, m, member(1))
	m.stop()
	registrytest.NoError(t, registrytest.TryPut(t, m, member(2)))
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err := m.List(ctx, "web")
	registrytest.Check(t, "a list that is not served", err, registry.ErrTransient, "does not serve the change of EndpointSlice web-usher-")
}

// TestXDSRights serves with the operator's rights, and not without.
func TestXDSRights(t *testing.T) {
	k := newKube(t, shared)
	config := k.user()
	k.grant()
	address := freePort(t)
	m := meshOf(k.Scene, startXDS(k.Scene, config, xds.ServerOptions{Address: address}), address)
	registrytest.Put(t, m, member(1))
	registrytest.Only(t, m)
}

// newMeshEnv begins a story in which the operator itself serves the Pods with app=nginx.
func newMeshEnv(t *testing.T, port int32) (*env, *appsv1alpha1.CloneSet) {
	t.Helper()
	e := newEnv(t)
	e.stop()
	e.xds = freePort(t)
	e.start()
	e.register(e.registryOf("xds-", "xds: {}").Name, fmt.Sprintf("spec: {instance: {service: web, port: %d}}", port))
	return e, e.cloneSet("lifecycle.yaml")
}

// TestStoryXDS takes a Pod into and out of what the operator itself serves.
func TestStoryXDS(t *testing.T) {
	i := startMember(t, 9, 0, serveGRPC)
	e, set := newMeshEnv(t, i.Entry.Port)
	name := e.podOf(set, "aaaaa")
	e.kubelet(name, i.Entry.Address)
	e.hasLabel(name, keyCreated, "false")
	c := dialXDS(t, plainBootstrap(e.xds), "xds:///web."+e.Namespace)
	c.reaches(t, i)
	reachesNone := func() {
		t.Helper()
		if err := c.call(registrytest.Bounded(t), false); err == nil {
			t.Error("the hook is released, and calls still find the Pod")
		}
	}
	e.gate(name, appsv1alpha1.StatePreparingUpdate, keyInPlace, "false")
	reachesNone()
	e.gate(name, appsv1alpha1.StateUpdated, keyInPlace, "true")
	c.reaches(t, i)
	e.state(name, appsv1alpha1.StateNormal)
	e.gate(name, appsv1alpha1.StatePreparingDelete, keyDelete, "false")
	reachesNone()
	e.delete(name)
}

// TestXDSUnservedStory reports what is missing in the Registry's status.
func TestXDSUnservedStory(t *testing.T) {
	e := newEnv(t)
	r := e.registryOf("xds-", "xds: {}")
	e.Condition(r, usherv1alpha1.ConditionReachable, metav1.ConditionFalse, "--xds-bind-address")
}
