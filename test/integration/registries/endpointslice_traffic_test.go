// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/endpointslice"
)

// Kubernetes accepts no loopback address as an endpoint: an instance at 127.0.77.n has
// the entry 10.0.77.n, and callers dial the former.
const (
	entryNet = "10.0.77."
	dialNet  = "127.0.77."
)

// instance is an HTTP server with its entry.
type instance struct {
	entry  registry.Entry
	server *http.Server
	hits   atomic.Int64
}

// newInstance listens on port, any if zero.
func newInstance(t *testing.T, n int, port int32) *instance {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort(dialNet+strconv.Itoa(n), strconv.Itoa(int(port))))
	if err != nil {
		t.Fatal(err)
	}
	i := &instance{entry: member(n)}
	i.entry.Address, i.entry.Port = entryNet+strconv.Itoa(n), int32(listener.Addr().(*net.TCPAddr).Port)
	i.server = &http.Server{ReadHeaderTimeout: patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		i.hits.Add(1)
		w.WriteHeader(http.StatusNoContent)
	})}
	go func() { _ = i.server.Serve(listener) }()
	t.Cleanup(i.end)
	return i
}

// end ends the instance at once, like the end of a process.
func (i *instance) end() { _ = i.server.Close() }

// follow tracks the addresses of a service as kube-proxy and gateways do: with an
// informer, from all slices together, without what is not ready.
func follow(t *testing.T, k *kube, service string) func() []string {
	t.Helper()
	set, err := kubernetes.NewForConfig(shared.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(set, 0, informers.WithNamespace(k.namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = discoveryv1.LabelServiceName + "=" + service }))
	informer := factory.Discovery().V1().EndpointSlices().Informer()
	ctx, cancel := context.WithCancel(t.Context())
	factory.Start(ctx.Done())
	t.Cleanup(func() { cancel(); factory.Shutdown() })
	if !cache.WaitForCacheSync(bounded(t).Done(), informer.HasSynced) {
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

// load is ongoing traffic.
type load struct {
	sent, lost atomic.Int64
	first      atomic.Pointer[error]
}

// callers sends requests to the addresses in turn until stop.
func callers(t *testing.T, addresses func() []string) (*load, func()) {
	t.Helper()
	l := &load{}
	ctx, cancel := context.WithCancel(t.Context())
	dialer := &net.Dialer{}
	c := &http.Client{Timeout: patience, Transport: &http.Transport{
		// With a new connection each, requests are not retried.
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, strings.Replace(address, entryNet, dialNet, 1))
		},
	}}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for turn := 0; ctx.Err() == nil; turn++ {
				l.one(context.WithoutCancel(ctx), c, addresses(), turn)
				<-time.After(5 * time.Millisecond)
			}
		})
	}
	stop := sync.OnceFunc(func() { cancel(); all.Wait() })
	t.Cleanup(stop)
	return l, stop
}

func (l *load) one(ctx context.Context, c *http.Client, addresses []string, turn int) {
	l.sent.Add(1)
	err := fmt.Errorf("no instance is listed")
	if len(addresses) > 0 {
		var request *http.Request
		var response *http.Response
		request, err = http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addresses[turn%len(addresses)]+"/", http.NoBody)
		if err == nil {
			response, err = c.Do(request)
		}
		if err == nil {
			err = response.Body.Close()
		}
	}
	if err != nil {
		l.lost.Add(1)
		l.first.CompareAndSwap(nil, &err)
	}
}

// TestEndpointSliceTraffic rolls instances under a caller that follows slices.
func TestEndpointSliceTraffic(t *testing.T) {
	k := newKube(t, shared)
	eventually := (&env{T: t}).eventually
	hit := func(i *instance) {
		t.Helper()
		eventually("requests to "+i.entry.Address, func() string {
			if i.hits.Load() == 0 {
				return "none"
			}
			return ""
		})
	}
	first := newInstance(t, 1, 0)
	instances := []*instance{first, newInstance(t, 2, first.entry.Port), newInstance(t, 3, first.entry.Port)}
	for _, i := range instances {
		put(t, k, registry.Put, i.entry)
	}
	addresses := follow(t, k, "greeter")
	l, stop := callers(t, addresses)
	for n, old := range instances {
		hit(old)
		port := first.entry.Port
		if n == 2 {
			port = 0 // Another port, and therefore another slice.
		}
		next := newInstance(t, 11+n, port)
		put(t, k, registry.Put, next.entry)
		hit(next)
		put(t, k, registry.Remove, old.entry)
		<-time.After(time.Second) // This delay is under test.
		old.end()
		instances[n] = next
	}
	// All move to other slices, with another port name, and lose nothing.
	for _, i := range instances {
		i.entry.Metadata = map[string]string{endpointslice.MetaPortName: "web"}
	}
	put(t, k, registry.Put, instances[0].entry, instances[1].entry, instances[2].entry)
	<-time.After(time.Second)
	if lost := l.lost.Load(); lost > 0 {
		t.Errorf("%d of %d requests were lost, the first by: %v", lost, l.sent.Load(), *l.first.Load())
	}
	t.Logf("%d requests while each of three instances was replaced and all were moved, %d lost", l.sent.Load(), l.lost.Load())
	// Ending an instance while it is listed must lose requests, or the traffic proves
	// nothing.
	instances[0].end()
	eventually("a lost request", func() string {
		if l.lost.Load() == 0 {
			return "none"
		}
		return ""
	})
	stop()
}

// user is the connector of a user without rights, named like the namespace.
func (k *kube) user(t *testing.T) *kube {
	t.Helper()
	file, err := shared.UserKubeconfig(k.namespace)
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(config, client.Options{Scheme: scheme()})
	if err != nil {
		t.Fatal(err)
	}
	u := &kube{api: c, namespace: k.namespace}
	u.Registry = u.connect(t, k.namespace)
	return u
}

// grant gives that user the operator's rights.
func (k *kube) grant(t *testing.T) {
	t.Helper()
	data, err := os.ReadFile("../../../config/rbac/registration/role.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var role rbacv1.ClusterRole
	if err := yaml.Unmarshal(data, &role); err != nil {
		t.Fatal(err)
	}
	role.Name = k.namespace
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: k.namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: k.namespace},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: k.namespace}},
	}
	for _, object := range []client.Object{&role, binding} {
		if err := k.api.Create(bounded(t), object); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = k.api.Delete(context.Background(), object) })
	}
}

// TestEndpointSliceRights works with the operator's rights.
func TestEndpointSliceRights(t *testing.T) {
	k := newKube(t, shared)
	u := k.user(t)
	if err := u.Ping(bounded(t)); !errors.Is(err, registry.ErrPermanent) || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("without rights: %v", err)
	}
	k.grant(t)
	(&env{T: t}).eventually("the rights", func() string {
		if err := u.Ping(bounded(t)); err != nil {
			return err.Error()
		}
		return ""
	})
	put(t, u, registry.Put, member(1), member(2))
	put(t, u, registry.Remove, member(1))
	put(t, u, registry.Remove, member(2))
	if err := u.connect(t, "").Ping(bounded(t)); err != nil {
		t.Error(err)
	}
}
