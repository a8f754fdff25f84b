// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/internal/registration/registry/xds"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/clustertest"
)

// freePort is a free loopback address, for a server that restarts on it.
func freePort(t *testing.T) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

// replica is only Usher's xDS server.
type replica struct {
	store *xds.Store
	stop  func()
}

// startXDS starts one, and returns when it answers.
func startXDS(t *testing.T, config *rest.Config, options xds.ServerOptions) *replica {
	t.Helper()
	probes, log := freePort(t), quiet(t)
	ctrl.SetLogger(log)
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme(), Logger: log, Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: probes,
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{&discoveryv1.EndpointSlice{}: xds.Cache()}},
	})
	if err != nil {
		t.Fatal(err)
	}
	options.Registerer = prometheus.NewRegistry()
	store, err := xds.Setup(t.Context(), mgr, options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	r := &replica{store: store, stop: sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the xDS server ended with: %v", err)
		}
	})}
	t.Cleanup(r.stop)
	(&env{T: t}).eventually("readiness", func() string { return get(t, "http://"+probes+"/readyz") })
	return r
}

// get returns what is wrong with the answer.
func get(t *testing.T, url string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(bounded(t), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return response.Status
	}
	return ""
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
	c, err := client.New(on.RESTConfig(), client.Options{Scheme: scheme()})
	if err != nil {
		t.Fatal(err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "mesh-"}}
	if err := c.Create(bounded(t), namespace); err != nil {
		t.Fatal(err)
	}
	m := &mesh{replica: r, api: c, namespace: namespace.Name, address: address}
	m.connect(t)
	return m
}

// connect recreates the connector, as the process of the replica has it.
func (m *mesh) connect(t *testing.T) {
	t.Helper()
	c, err := xds.New(xds.Options{Reader: m.api, Writer: m.api, Namespace: m.namespace, Store: m.store})
	if err != nil {
		t.Fatal(err)
	}
	m.Connector = c
}

// target is what clients dial.
func (m *mesh) target() string { return "xds:///greeter." + m.namespace }

// seed writes a slice with one endpoint, as another client.
func (m *mesh) seed(t *testing.T, name, service string, endpoint discoveryv1.Endpoint, port int32) {
	t.Helper()
	err := m.api.Create(bounded(t), &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: m.namespace, Name: name, Labels: map[string]string{xds.LabelService: service}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{endpoint},
		Ports: []discoveryv1.EndpointPort{{Port: &port}},
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestXDSConformance(t *testing.T) {
	server := clustertest.Start(t)
	address := freePort(t)
	r := startXDS(t, server.RESTConfig(), xds.ServerOptions{Address: address})
	registrytest.Run(t, func(t *testing.T) registrytest.Subject {
		// Each test begins with an empty namespace.
		m := meshOf(t, server, r, address)
		return registrytest.Subject{
			Connector: m.Connector,
			HoldsBack: true,
			Seed: func(t *testing.T, service, id string) {
				err := m.api.Create(bounded(t), &discoveryv1.EndpointSlice{
					ObjectMeta: metav1.ObjectMeta{Namespace: m.namespace, Name: "seed",
						Labels: map[string]string{xds.LabelService: service, discoveryv1.LabelManagedBy: "usher.dev"},
						Annotations: map[string]string{
							"usher.dev/entries": `[{"id":"` + id + `","owner":{"uid":"uid-theirs"}}]`,
						}},
					AddressType: discoveryv1.AddressTypeIPv4,
					Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"},
						TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "theirs", UID: "uid-theirs"}}},
				})
				if err != nil {
					t.Fatal(err)
				}
			},
			Break: func(t *testing.T) {
				if err := server.KillAPIServer(); err != nil {
					t.Fatal(err)
				}
			},
			Mend: func(t *testing.T) {
				if err := server.StartAPIServer(bounded(t)); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}

// TestXDSHidden hides entries from readers of Services.
func TestXDSHidden(t *testing.T) {
	m := newMesh(t, shared)
	put(t, m, registry.Put, member(1))
	var list discoveryv1.EndpointSliceList
	if err := m.api.List(bounded(t), &list, client.InNamespace(m.namespace)); err != nil || len(list.Items) != 1 {
		t.Fatalf("%d slices, %v", len(list.Items), err)
	}
	labels := list.Items[0].Labels
	if _, named := labels[discoveryv1.LabelServiceName]; named || labels[xds.LabelService] != "greeter" {
		t.Errorf("the slice has the labels %v", labels)
	}
	put(t, m, registry.Remove, member(1))
	if err := m.api.List(bounded(t), &list, client.InNamespace(m.namespace)); err != nil || len(list.Items) != 0 {
		t.Errorf("%d slices are left, %v", len(list.Items), err)
	}
}

// TestXDSBehind confirms nothing that this replica does not serve.
func TestXDSBehind(t *testing.T) {
	m := newMesh(t, shared)
	put(t, m, registry.Put, member(1))
	m.stop()
	if err := m.Apply(bounded(t), "greeter", []registry.Change{{Op: registry.Put, Entry: member(2)}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err := m.List(ctx, "greeter")
	if !errors.Is(err, registry.ErrTransient) || !strings.Contains(err.Error(), "has not heard of the change of EndpointSlice greeter-usher-") {
		t.Errorf("a list that is not served: %v", err)
	}
	t.Logf("a list that is not served: %v", err)
}

// TestXDSRights serves with the operator's rights, and not without.
func TestXDSRights(t *testing.T) {
	k := newKube(t, shared)
	file, err := shared.UserKubeconfig(k.namespace)
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		t.Fatal(err)
	}
	k.grant(t)
	address := freePort(t)
	m := meshOf(t, shared, startXDS(t, config, xds.ServerOptions{Address: address}), address)
	put(t, m, registry.Put, member(1))
	entries, err := m.List(bounded(t), "greeter")
	if err != nil || len(entries) != 1 {
		t.Errorf("listed: %v, %v", entries, err)
	}
}

// TestStoryXDS takes a Pod into and out of what the operator itself serves.
func TestStoryXDS(t *testing.T) {
	e := newEnv(t)
	e.stop()
	e.xds = freePort(t)
	e.start()
	set := e.cloneSet(lifecycleDemo)
	i := newGreeter(t, 9, 0)
	e.meshRegistration(i.entry.Port)
	name := e.podOf(set, "aaaaa", appsv1alpha1.StateNormal).Name
	e.kubelet(name, i.entry.Address, true)
	e.hasLabel(name, keyCreated, "false")
	c := dialXDS(t, plainBootstrap(e.xds), "xds:///greeter."+e.namespace)
	c.reaches(t, i)

	for _, leaving := range []struct {
		state appsv1alpha1.LifecycleState
		hook  string
	}{{appsv1alpha1.StatePreparingUpdate, keyInPlace}, {appsv1alpha1.StatePreparingDelete, keyDelete}} {
		e.state(name, leaving.state)
		e.hasLabel(name, leaving.hook, "false")
		if err := c.call(bounded(t), false); err == nil {
			t.Errorf("%s: the hook is released, and calls still find the Pod", leaving.state)
		} else {
			t.Logf("%s: %v", leaving.state, err)
		}
		if leaving.state == appsv1alpha1.StatePreparingUpdate {
			e.state(name, appsv1alpha1.StateUpdated)
			e.hasLabel(name, keyInPlace, "true")
			c.reaches(t, i)
			e.state(name, appsv1alpha1.StateNormal)
		}
	}
	e.remove(e.pod(name))
	e.vanishes(name)
}

// meshRegistration registers the Pods with app=nginx in what the operator serves.
func (e *env) meshRegistration(port int32) {
	e.Helper()
	r := &usherv1alpha1.Registry{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "xds-"},
		Spec: usherv1alpha1.RegistrySpec{
			XDS: &usherv1alpha1.XDSRegistry{}, RepairInterval: &metav1.Duration{Duration: time.Second},
		},
	}
	e.create(r)
	e.create(e.registrationOf(r.Name, "greeter", port))
}

// TestStoryXDSTraffic updates Pods in place and scales them in under calls. A Pod's
// server ends when its hook is released, as it would with a kubelet.
func TestStoryXDSTraffic(t *testing.T) {
	e := newEnv(t)
	e.stop()
	e.xds = freePort(t)
	e.start()
	set := e.cloneSet(lifecycleDemo)
	first := newGreeter(t, 41, 0)
	port := first.entry.Port
	servers := []*greeter{first, newGreeter(t, 42, port), newGreeter(t, 43, port)}
	e.meshRegistration(port)
	var names []string
	for n, id := range []string{"aaaaa", "bbbbb", "ccccc"} {
		name := e.podOf(set, id, appsv1alpha1.StateNormal).Name
		e.kubelet(name, servers[n].entry.Address, true)
		e.hasLabel(name, keyCreated, "false")
		names = append(names, name)
	}
	c := dialXDS(t, plainBootstrap(e.xds), "xds:///greeter."+e.namespace)
	c.reaches(t, servers...)
	l, stop := c.talk(t)
	for n, name := range names {
		e.state(name, appsv1alpha1.StatePreparingUpdate)
		e.hasLabel(name, keyInPlace, "false")
		servers[n].end()
		e.kubelet(name, servers[n].entry.Address, false)
		servers[n] = newGreeter(t, 41+n, port)
		e.state(name, appsv1alpha1.StateUpdated)
		e.kubelet(name, servers[n].entry.Address, true)
		e.hasLabel(name, keyInPlace, "true")
		e.state(name, appsv1alpha1.StateNormal)
		servers[n].hit(t)
	}
	for n, name := range names[:2] {
		e.state(name, appsv1alpha1.StatePreparingDelete)
		e.hasLabel(name, keyDelete, "false")
		servers[n].end()
		e.remove(e.pod(name))
		e.vanishes(name)
	}
	servers[2].hit(t)
	l.nothingLost(t, stop)
}

// TestXDSUnservedStory reports what is missing in the Registry's status.
func TestXDSUnservedStory(t *testing.T) {
	e := newEnv(t)
	r := &usherv1alpha1.Registry{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "xds-"},
		Spec:       usherv1alpha1.RegistrySpec{XDS: &usherv1alpha1.XDSRegistry{}},
	}
	e.create(r)
	e.eventually("the status of the Registry", func() string {
		if err := e.Get(t.Context(), client.ObjectKeyFromObject(r), r); err != nil {
			return err.Error()
		}
		for _, c := range r.Status.Conditions {
			if c.Type == usherv1alpha1.ConditionReachable && c.Status == metav1.ConditionFalse &&
				strings.Contains(c.Message, "--xds-bind-address") {
				return ""
			}
		}
		return fmt.Sprintf("is %+v", r.Status)
	})
}
