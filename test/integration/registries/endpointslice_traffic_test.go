// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/endpointslice"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
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

// follow tracks the addresses of a service as kube-proxy and gateways do: with an
// informer, from all slices together, without what is not ready.
func follow(t *testing.T, k *kube, service string) func() []string {
	t.Helper()
	set, err := kubernetes.NewForConfig(shared.RESTConfig())
	registrytest.NoError(t, err)
	factory := informers.NewSharedInformerFactoryWithOptions(set, 0, informers.WithNamespace(k.namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = discoveryv1.LabelServiceName + "=" + service }))
	informer := factory.Discovery().V1().EndpointSlices().Informer()
	ctx, cancel := context.WithCancel(t.Context())
	factory.Start(ctx.Done())
	t.Cleanup(func() { cancel(); factory.Shutdown() })
	if !cache.WaitForCacheSync(registrytest.Bounded(t).Done(), informer.HasSynced) {
		t.Fatal("the informer did not sync")
	}
	return func() (addresses []string) {
		for _, object := range informer.GetStore().List() {
			s := object.(*discoveryv1.EndpointSlice)
			for _, e := range s.Endpoints {
				if e.Conditions.Ready == nil || *e.Conditions.Ready {
					addresses = append(addresses, net.JoinHostPort(e.Addresses[0], strconv.Itoa(int(*s.Ports[0].Port))))
				}
			}
		}
		return addresses
	}
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
	}.Run(t, func(t *testing.T) func() []string { return follow(t, k, "web") })
}

// user returns the kubeconfig of a user without rights, named like the namespace.
func (k *kube) user(t *testing.T) *rest.Config {
	t.Helper()
	file, err := shared.UserKubeconfig(k.namespace)
	registrytest.NoError(t, err)
	config, err := clientcmd.BuildConfigFromFlags("", file)
	registrytest.NoError(t, err)
	return config
}

// grant gives that user the operator's rights.
func (k *kube) grant(t *testing.T) {
	t.Helper()
	data, err := os.ReadFile("../../../config/rbac/registration/role.yaml")
	registrytest.NoError(t, err)
	var role rbacv1.ClusterRole
	registrytest.NoError(t, yaml.Unmarshal(data, &role))
	role.Name = k.namespace
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: k.namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: k.namespace},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: k.namespace}},
	}
	for _, object := range []client.Object{&role, binding} {
		registrytest.NoError(t, k.api.Create(registrytest.Bounded(t), object))
		t.Cleanup(func() { _ = k.api.Delete(context.Background(), object) })
	}
}

// TestEndpointSliceRights works with the operator's rights.
func TestEndpointSliceRights(t *testing.T) {
	k := newKube(t, shared)
	api, err := client.New(k.user(t), client.Options{Scheme: scheme()})
	registrytest.NoError(t, err)
	u := connectSlices(t, api, k.namespace)
	registrytest.Check(t, "without rights", u.Ping(registrytest.Bounded(t)), registry.ErrPermanent, "forbidden")
	k.grant(t)
	registrytest.Eventually(t, "the rights", func() string {
		err := u.Ping(registrytest.Bounded(t))
		return registrytest.Unless(err == nil, fmt.Sprint(err))
	})
	registrytest.Put(t, u, member(1), member(2))
	registrytest.Remove(t, u, member(1))
	registrytest.Remove(t, u, member(2))
	registrytest.Check(t, "a ping without a namespace", connectSlices(t, api, "").Ping(registrytest.Bounded(t)), nil)
}
