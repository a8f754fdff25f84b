// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
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

const lifecycleDemo = `
apiVersion: apps.kruise.io/v1alpha1
kind: CloneSet
metadata:
  name: cloneset-lifecycle-demo
spec:
  replicas: 2
  lifecycle:
    inPlaceUpdate:
      labelsHandler:
        example.com/unready-blocker-inplace: "true"
    preDelete:
      labelsHandler:
        example.com/unready-blocker-delete: "true"
  selector:
    matchLabels:
      app: nginx
  template:
    metadata:
      labels:
        app: nginx
        example.com/newly-create: "true"
        example.com/unready-blocker-inplace: "true"
        example.com/unready-blocker-delete: "true"
    spec:
      containers:
      - name: main
        image: nginx:latest
  updateStrategy:
    type: InPlaceIfPossible
`

// newRegistry creates a Registry for an etcd; its name is unique in the cluster.
func (e *env) newRegistry(endpoint string) *usherv1alpha1.Registry {
	e.Helper()
	r := &usherv1alpha1.Registry{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "discovery-"},
		Spec: usherv1alpha1.RegistrySpec{
			Etcd:           &usherv1alpha1.EtcdRegistry{Endpoints: []string{endpoint}},
			Timeout:        &metav1.Duration{Duration: time.Second},
			RepairInterval: &metav1.Duration{Duration: time.Second},
		},
	}
	e.create(r)
	return r
}

// newRegistration creates a Registration of the Pods with app=nginx.
func (e *env) newRegistration(propagation time.Duration, hooks usherv1alpha1.Hooks, registries ...string) *usherv1alpha1.Registration {
	e.Helper()
	r := &usherv1alpha1.Registration{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: registrationName},
		Spec: usherv1alpha1.RegistrationSpec{
			Selector:   metav1.LabelSelector{MatchLabels: map[string]string{"app": "nginx"}},
			Registries: registries,
			Instance:   usherv1alpha1.Instance{Service: e.namespace, Port: intstr.FromInt32(80)},
			Hooks:      hooks,
			Drain:      usherv1alpha1.Drain{Propagation: &metav1.Duration{Duration: propagation}},
		},
	}
	e.create(r)
	return r
}

// store reads the actual content of an etcd.
type store struct {
	*env
	client *clientv3.Client
	// prefix and service are what addresses reads.
	prefix, service string
}

func (e *env) store(endpoint string) *store {
	e.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: patience})
	if err != nil {
		e.Fatal(err)
	}
	e.Cleanup(func() { _ = c.Close() })
	return &store{env: e, client: c, prefix: "services", service: e.namespace}
}

// addresses lists the service's addresses, sorted.
func (s *store) addresses() []string {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	answer, err := s.client.Get(ctx, s.prefix+"/"+s.service+"/", clientv3.WithPrefix())
	if err != nil {
		s.Fatal(err)
	}
	var found []string
	for _, kv := range answer.Kvs {
		_, rest, _ := strings.Cut(string(kv.Value), `"Addr":"`)
		address, _, _ := strings.Cut(rest, `"`)
		found = append(found, address)
	}
	slices.Sort(found)
	return found
}

func (s *store) lists(addresses ...string) {
	s.Helper()
	s.eventually("entries in etcd", func() string {
		if have := s.addresses(); !slices.Equal(have, addresses) {
			return fmt.Sprintf("are %v, want %v", have, addresses)
		}
		return ""
	})
}

// hasLabel waits for the value of a Pod's label.
func (e *env) hasLabel(name, key, value string) {
	e.Helper()
	e.eventually("label "+key+" of "+name, func() string {
		if have, ok := e.pod(name).Labels[key]; have != value || !ok {
			return fmt.Sprintf("is %q, want %q", have, value)
		}
		return ""
	})
}

// finalizer waits until a Pod has a finalizer, or no longer has it.
func (e *env) finalizer(name, finalizer string, has bool) {
	e.Helper()
	e.eventually("finalizer "+finalizer+" of "+name, func() string {
		if have := e.pod(name).Finalizers; slices.Contains(have, finalizer) != has {
			return fmt.Sprintf("finalizers are %v", have)
		}
		return ""
	})
}

// vanishes waits until the Pod is gone.
func (e *env) vanishes(name string) {
	e.Helper()
	e.eventually("the end of "+name, func() string {
		var pod corev1.Pod
		err := e.Get(e.Context(), client.ObjectKey{Namespace: e.namespace, Name: name}, &pod)
		switch {
		case apierrors.IsNotFound(err):
			return ""
		case err != nil:
			return err.Error()
		}
		return fmt.Sprintf("it is held by %v", pod.Finalizers)
	})
}

func (e *env) remove(object client.Object) {
	e.Helper()
	if err := e.Delete(e.Context(), object); err != nil {
		e.Fatal(err)
	}
}
