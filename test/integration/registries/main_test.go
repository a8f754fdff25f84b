// SPDX-License-Identifier: Apache-2.0

// Package registries_test runs connectors and the hook operator against real
// servers: etcd, gRPC's etcd resolver, and a Kubernetes API server.
//
// Tests that start no operator, and mostly wait, run side by side after the others: an
// operator would act on all namespaces.
package registries_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/podread"
	"github.com/usher-dev/usher/internal/registration"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/internal/registration/registry/xds"
	"github.com/usher-dev/usher/internal/scenariotest"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/clustertest"
	"github.com/usher-dev/usher/test/integration/scene"
)

// shared is the control plane of all stories of this package.
var shared *scene.Plane

func TestMain(m *testing.M) {
	scene.Main(m, nil, func(_ context.Context, p *scene.Plane) error {
		shared = p
		return nil
	})
}

// newPlane starts a control plane of its own, for what kills it.
func newPlane(t *testing.T) *scene.Plane {
	t.Helper()
	return checktest.Must(scene.New(clustertest.Start(t)))(t)
}

// options are those of Usher's manager.
func options() ctrl.Options {
	return ctrl.Options{Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{&discoveryv1.EndpointSlice{}: xds.Cache()}}}
}

// story is a namespace, an operator, and a test that acts as the CloneSet controller and the
// kubelet.
type story struct {
	*scene.Scene
	// owner and thief are the namespaces of two tenants; the story is in one of them.
	owner, thief *scene.Scene
	stop         func()
	etcd         *cluster.Etcd
	// served is an instance that a caller finds over xDS.
	served *registrytest.Instance
	caller *grpcClient
	noted  types.UID
}

// TestStories plays the stories in testdata/stories.
func TestStories(t *testing.T) {
	scenariotest.Stories[*story]{Files: "testdata/stories/*.txt", Words: words, Begin: func(t *testing.T) *story {
		t.Helper()
		s := &story{Scene: shared.Begin(t)}
		s.owner = s.Scene
		s.start("")
		return s
	}}.Play(t)
}

// words are what a step can begin with.
var words = scene.Words(func(s *story) *scene.Scene { return s.Scene }, []scenariotest.Word[*story]{
	// The registry.
	{Name: "etcd", Does: "starts an etcd, and creates its Registry",
		Run: func(s *story, _ string) { s.discovery() }},
	{Name: "etcd is killed", Does: "kills etcd", Run: func(s *story, _ string) { s.Must(s.etcd.Kill()) }},
	{Name: "etcd restarts", Does: "starts etcd again",
		Run: func(s *story, _ string) { s.Must(s.etcd.Restart(s.Context())) }},
	{Name: "lists", Args: "[ADDRESS ADDRESS]",
		Does: "waits until etcd has these addresses of the service, and no others",
		Run:  (*story).lists},
	{Name: "Registry", Args: "SPEC", Does: "creates a Registry, which is called registry",
		Run: func(s *story, spec string) { s.Call("registry", s.register(spec).Name) }},
	{Name: "xDS",
		Does: "starts an instance, and an operator that serves xDS; its address is called ip and port",
		Run:  (*story).serve},
	{Name: "calls reach it", Does: "waits until calls over xDS reach the instance",
		Run: func(s *story, _ string) { s.caller.reaches(s.T, s.served) }},
	{Name: "no call reaches it", Does: "fails if a call over xDS reaches the instance",
		Run: func(s *story, _ string) {
			if err := s.caller.call(registrytest.Bounded(s.T), false); err == nil {
				s.Error("the hook is released, and calls still find the Pod")
			}
		}},
	{Name: "slices of", Args: "MANAGER MANAGER",
		Does: "waits until the Service web has EndpointSlices of these managers, and no others",
		Run:  (*story).managers},
	{Name: "the slice stays", Does: "fails if somebody writes the only EndpointSlice within two seconds",
		Run: func(s *story, _ string) { s.unchanged() }},
	{Name: "Kubernetes' own go", Does: "deletes the EndpointSlices that Kubernetes made, and the Endpoints",
		Run: func(s *story, _ string) { s.dropSlices() }},

	// Pods, as their controller and their kubelet write them.
	{Name: "Pod", Args: "NAME", Does: "creates a Pod of the CloneSet, and gives it the name",
		Run: (*story).pod},
	{Name: "ready", Args: "POD IP", Does: "reports a Pod as ready, as its kubelet does", Run: (*story).ready},
	{Name: "serving", Args: "NAME IP",
		Does: "creates a Pod, reports it as ready, and waits until it is registered",
		Run:  (*story).serving},
	{Name: "enter", Args: "POD STATE", Does: "has a Pod enter a lifecycle state, as its CloneSet does",
		Run: (*story).enter},
	{Name: "bind", Args: "POD", Does: "binds a Pod to a node", Run: (*story).bind},
	{Name: "one of", Args: "OWNER is NAME",
		Does: "waits for a Pod that a controller of Kubernetes makes, and gives it a name",
		Run:  (*story).oneOf},
	{Name: "note", Args: "POD", Does: "notes a Pod",
		Run: func(s *story, name string) { s.noted = s.Pod(name).UID }},
	{Name: "another", Args: "POD", Does: "waits for another Pod of the name that was noted",
		Run: (*story).another},
	{Name: "stays", Args: "POD", Does: "fails if the Pod is gone within a second", Run: (*story).stays},

	{Name: "never labelled", Args: "POD KEY",
		Does: "waits until the Pod's condition says that the key is refused, and fails if the Pod gets it",
		Run:  (*story).neverLabelled},

	{Name: "the thief", Does: "goes to the namespace of a second tenant, who knows the owner's names",
		Run: func(s *story, _ string) { s.enterThief() }},
	{Name: "the owner", Does: "goes to the namespace of the first tenant",
		Run: func(s *story, _ string) { s.Scene = s.owner }},
})

// start runs the operator, which serves xDS on an address, unless that is empty.
func (s *story) start(address string) {
	s.Helper()
	s.stop = s.Manage(s.RESTConfig(), options(), func(ctx context.Context, mgr ctrl.Manager) (err error) {
		o := registration.Options{Registerer: prometheus.NewRegistry()}
		if address != "" {
			if o.XDS, err = xds.Setup(ctx, mgr, xds.ServerOptions{Address: address, Registerer: o.Registerer}); err != nil {
				return err
			}
		}
		return registration.Setup(ctx, mgr, o)
	})
}

// register creates a Registry that repairs every second; its name is unique in the cluster.
func (s *story) register(spec string) *usherv1alpha1.Registry {
	s.Helper()
	r := &usherv1alpha1.Registry{}
	s.Must(yaml.UnmarshalStrict([]byte("metadata: {generateName: discovery-}\nspec: {repairInterval: 1s, "+spec+"}"), r))
	s.Make(r)
	return r
}

// discovery starts an etcd, and creates its Registry.
func (s *story) discovery() *usherv1alpha1.Registry {
	s.Helper()
	s.etcd = clustertest.StartEtcd(s.T)
	s.Call("etcd", s.etcd.Endpoint())
	r := s.register("etcd: {endpoints: [" + s.etcd.Endpoint() + "]}, timeout: 1s")
	s.Call("registry", r.Name)
	return r
}

// serve starts an instance, and an operator that serves xDS.
func (s *story) serve(string) {
	s.stop()
	address := freePort(s.T)
	s.start(address)
	s.served = startMember(s.T, 9, 0, serveGRPC)
	s.Call("ip", s.served.Entry.Address)
	s.Call("port", fmt.Sprint(s.served.Entry.Port))
	s.caller = dialXDS(s.T, plainBootstrap(address), "xds:///web."+s.Namespace)
}

// enterThief goes to the namespace of somebody else, who knows the owner's names.
func (s *story) enterThief() {
	if s.thief == nil {
		s.thief = shared.Begin(s.T)
		s.owner.Call("owner", s.owner.Namespace)
		s.owner.Call("thief", s.thief.Namespace)
		s.thief.Names = s.owner.Names
		s.thief.Call("namespace", s.thief.Namespace)
	}
	s.Scene = s.thief
}

// pod creates a Pod in service as the CloneSet controller would, and names it.
func (s *story) pod(name string) {
	s.Helper()
	s.Call(name, "demo-"+name)
	s.Make(s.Prop("Pod of the CloneSet", "metadata: {name: demo-"+name+"}"))
}

// ready is "POD IP": its kubelet reports it as ready.
func (s *story) ready(rest string) {
	name, ip, _ := strings.Cut(rest, " ")
	s.Must(s.reports(name, ip, true))
}

func (s *story) reports(name, ip string, ready bool) error {
	patch, err := yaml.YAMLToJSON(fmt.Appendf(nil, `status: {phase: Running, podIP: %[1]s, podIPs: [{ip: %[1]s}],
		conditions: [{type: ContainersReady, status: %[3]q}, {type: Ready, status: %[3]q, lastTransitionTime: %[2]q}]}`,
		ip, time.Now().UTC().Format(time.RFC3339), map[bool]string{true: "True", false: "False"}[ready]))
	if err != nil {
		return err
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: name}}
	return s.Status().Patch(s.Context(), pod, client.RawPatch(types.StrategicMergePatchType, patch))
}

// serving is "NAME IP", for a new Pod that is registered when it returns.
func (s *story) serving(rest string) {
	name, ip, _ := strings.Cut(rest, " ")
	s.pod(name)
	s.ready(s.Expand("{"+name+"} ") + ip)
	s.Has(s.Ref(s.Expand("Pod/{"+name+"}")), `metadata: {labels: {example.com/newly-create: "false"}}`)
}

// enter is "POD STATE": what the CloneSet controller does when a Pod enters a state.
func (s *story) enter(rest string) {
	name, state, _ := strings.Cut(rest, " ")
	s.Change(s.Pod(name), `metadata: {labels: {%s: %s}, annotations: {%s: %q}}`, appsv1alpha1.LabelLifecycleState, state,
		appsv1alpha1.AnnotationLifecycleTimestamp, time.Now().UTC().Format(time.RFC3339))
}

// bind assigns a Pod to a node: Kubernetes leaves Pods without a node out of slices.
func (s *story) bind(name string) {
	node := s.Object("{apiVersion: v1, kind: Node, metadata: {generateName: node-}}")
	s.Make(node)
	s.Cleanup(func() { _ = s.Delete(context.Background(), node) })
	binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: node.GetName()}}
	s.Must(s.SubResource("binding").Create(s.Context(), s.Pod(name), binding))
}

// oneOf is "OWNER is NAME": it waits for a Pod that a controller of Kubernetes makes, and names it.
func (s *story) oneOf(rest string) {
	owner, name, _ := strings.Cut(rest, " is ")
	s.Until("a Pod of "+owner, func() string {
		pods := s.Pods()
		at := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Labels["of"] == owner })
		if at >= 0 {
			s.Call(name, pods[at].Name)
		}
		return registrytest.Unless(at >= 0, "there is none")
	})
}

// another waits for another Pod of the name that was noted.
func (s *story) another(name string) {
	s.Until("another "+name, func() string {
		made := slices.ContainsFunc(s.Pods(), func(p corev1.Pod) bool { return p.Name == name && p.UID != s.noted })
		return registrytest.Unless(made, "does not exist")
	})
}

// stays checks for a second that a Pod's object exists.
func (s *story) stays(name string) {
	s.Stays("the Pod's object", time.Second, func() string {
		s.Pod(name)
		return ""
	})
}

func (s *story) neverLabelled(rest string) {
	name, key, _ := strings.Cut(rest, " ")
	s.Until("a wait for "+key, func() string {
		pod := s.Pod(name)
		if _, labelled := pod.Labels[key]; labelled || slices.Contains(pod.Finalizers, key) {
			s.Fatalf("Usher has put %s on Pod %s, which its tenant may not", key, name)
		}
		says := podread.Condition(pod, usherv1alpha1.ConditionRegistered)
		return registrytest.Unless(says != nil && says.Reason == "KeyRefused" && strings.Contains(says.Message, key), fmt.Sprintf("the Pod says %+v", says))
	})
}

// lists waits until etcd itself has exactly these addresses of the service.
func (s *story) lists(addresses string) {
	s.Until("entries in etcd", func() string {
		answer := checktest.Must(s.etcd.Client.Get(registrytest.Bounded(s.T), prefix+"/"+s.Namespace+"/", clientv3.WithPrefix()))(s)
		var found []string
		for _, kv := range answer.Kvs {
			_, rest, _ := strings.Cut(string(kv.Value), `"Addr":"`)
			address, _, _ := strings.Cut(rest, `"`)
			found = append(found, address)
		}
		slices.Sort(found)
		return registrytest.Unless(slices.Equal(found, strings.Fields(addresses)), fmt.Sprintf("are %v, want %s", found, addresses))
	})
}

// managers waits until the Service web has slices of exactly these managers.
func (s *story) managers(want string) {
	s.Until("slices of "+want, func() string {
		used := list.Only(slicesOf(s.Scene), func(slice discoveryv1.EndpointSlice) bool { return len(slice.Endpoints) > 0 })
		have := list.Map(used, func(slice discoveryv1.EndpointSlice) string { return slice.Labels[discoveryv1.LabelManagedBy] })
		slices.Sort(have)
		return registrytest.Unless(strings.Join(have, " ") == want, fmt.Sprintf("are those of %v", have))
	})
}

// unchanged checks for two seconds that the Service web has one slice, which nobody writes.
func (s *story) unchanged() {
	version := slicesOf(s.Scene)[0].ResourceVersion
	s.Stays("the only slice", 2*time.Second, func() string {
		now := slicesOf(s.Scene)
		return registrytest.Unless(len(now) == 1 && now[0].ResourceVersion == version, fmt.Sprintf("has changed: %+v", now))
	})
}

// dropSlices deletes what Kubernetes' own controllers have of the Service.
func (s *story) dropSlices() {
	s.Must(s.DeleteAllOf(s.Context(), &discoveryv1.EndpointSlice{}, client.InNamespace(s.Namespace),
		client.MatchingLabels{discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"}))
	s.Must(s.Delete(s.Context(), s.Ref("Endpoints/web")))
}
