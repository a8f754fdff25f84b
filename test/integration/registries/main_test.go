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
	"os"
	"path/filepath"
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
	"github.com/usher-dev/usher/internal/registration"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/internal/registration/registry/xds"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/clustertest"
	"github.com/usher-dev/usher/test/integration/scene"
)

// Keys of the hooks that the stories use.
const (
	keyCreated = "example.com/newly-create"
	keyInPlace = "example.com/unready-blocker-inplace"
	keyDelete  = "example.com/unready-blocker-delete"
)

// shared is the control plane of all stories of this package.
var shared *scene.Plane

func TestMain(m *testing.M) {
	scene.Main(m, func(_ context.Context, p *scene.Plane) error {
		shared = p
		return nil
	})
}

// newPlane starts a control plane of its own, for what kills it.
func newPlane(t *testing.T) *scene.Plane {
	t.Helper()
	p, err := scene.New(clustertest.Start(t))
	registrytest.NoError(t, err)
	return p
}

// env is one story: a namespace, an operator, and a test that acts as the CloneSet
// controller and the kubelet.
type env struct {
	*scene.Scene
	// xds is the address on which start serves xDS, empty for none.
	xds  string
	stop func()
	// registration is what register has created.
	registration *usherv1alpha1.Registration
}

func newEnv(t *testing.T) *env {
	t.Helper()
	e := &env{Scene: shared.Begin(t)}
	e.start()
	return e
}

// options are those of Usher's manager.
func options() ctrl.Options {
	return ctrl.Options{Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{&discoveryv1.EndpointSlice{}: xds.Cache()}}}
}

// start runs the operator until stop.
func (e *env) start() {
	e.Helper()
	e.stop = e.Manage(e.RESTConfig(), options(), func(ctx context.Context, mgr ctrl.Manager) (err error) {
		o := registration.Options{Registerer: prometheus.NewRegistry()}
		if e.xds != "" {
			if o.XDS, err = xds.Setup(ctx, mgr, xds.ServerOptions{Address: e.xds, Registerer: o.Registerer}); err != nil {
				return err
			}
		}
		return registration.Setup(mgr, o)
	})
}

func (e *env) remove(object client.Object) {
	e.Helper()
	e.Must(e.Delete(e.Context(), object))
}

// state does what the CloneSet controller does when a Pod enters a state.
func (e *env) state(name string, state appsv1alpha1.LifecycleState) {
	e.Helper()
	e.Change(e.Pod(name), `metadata: {labels: {%s: %s}, annotations: {%s: %q}}`, appsv1alpha1.LabelLifecycleState, state,
		appsv1alpha1.AnnotationLifecycleTimestamp, time.Now().UTC().Format(time.RFC3339))
}

// kubelet reports a Pod as ready.
func (e *env) kubelet(name, ip string) {
	e.Helper()
	patch, err := yaml.YAMLToJSON(fmt.Appendf(nil, `status: {phase: Running, podIP: %[1]s, podIPs: [{ip: %[1]s}],
		conditions: [{type: ContainersReady, status: "True"}, {type: Ready, status: "True", lastTransitionTime: %[2]q}]}`,
		ip, time.Now().UTC().Format(time.RFC3339)))
	e.Must(err)
	e.Must(e.Status().Patch(e.Context(), e.Pod(name), client.RawPatch(types.StrategicMergePatchType, patch)))
}

// cloneSet creates a CloneSet from a file of testdata, in which it replaces texts; only the
// test acts on it.
func (e *env) cloneSet(file string, replace ...string) *appsv1alpha1.CloneSet {
	e.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	e.Must(err)
	set := &appsv1alpha1.CloneSet{}
	e.Must(yaml.Unmarshal([]byte(strings.NewReplacer(replace...).Replace(string(text))), set))
	e.Make(set)
	return set
}

// podOf creates a Pod in service as the CloneSet controller would.
func (e *env) podOf(set *appsv1alpha1.CloneSet, id string) (name string) {
	e.Helper()
	labels := map[string]string{appsv1alpha1.LabelLifecycleState: string(appsv1alpha1.StateNormal)}
	for key, value := range set.Spec.Template.Metadata.Labels {
		labels[key] = string(value)
	}
	name = set.Name + "-" + id
	e.Make(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels, OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1alpha1.KindCloneSet)}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "nginx:latest"}}},
	})
	return name
}

// registryOf creates a Registry that repairs every second; its name is unique in the cluster.
func (e *env) registryOf(name, spec string) *usherv1alpha1.Registry {
	e.Helper()
	r := &usherv1alpha1.Registry{}
	e.Must(yaml.UnmarshalStrict([]byte("metadata: {generateName: "+name+"}\nspec: {repairInterval: 1s, "+spec+"}"), r))
	e.Make(r)
	return r
}

// etcdRegistry creates a Registry for an etcd.
func (e *env) etcdRegistry(server *cluster.Etcd) *usherv1alpha1.Registry {
	e.Helper()
	return e.registryOf("discovery-", "etcd: {endpoints: ["+server.Endpoint()+"]}, timeout: 1s")
}

// register creates a Registration of the Pods with app=nginx, changed by patches.
func (e *env) register(registry string, patches ...string) {
	e.Helper()
	object := e.Object(fmt.Sprintf(`{apiVersion: usher.dev/v1alpha1, kind: Registration, metadata: {name: nginx}, spec: {
		selector: {matchLabels: {app: nginx}}, registries: [%s], instance: {service: %s, port: 80}, drain: {propagation: 1s},
		hooks: {created: %s, inPlaceUpdate: %s, preDelete: %s}}}`, registry, e.Namespace, keyCreated, keyInPlace, keyDelete), patches...)
	e.Make(object)
	e.registration = &usherv1alpha1.Registration{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: "nginx"}}
	e.Read(e.registration)
}

// condition waits for a condition of the Registration.
func (e *env) condition(kind string, status metav1.ConditionStatus, texts ...string) {
	e.Helper()
	e.Condition(e.registration, kind, status, texts...)
}

// hasLabel waits for the value of a Pod's label.
func (e *env) hasLabel(name, key, value string) {
	e.Helper()
	e.Until("label "+key+" of "+name, func() string {
		have, ok := e.Pod(name).Labels[key]
		return registrytest.Unless(ok && have == value, fmt.Sprintf("is %q, want %q", have, value))
	})
}

// gate puts a Pod into a state and waits until its hook is released.
func (e *env) gate(name string, state appsv1alpha1.LifecycleState, key, value string) {
	e.Helper()
	e.state(name, state)
	e.hasLabel(name, key, value)
}

// registered waits for a Pod's condition; an empty status matches any.
func (e *env) registered(name string, status metav1.ConditionStatus, says string) {
	e.Helper()
	e.Condition(e.Pod(name), string(usherv1alpha1.ConditionRegistered), status, says)
}

// delete deletes a Pod and waits until it does not exist.
func (e *env) delete(name string) {
	e.Helper()
	pod := e.Pod(name)
	e.remove(pod)
	e.Gone(pod)
}

// story is an env with an etcd as the registry, and a CloneSet with its Registration.
type story struct {
	*env
	etcd     *cluster.Etcd
	content  *clientv3.Client // of the etcd
	set      *appsv1alpha1.CloneSet
	registry *usherv1alpha1.Registry
}

// newStory begins a story with lifecycle.yaml. Its Registration is changed by patches.
func newStory(t *testing.T, patches ...string) *story {
	t.Helper()
	return newStoryOf(t, []string{"lifecycle.yaml"}, patches...)
}

// newStoryOf is newStory for another CloneSet: a file, and texts to replace in it.
func newStoryOf(t *testing.T, set []string, patches ...string) *story {
	t.Helper()
	e := newEnv(t)
	etcd := clustertest.StartEtcd(t)
	s := &story{env: e, etcd: etcd, content: raw(t, etcd), set: e.cloneSet(set[0], set[1:]...), registry: e.etcdRegistry(etcd)}
	s.register(s.registry.Name, patches...)
	return s
}

// ready creates a Pod of the story's CloneSet and reports it as ready.
func (s *story) ready(id, ip string) (name string) {
	s.Helper()
	name = s.podOf(s.set, id)
	s.kubelet(name, ip)
	return name
}

// serving is ready for a Pod that is registered when it returns.
func (s *story) serving(id, ip string) (name string) {
	s.Helper()
	name = s.ready(id, ip)
	s.hasLabel(name, keyCreated, "false")
	return name
}

// addresses lists what etcd itself has of the service, sorted.
func (s *story) addresses() (found []string) {
	s.Helper()
	answer, err := s.content.Get(registrytest.Bounded(s.T), prefix+"/"+s.Namespace+"/", clientv3.WithPrefix())
	s.Must(err)
	for _, kv := range answer.Kvs {
		_, rest, _ := strings.Cut(string(kv.Value), `"Addr":"`)
		address, _, _ := strings.Cut(rest, `"`)
		found = append(found, address)
	}
	slices.Sort(found)
	return found
}

// lists waits until the service has exactly these addresses.
func (s *story) lists(addresses ...string) {
	s.Helper()
	s.Until("entries in etcd", func() string {
		have := s.addresses()
		return registrytest.Unless(slices.Equal(have, addresses), fmt.Sprintf("are %v, want %v", have, addresses))
	})
}
