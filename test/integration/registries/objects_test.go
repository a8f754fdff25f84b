// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/clustertest"
)

// Keys of the hooks that the stories use.
const (
	keyCreated   = "example.com/newly-create"
	keyInPlace   = "example.com/unready-blocker-inplace"
	keyDelete    = "example.com/unready-blocker-delete"
	keyPreNormal = "example.com/traffic-online"
)

// registrationName is the name of each story's Registration.
const registrationName = "nginx"

// story is an env with an etcd as the registry, and a CloneSet with its Registration.
type story struct {
	*env
	*store
	etcd         *cluster.Etcd
	set          *appsv1alpha1.CloneSet
	registry     *usherv1alpha1.Registry
	registration *usherv1alpha1.Registration
}

// lifecycleDemo is the CloneSet of most stories.
func lifecycleDemo(t *testing.T) string { return testdata(t, "lifecycle.yaml") }

// testdata is a file of testdata.
func testdata(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	registrytest.NoError(t, err)
	return string(text)
}

// newStory begins a story with lifecycle.yaml. change is applied to its Registration.
func newStory(t *testing.T, change ...func(*usherv1alpha1.RegistrationSpec)) *story {
	t.Helper()
	return newStoryOf(t, lifecycleDemo(t), change...)
}

// newStoryOf is newStory for another CloneSet.
func newStoryOf(t *testing.T, manifest string, change ...func(*usherv1alpha1.RegistrationSpec)) *story {
	t.Helper()
	e := newEnv(t)
	etcd := clustertest.StartEtcd(t)
	s := &story{env: e, etcd: etcd, store: e.newStore(etcd), set: e.cloneSet(manifest), registry: e.newRegistry(etcd.Endpoint())}
	s.registration = e.register(append([]func(*usherv1alpha1.RegistrationSpec){
		func(r *usherv1alpha1.RegistrationSpec) { r.Registries = []string{s.registry.Name} },
	}, change...)...)
	return s
}

// hooks replaces the hooks of lifecycle.yaml.
func hooks(h usherv1alpha1.Hooks) func(*usherv1alpha1.RegistrationSpec) {
	return func(r *usherv1alpha1.RegistrationSpec) { r.Hooks = h }
}

// ready creates a Pod of the story's CloneSet and reports it as ready.
func (s *story) ready(id, ip string) (name string) {
	s.Helper()
	name = s.podOf(s.set, id, appsv1alpha1.StateNormal).Name
	s.kubelet(name, ip, true)
	return name
}

// serving is ready for a Pod that is registered when it returns.
func (s *story) serving(id, ip string) (name string) {
	s.Helper()
	name = s.ready(id, ip)
	s.hasLabel(name, keyCreated, "false")
	return name
}

// seedHooks are the hooks of the CloneSet lifecycle.yaml.
func seedHooks() usherv1alpha1.Hooks {
	return usherv1alpha1.Hooks{Created: keyCreated, InPlaceUpdate: keyInPlace, PreDelete: keyDelete}
}

// newRegistry creates a Registry for an etcd; its name is unique in the cluster.
func (e *env) newRegistry(endpoint string) *usherv1alpha1.Registry {
	e.Helper()
	return e.registryOf("discovery-", usherv1alpha1.RegistrySpec{
		Etcd:    &usherv1alpha1.EtcdRegistry{Endpoints: []string{endpoint}},
		Timeout: &metav1.Duration{Duration: time.Second},
	})
}

// registryOf creates a Registry that repairs every second.
func (e *env) registryOf(name string, spec usherv1alpha1.RegistrySpec) *usherv1alpha1.Registry {
	e.Helper()
	spec.RepairInterval = &metav1.Duration{Duration: time.Second}
	r := &usherv1alpha1.Registry{ObjectMeta: metav1.ObjectMeta{GenerateName: name}, Spec: spec}
	e.create(r)
	return r
}

// register creates a Registration of the Pods with app=nginx.
func (e *env) register(change ...func(*usherv1alpha1.RegistrationSpec)) *usherv1alpha1.Registration {
	e.Helper()
	r := &usherv1alpha1.Registration{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: registrationName},
		Spec: usherv1alpha1.RegistrationSpec{
			Selector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "nginx"}},
			Instance: usherv1alpha1.Instance{Service: e.namespace, Port: intstr.FromInt32(80)},
			Hooks:    seedHooks(),
			Drain:    usherv1alpha1.Drain{Propagation: &metav1.Duration{Duration: time.Second}},
		},
	}
	for _, do := range change {
		do(&r.Spec)
	}
	e.create(r)
	return r
}

// store reads the actual content of an etcd.
type store struct {
	env    *env
	client *clientv3.Client
	// prefix and service are what values reads.
	prefix, service string
}

func (e *env) newStore(etcd *cluster.Etcd) *store {
	e.Helper()
	return &store{env: e, client: raw(e.T, etcd), prefix: prefix, service: e.namespace}
}

// values lists the service's entries.
func (s *store) values() (values []string) {
	s.env.Helper()
	answer, err := s.client.Get(registrytest.Bounded(s.env.T), s.prefix+"/"+s.service+"/", clientv3.WithPrefix())
	s.env.must(err)
	for _, kv := range answer.Kvs {
		values = append(values, string(kv.Value))
	}
	return values
}

// addresses lists the service's addresses, sorted.
func (s *store) addresses() (found []string) {
	s.env.Helper()
	for _, value := range s.values() {
		_, rest, _ := strings.Cut(value, `"Addr":"`)
		address, _, _ := strings.Cut(rest, `"`)
		found = append(found, address)
	}
	slices.Sort(found)
	return found
}

// lists waits until the service has exactly these addresses.
func (s *store) lists(addresses ...string) {
	s.env.Helper()
	s.env.eventually("entries in etcd", func() string {
		have := s.addresses()
		return registrytest.Unless(slices.Equal(have, addresses), fmt.Sprintf("are %v, want %v", have, addresses))
	})
}

// value waits until the service's only entry has all the parts.
func (s *store) value(parts ...string) {
	s.env.Helper()
	s.env.eventually("the entry in etcd", func() string {
		have := s.values()
		return registrytest.Unless(len(have) == 1 && containsAll(have[0], parts), fmt.Sprintf("is %v, want one with %v", have, parts))
	})
}

// hasLabel waits for the value of a Pod's label.
func (e *env) hasLabel(name, key, value string) {
	e.Helper()
	e.eventually("label "+key+" of "+name, func() string {
		have, ok := e.pod(name).Labels[key]
		return registrytest.Unless(ok && have == value, fmt.Sprintf("is %q, want %q", have, value))
	})
}

// keepsLabel checks for some time that a hook is not released.
func (e *env) keepsLabel(name, key, value string, during time.Duration) {
	e.Helper()
	e.stays("label "+key+" of "+name, during, func() string {
		have := e.pod(name).Labels[key]
		return registrytest.Unless(have == value, fmt.Sprintf("is %q, want it to stay %q", have, value))
	})
}

// gate puts a Pod into a state and waits until its hook is released.
func (e *env) gate(name string, state appsv1alpha1.LifecycleState, key, value string) {
	e.Helper()
	e.state(name, state)
	e.hasLabel(name, key, value)
}

// registered waits for a Pod's condition; an empty status matches any.
func (e *env) registered(name string, status corev1.ConditionStatus, says string) {
	e.Helper()
	e.eventually("the condition of "+name, func() string {
		for _, c := range e.pod(name).Status.Conditions {
			if c.Type == usherv1alpha1.ConditionRegistered {
				fits := (status == "" || c.Status == status) && strings.Contains(c.Message, says)
				return registrytest.Unless(fits, fmt.Sprintf("is %s: %s", c.Status, c.Message))
			}
		}
		return "does not exist"
	})
}

// finalizer waits until a Pod has a finalizer, or no longer has it.
func (e *env) finalizer(name, finalizer string, has bool) {
	e.Helper()
	e.eventually("finalizer "+finalizer+" of "+name, func() string {
		have := e.pod(name).Finalizers
		return registrytest.Unless(slices.Contains(have, finalizer) == has, fmt.Sprintf("the finalizers are %v", have))
	})
}

// vanishes waits until the object does not exist.
func (e *env) vanishes(object client.Object) {
	e.Helper()
	e.eventually("the end of "+object.GetName(), func() string {
		err := e.Get(e.Context(), client.ObjectKeyFromObject(object), object)
		e.must(client.IgnoreNotFound(err))
		return registrytest.Unless(err != nil, fmt.Sprintf("it is held by %v", object.GetFinalizers()))
	})
}

// delete deletes a Pod and waits until it does not exist.
func (e *env) delete(name string) {
	e.Helper()
	pod := e.pod(name)
	e.remove(pod)
	e.vanishes(pod)
}
