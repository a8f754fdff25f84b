// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/internal/registration/registry/xds"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/clustertest"
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
func startXDS(t *testing.T, config *rest.Config, options xds.ServerOptions) *replica {
	t.Helper()
	probes := freePort(t)
	mgr := newManager(t, config, probes)
	options.Registerer = prometheus.NewRegistry()
	store, err := xds.Setup(t.Context(), mgr, options)
	registrytest.NoError(t, err)
	r := &replica{store: store, stop: runManager(t, mgr)}
	t.Cleanup(r.stop)
	registrytest.Eventually(t, "readiness", func() string { return get(t, "http://"+probes+"/readyz") })
	return r
}

// get returns what is wrong with the answer.
func get(t *testing.T, url string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(registrytest.Bounded(t), http.MethodGet, url, http.NoBody)
	registrytest.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	return registrytest.Unless(response.StatusCode == http.StatusOK, response.Status)
}

// mesh is a namespace whose entries a replica serves.
type mesh struct {
	registry.Connector
	*replica
	api       client.Client
	namespace string
	address   string
}

func newMesh(t *testing.T, on *cluster.Cluster) *mesh {
	t.Helper()
	address := freePort(t)
	return meshOf(t, on, startXDS(t, on.RESTConfig(), xds.ServerOptions{Address: address}), address)
}

// meshOf creates a namespace on a running replica.
func meshOf(t *testing.T, on *cluster.Cluster, r *replica, address string) *mesh {
	t.Helper()
	api := newAPI(t, on)
	m := &mesh{replica: r, api: api, namespace: newNamespace(t, api), address: address}
	m.connect(t)
	return m
}

// connect recreates the connector, as the process of the replica has it.
func (m *mesh) connect(t *testing.T) {
	t.Helper()
	c := registrytest.Connect(t, xds.New, xds.Options{Reader: m.api, Writer: m.api, Namespace: m.namespace, Store: m.store})
	m.Connector = c
}

// target is what clients dial.
func (m *mesh) target() string { return "xds:///web." + m.namespace }

// seed writes a slice, as another client.
func (m *mesh) seed(t *testing.T, slice discoveryv1.EndpointSlice, name, service string) {
	t.Helper()
	slice.Namespace, slice.Name, slice.AddressType = m.namespace, name, discoveryv1.AddressTypeIPv4
	slice.Labels = map[string]string{xds.LabelService: service, discoveryv1.LabelManagedBy: slice.Labels[discoveryv1.LabelManagedBy]}
	registrytest.NoError(t, m.api.Create(registrytest.Bounded(t), &slice))
}

func TestXDSConformance(t *testing.T) {
	t.Parallel()
	server := clustertest.Start(t)
	address := freePort(t)
	r := startXDS(t, server.RESTConfig(), xds.ServerOptions{Address: address})
	registrytest.Run(t, func(t *testing.T) registrytest.Fixture {
		// Each test begins with an empty namespace.
		m := meshOf(t, server, r, address)
		return registrytest.Fixture{
			Connector: m.Connector,
			HoldsBack: true,
			Seed: func(t *testing.T, service, id string) {
				m.seed(t, discoveryv1.EndpointSlice{
					ObjectMeta: metav1.ObjectMeta{
						Labels:      map[string]string{discoveryv1.LabelManagedBy: "usher.dev"},
						Annotations: map[string]string{"usher.dev/entries": `[{"id":"` + id + `","owner":{"uid":"uid-theirs"}}]`},
					},
					Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"},
						TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "theirs", UID: "uid-theirs"}}},
				}, "seed", service)
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
	if err := m.api.List(registrytest.Bounded(t), &list, client.InNamespace(m.namespace)); err != nil || len(list.Items) != 1 {
		t.Fatalf("%d slices, %v", len(list.Items), err)
	}
	labels := list.Items[0].Labels
	if _, named := labels[discoveryv1.LabelServiceName]; named || labels[xds.LabelService] != "web" {
		t.Errorf("the slice has the labels %v", labels)
	}
	registrytest.Remove(t, m, member(1))
	if err := m.api.List(registrytest.Bounded(t), &list, client.InNamespace(m.namespace)); err != nil || len(list.Items) != 0 {
		t.Errorf("%d slices are left, %v", len(list.Items), err)
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
	config := k.user(t)
	k.grant(t)
	address := freePort(t)
	m := meshOf(t, shared, startXDS(t, config, xds.ServerOptions{Address: address}), address)
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
	r := e.registryOf("xds-", usherv1alpha1.RegistrySpec{XDS: &usherv1alpha1.XDSRegistry{}})
	e.register(func(spec *usherv1alpha1.RegistrationSpec) {
		spec.Registries, spec.Instance.Service, spec.Instance.Port = []string{r.Name}, "web", intstr.FromInt32(port)
	})
	return e, e.cloneSet(lifecycleDemo(t))
}

// TestStoryXDS takes a Pod into and out of what the operator itself serves.
func TestStoryXDS(t *testing.T) {
	i := startMember(t, 9, 0, serveGRPC)
	e, set := newMeshEnv(t, i.Entry.Port)
	name := e.podOf(set, "aaaaa", appsv1alpha1.StateNormal).Name
	e.kubelet(name, i.Entry.Address, true)
	e.hasLabel(name, keyCreated, "false")
	c := dialXDS(t, plainBootstrap(e.xds), "xds:///web."+e.namespace)
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

// TestStoryXDSTraffic updates Pods in place and scales them in under calls. A Pod's
// server ends when its hook is released, as it would with a kubelet.
func TestStoryXDSTraffic(t *testing.T) {
	first := startMember(t, 41, 0, serveGRPC)
	port := first.Entry.Port
	servers := []*registrytest.Instance{first, startMember(t, 42, port, serveGRPC), startMember(t, 43, port, serveGRPC)}
	e, set := newMeshEnv(t, port)
	var names []string
	for n, id := range []string{"aaaaa", "bbbbb", "ccccc"} {
		name := e.podOf(set, id, appsv1alpha1.StateNormal).Name
		e.kubelet(name, servers[n].Entry.Address, true)
		e.hasLabel(name, keyCreated, "false")
		names = append(names, name)
	}
	c := dialXDS(t, plainBootstrap(e.xds), "xds:///web."+e.namespace)
	c.reaches(t, servers...)
	calls := c.talk(t)
	for n, name := range names {
		e.gate(name, appsv1alpha1.StatePreparingUpdate, keyInPlace, "false")
		servers[n].Kill()
		e.kubelet(name, servers[n].Entry.Address, false)
		servers[n] = startMember(t, 41+n, port, serveGRPC)
		e.state(name, appsv1alpha1.StateUpdated)
		e.kubelet(name, servers[n].Entry.Address, true)
		e.hasLabel(name, keyInPlace, "true")
		e.state(name, appsv1alpha1.StateNormal)
		servers[n].AwaitMore(t, 1)
	}
	for n, name := range names[:2] {
		e.gate(name, appsv1alpha1.StatePreparingDelete, keyDelete, "false")
		servers[n].Kill()
		e.delete(name)
	}
	servers[2].AwaitMore(t, 1)
	calls.noneLost(t)
}

// TestXDSUnservedStory reports what is missing in the Registry's status.
func TestXDSUnservedStory(t *testing.T) {
	e := newEnv(t)
	r := e.registryOf("xds-", usherv1alpha1.RegistrySpec{XDS: &usherv1alpha1.XDSRegistry{}})
	e.eventually("the status of the Registry", func() string {
		e.must(e.Get(t.Context(), client.ObjectKeyFromObject(r), r))
		c := meta.FindStatusCondition(r.Status.Conditions, usherv1alpha1.ConditionReachable)
		fits := c != nil && c.Status == metav1.ConditionFalse && strings.Contains(c.Message, "--xds-bind-address")
		return registrytest.Unless(fits, fmt.Sprintf("is %+v", r.Status))
	})
}
