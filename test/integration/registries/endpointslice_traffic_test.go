// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/endpointslice"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/integration/scene"
	"github.com/usher-dev/usher/test/traffic"
)

// Kubernetes accepts no loopback address as an endpoint: an instance at 127.0.77.n has
// the entry 10.0.77.n, and callers dial the former.
const (
	entryNet = "10.0.77."
	dialNet  = "127.0.77."
)

// startMember starts the n-th instance on a port, any if zero.
func startMember(t *testing.T, n int, port int32, serve func(*registrytest.Instance, net.Listener) func()) *registrytest.Instance {
	t.Helper()
	i := registrytest.StartOn(t, "web", dialNet+strconv.Itoa(n)+":"+strconv.Itoa(int(port)), serve)
	port = i.Entry.Port
	i.Entry = member(n)
	i.Entry.Address, i.Entry.Port = entryNet+strconv.Itoa(n), port
	return i
}

// dialMember dials an instance by its entry.
func dialMember(ctx context.Context, network, address string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, network, strings.Replace(address, entryNet, dialNet, 1))
}

// follow tracks the addresses of a service as kube-proxy and gateways do.
func follow(k *kube, service string) func() []string {
	k.Helper()
	set, err := kubernetes.NewForConfig(k.RESTConfig())
	k.Must(err)
	var known atomic.Pointer[[]string]
	known.Store(&[]string{})
	ctx, cancel := context.WithCancel(context.Background())
	var following sync.WaitGroup
	following.Go(func() {
		if err := (traffic.Service{Client: set, Namespace: k.Namespace, Name: service}).Follow(ctx, func(addresses []string) { known.Store(&addresses) }); ctx.Err() == nil {
			k.Errorf("the caller ended: %v", err)
		}
	})
	k.Cleanup(func() { cancel(); following.Wait() })
	return func() []string { return *known.Load() }
}

// TestEndpointSliceTraffic rolls instances under a caller that follows slices.
func TestEndpointSliceTraffic(t *testing.T) {
	t.Parallel()
	k := newKube(t, shared)
	var port int32
	registrytest.Rollout{
		Connector: k, Propagation: time.Second, Dial: dialMember,
		Metadata: map[string]string{endpointslice.MetaPortName: "http"},
		Start: func(n int) *registrytest.Instance {
			if n == 5 {
				port = 0 // Another port, and therefore another slice.
			}
			i := startMember(t, n+1, port, registrytest.ServeHTTP)
			port = i.Entry.Port
			return i
		},
		// All move to other slices, with another port name, and lose nothing.
		Then: func(instances []*registrytest.Instance) {
			var moved []registry.Entry
			for _, i := range instances {
				i.Entry.Metadata = map[string]string{endpointslice.MetaPortName: "web"}
				moved = append(moved, i.Entry)
			}
			registrytest.Put(t, k, moved...)
			<-time.After(time.Second) // This delay is under test.
		},
	}.Run(t, func(*testing.T) func() []string { return follow(k, "web") })
}

// user returns the kubeconfig of a user without rights, named like the namespace.
func (k *kube) user() *rest.Config {
	k.Helper()
	file, err := k.UserKubeconfig(k.Namespace)
	k.Must(err)
	config, err := clientcmd.BuildConfigFromFlags("", file)
	k.Must(err)
	return config
}

// grant gives that user the operator's rights.
func (k *kube) grant() {
	k.Helper()
	role, err := os.ReadFile(scene.Root + "/config/rbac/endpointslices/role.yaml")
	k.Must(err)
	for _, object := range []client.Object{
		k.Object(string(role), "metadata: {name: "+k.Namespace+"}"),
		k.Object(fmt.Sprintf(`{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: %[1]s},
			roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %[1]s},
			subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: %[1]s}]}`, k.Namespace)),
	} {
		k.Make(object)
		k.Cleanup(func() { _ = k.Delete(context.Background(), object) })
	}
}

// TestEndpointSliceRights works with the operator's rights.
func TestEndpointSliceRights(t *testing.T) {
	k := newKube(t, shared)
	api, err := client.New(k.user(), client.Options{Scheme: k.Scheme()})
	registrytest.NoError(t, err)
	u := connectSlices(t, api, k.Namespace)
	registrytest.Check(t, "without rights", u.Ping(registrytest.Bounded(t)), registry.ErrPermanent, "forbidden")
	k.grant()
	registrytest.Eventually(t, "the rights", func() string {
		err := u.Ping(registrytest.Bounded(t))
		return registrytest.Unless(err == nil, fmt.Sprint(err))
	})
	registrytest.Put(t, u, member(1), member(2))
	registrytest.Remove(t, u, member(1))
	registrytest.Remove(t, u, member(2))
	registrytest.Check(t, "a ping without a namespace", connectSlices(t, api, "").Ping(registrytest.Bounded(t)), nil)
}

// newServices registers the Pods with app=nginx in the Service web of the story's
// namespace.
func (e *env) newServices() {
	e.Helper()
	r := e.registryOf("services-", "endpointSlice: {}")
	e.register(r.Name, "spec: {instance: {service: web, weight: 7}}")
}

// unchanged checks for two seconds that the Service web has one slice of this version.
func (k *kube) unchanged(version string) {
	k.Helper()
	k.Stays("the only slice", 2*time.Second, func() string {
		now := k.slices()
		return registrytest.Unless(len(now) == 1 && now[0].ResourceVersion == version, fmt.Sprintf("has changed: %+v", now))
	})
}

// managers waits until the Service web has slices of exactly these managers.
func (k *kube) managers(want ...string) {
	k.Helper()
	k.Until("slices of "+fmt.Sprint(want), func() string {
		var have []string
		for _, s := range k.slices() {
			if len(s.Endpoints) > 0 {
				have = append(have, s.Labels[discoveryv1.LabelManagedBy])
			}
		}
		slices.Sort(have)
		return registrytest.Unless(slices.Equal(have, want), fmt.Sprintf("are those of %v", have))
	})
}

// bind assigns a Pod to a node: Kubernetes leaves Pods without a node out of slices.
func (e *env) bind(name string) {
	e.Helper()
	node := e.Object("{apiVersion: v1, kind: Node, metadata: {generateName: node-}}")
	e.Make(node)
	e.Cleanup(func() { _ = e.Delete(context.Background(), node) })
	binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: node.GetName()}}
	e.Must(e.SubResource("binding").Create(e.Context(), e.Pod(name), binding))
}

// TestStoryServiceMoves takes over a Service from Kubernetes' own controllers, which
// run too: its Pod is listed all the time, and in the end only by Usher.
func TestStoryServiceMoves(t *testing.T) {
	const theirs, mirror = "endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io"
	e := newEnv(t)
	set := e.cloneSet("lifecycle.yaml")
	service := e.Object(`{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {clusterIP: None, selector: {app: nginx}, ports: [{port: 80}]}}`)
	e.Make(service)
	name := e.podOf(set, "aaaaa")
	e.bind(name)
	e.kubelet(name, "10.0.0.1")
	k := &kube{Scene: e.Scene}
	k.managers(theirs)
	e.newServices()
	e.hasLabel(name, keyCreated, "false")
	k.managers(theirs, "usher.dev")

	e.Change(service, "spec: {selector: null}")
	k.managers(theirs, mirror, "usher.dev")
	e.Must(e.DeleteAllOf(t.Context(), &discoveryv1.EndpointSlice{}, client.InNamespace(e.Namespace),
		client.MatchingLabels{discoveryv1.LabelManagedBy: theirs}))
	e.remove(&corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: "web"}}) //nolint:staticcheck // Kubernetes still makes them.
	k.managers("usher.dev")
	k.unchanged(k.slices()[0].ResourceVersion)
	e.gate(name, appsv1alpha1.StatePreparingDelete, keyDelete, "false")
	k.managers()
}
