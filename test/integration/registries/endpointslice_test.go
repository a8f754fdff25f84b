// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/endpointslice"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/integration/scene"
	"github.com/usher-dev/usher/test/traffic"
)

// kube is a namespace of an API server, with a connector to it.
type kube struct {
	*endpointslice.Registry
	*scene.Scene
}

func newKube(t *testing.T, on *scene.Plane) *kube {
	t.Helper()
	s := on.Begin(t)
	return &kube{Scene: s, Registry: connectSlices(t, s, s.Namespace)}
}

func connectSlices(t *testing.T, api client.Client, namespace string) *endpointslice.Registry {
	t.Helper()
	return endpointslice.New(endpointslice.Options{Reader: api, Writer: api, Namespace: namespace})
}

// slices lists the slices of the Service web, sorted by name.
func (k *kube) slices() []discoveryv1.EndpointSlice { return slicesOf(k.Scene) }

func slicesOf(s *scene.Scene) []discoveryv1.EndpointSlice {
	s.Helper()
	var all discoveryv1.EndpointSliceList
	s.Must(s.List(s.Context(), &all, client.InNamespace(s.Namespace), client.MatchingLabels{discoveryv1.LabelServiceName: "web"}))
	slices.SortFunc(all.Items, func(a, b discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) })
	return all.Items
}

// seed writes a slice with one endpoint, as the manager.
func seed(s *scene.Scene, name, serviceLabel, service, manager, entries string) {
	s.Helper()
	s.Make(s.Object(fmt.Sprintf(`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4,
		metadata: {name: %s, labels: {%s: %s, endpointslice.kubernetes.io/managed-by: %s}, annotations: {%s: %q}},
		endpoints: [{addresses: [192.0.2.1], targetRef: {kind: Pod, name: theirs, uid: uid-theirs}}]}`,
		name, serviceLabel, service, manager, endpointslice.AnnotationEntries, entries)))
}

// theirs is what a connector writes for an entry of somebody else.
func theirs(id string) string { return `[{"id":"` + id + `","owner":{"uid":"uid-theirs"}}]` }

func TestEndpointSliceConformance(t *testing.T) {
	t.Parallel()
	server := newPlane(t)
	registrytest.Run(t, func(t *testing.T) registrytest.Fixture {
		// Each test begins with an empty namespace.
		k := newKube(t, server)
		return registrytest.Fixture{
			Connector: k.Registry,
			Seed: func(service, id string) {
				seed(k.Scene, "seed", discoveryv1.LabelServiceName, service, endpointslice.Manager, theirs(id))
			},
			Break: server.KillAPIServer, Mend: server.StartAPIServer,
		}
	})
}

// member is the entry of a Pod.
func member(n int) registry.Entry {
	e := registrytest.Entry(fmt.Sprintf("web-%03d", n))
	e.Address = fmt.Sprintf("10.1.%d.%d", n/250, n%250+1)
	e.Metadata[endpointslice.MetaPortName] = "http"
	return e
}

// members are the entries of n Pods.
func members(n int) (all []registry.Entry) {
	for i := range n {
		all = append(all, member(i))
	}
	return all
}

// TestEndpointSliceShape checks what callers read.
func TestEndpointSliceShape(t *testing.T) {
	k := newKube(t, shared)
	four, six, other := member(1), member(2), member(3)
	six.Address = "fd00::2"
	other.Port, other.Metadata = 9090, map[string]string{endpointslice.MetaPortName: "http", endpointslice.MetaAppProtocol: "kubernetes.io/h2c"}
	registrytest.Put(t, k, four, six, other)
	seen := map[string]string{}
	for _, s := range k.slices() {
		if s.Labels[discoveryv1.LabelManagedBy] != "usher.dev" || !strings.HasPrefix(s.Name, "web-usher-") || len(s.Endpoints) != 1 {
			t.Errorf("slice %s has the labels %v and %d endpoints", s.Name, s.Labels, len(s.Endpoints))
		}
		e, p := s.Endpoints[0], s.Ports[0]
		if !*e.Conditions.Ready || !*e.Conditions.Serving || *e.Conditions.Terminating || e.TargetRef.Kind != "Pod" {
			t.Errorf("the endpoint is %+v", e)
		}
		seen[e.TargetRef.Name] = fmt.Sprintf("%s %s %s:%d %s", s.AddressType, e.Addresses[0], *p.Name, *p.Port, ptr.Deref(p.AppProtocol, ""))
	}
	want := map[string]string{
		"web-001": "IPv4 10.1.0.2 http:8080 ", "web-002": "IPv6 fd00::2 http:8080 ",
		"web-003": "IPv4 10.1.0.4 http:9090 kubernetes.io/h2c",
	}
	checktest.Same(t, "what callers read", want, seen)
}

// TestEndpointSliceSizes fills slices and empties them again.
func TestEndpointSliceSizes(t *testing.T) {
	k := newKube(t, shared)
	all := members(250)
	registrytest.Put(t, k, all...)
	sizes := func() []int {
		return slices.Sorted(slices.Values(list.Map(k.slices(), func(s discoveryv1.EndpointSlice) int { return len(s.Endpoints) })))
	}
	checktest.Same(t, "the sizes of slices of 250 endpoints", []int{50, 100, 100}, sizes())
	registrytest.Remove(t, k, all[:100]...)
	registrytest.Put(t, k, all[:40]...)
	if have := sizes(); len(have) > 3 {
		t.Errorf("190 endpoints are in slices of %v: there was room", have)
	}
	registrytest.Remove(t, k, all...)
	checktest.Same(t, "slices that are left", 0, len(sizes()))
}

// TestEndpointSliceOthers does not touch others' slices, but reports them.
func TestEndpointSliceOthers(t *testing.T) {
	k := newKube(t, shared)
	seed(k.Scene, "theirs", discoveryv1.LabelServiceName, "web", "somebody.example.com", theirs("web-001"))
	before := k.slices()[0].ResourceVersion
	entries := registrytest.Put(t, k, member(1))
	if len(entries) != 2 || entries[0].ID != "theirs.0" || entries[0].Owner != (registry.Owner{}) || !entries[1].Same(member(1)) {
		t.Fatalf("listed: %+v", entries)
	}
	registrytest.Remove(t, k, member(1))
	if left := k.slices(); len(left) != 1 || left[0].ResourceVersion != before {
		t.Errorf("left: %+v", left)
	}
}

// TestEndpointSliceRepair repairs manual changes.
func TestEndpointSliceRepair(t *testing.T) {
	for name, harm := range map[string]func(*discoveryv1.EndpointSlice){
		"not ready":       func(s *discoveryv1.EndpointSlice) { *s.Endpoints[0].Conditions.Ready = false },
		"another address": func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses[0] = "10.9.9.9" },
		"another port":    func(s *discoveryv1.EndpointSlice) { *s.Ports[0].Port = 1 },
		"a second port": func(s *discoveryv1.EndpointSlice) {
			s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: new("x")})
		},
		"no endpoint": func(s *discoveryv1.EndpointSlice) { s.Endpoints = s.Endpoints[:0] },
	} {
		k := newKube(t, shared)
		registrytest.Put(t, k, member(1))
		harmed := k.slices()[0]
		harm(&harmed)
		k.Must(k.Update(t.Context(), &harmed))
		if entries := registrytest.List(t, k); len(entries) == 1 && entries[0].Same(member(1)) {
			t.Errorf("%s: listed as if nothing had happened: %+v", name, entries)
		}
		if entries := registrytest.Put(t, k, member(1)); len(entries) != 1 || !entries[0].Same(member(1)) {
			t.Errorf("%s: after the repair: %+v", name, entries)
		}
	}
}

// TestEndpointSliceTwice finds an entry in two slices, as after a crash in the middle
// of a move.
func TestEndpointSliceTwice(t *testing.T) {
	k := newKube(t, shared)
	registrytest.Put(t, k, member(1))
	slice := k.slices()[0]
	duplicate := func(name string) {
		t.Helper()
		twin := slice
		twin.ObjectMeta = metav1.ObjectMeta{Name: name, Labels: slice.Labels, Annotations: slice.Annotations}
		k.Make(&twin)
	}
	duplicate("twin")
	if have := registrytest.Only(t, k); have.Weight != 0 {
		t.Fatalf("listed: %+v", have)
	}
	registrytest.Put(t, k, member(1))
	if left := k.slices(); len(left) != 1 {
		t.Errorf("%d slices are left", len(left))
	}
	duplicate("third")
	registrytest.Remove(t, k, member(1))
	if left := k.slices(); len(left) != 0 {
		t.Errorf("%d slices are left", len(left))
	}
}

// TestEndpointSliceTogether makes ten passes write to the same slice at once.
func TestEndpointSliceTogether(t *testing.T) {
	k := newKube(t, shared)
	registrytest.Put(t, k, member(0))
	var all sync.WaitGroup
	for n := 1; n <= 10; n++ {
		all.Go(func() {
			err := registry.ErrConflict
			for errors.Is(err, registry.ErrConflict) {
				err = registrytest.TryPut(t, k, member(n))
			}
			registrytest.Check(t, fmt.Sprint("the pass ", n), err, nil)
		})
	}
	all.Wait()
	if entries := registrytest.List(t, k); len(entries) != 11 {
		t.Errorf("%d entries are listed, want 11", len(entries))
	}
}

// TestEndpointSliceRefusals reports what is wrong, and does the rest.
func TestEndpointSliceRefusals(t *testing.T) {
	k := newKube(t, shared)
	for name, spoil := range map[string]func(*registry.Entry){
		"loopback":      func(e *registry.Entry) { e.Address = "127.0.0.1" },
		"link-local":    func(e *registry.Entry) { e.Address = "fe80::1" },
		"mapped":        func(e *registry.Entry) { e.Address = "::ffff:10.0.0.1" },
		"port name":     func(e *registry.Entry) { e.Metadata = map[string]string{endpointslice.MetaPortName: "HTTP"} },
		"no protocol":   func(e *registry.Entry) { e.Metadata = map[string]string{endpointslice.MetaAppProtocol: ""} },
		"much metadata": func(e *registry.Entry) { e.Metadata = map[string]string{"x": strings.Repeat("x", 9000)} },
	} {
		bad := member(1)
		spoil(&bad)
		registrytest.CheckRefused(t, name, registrytest.TryPut(t, k, bad), bad.ID, registry.ErrPermanent)
	}
	registrytest.Check(t, "no such namespace", registrytest.TryPut(t, connectSlices(t, k.Scene, "nowhere"), member(1)), registry.ErrPermanent)
	err := k.Apply(registrytest.Bounded(t), "Greeter.v1", []registry.Change{{Op: registry.Put, Entry: member(1)}})
	registrytest.Check(t, "a name that no Service can have", err, registry.ErrPermanent)
}

// Kubernetes accepts no loopback address as an endpoint: an instance at 127.0.77.n has
// the entry 10.0.77.n, and callers dial the former.
const entryNet, dialNet = "10.0.77.", "127.0.77."

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
	set := checktest.Must(kubernetes.NewForConfig(k.RESTConfig()))(k)
	return registrytest.Told(k.T, traffic.Service{Client: set, Namespace: k.Namespace, Name: service}.Follow)
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
	file := checktest.Must(k.UserKubeconfig(k.Namespace))(k)
	return checktest.Must(clientcmd.BuildConfigFromFlags("", file))(k)
}

// grant gives that user the operator's rights.
func (k *kube) grant() {
	k.Helper()
	role := checktest.Must(os.ReadFile(scene.Root + "/config/rbac/endpointslices/role.yaml"))(k)
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
	api := checktest.Must(client.New(k.user(), client.Options{Scheme: k.Scheme()}))(t)
	u := connectSlices(t, api, k.Namespace)
	registrytest.Check(t, "without rights", u.Ping(registrytest.Bounded(t)), registry.ErrPermanent, "forbidden")
	k.grant()
	registrytest.Eventually(t, "the rights", func() string {
		err := u.Ping(registrytest.Bounded(t))
		return registrytest.Unless(err == nil, fmt.Sprint(err))
	})
	// OpenShift's API server asks this before it accepts a slice with addresses of Pods.
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
		Namespace: k.Namespace, Verb: "create", Group: discoveryv1.GroupName, Resource: "endpointslices", Subresource: "restricted",
	}}}
	checktest.NoError(t, api.Create(registrytest.Bounded(t), review))
	if !review.Status.Allowed {
		t.Errorf("no right to create endpointslices/restricted, which OpenShift asks for: %+v", review.Status)
	}
	registrytest.Put(t, u, member(1), member(2))
	registrytest.Remove(t, u, member(1))
	registrytest.Remove(t, u, member(2))
	registrytest.Check(t, "a ping without a namespace", connectSlices(t, api, "").Ping(registrytest.Bounded(t)), nil)
}
