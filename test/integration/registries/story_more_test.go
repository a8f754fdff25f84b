// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/test/cluster/clustertest"
)

const preNormalDemo = `
apiVersion: apps.kruise.io/v1alpha1
kind: CloneSet
metadata:
  name: online
spec:
  replicas: 3
  lifecycle:
    preNormal:
      labelsHandler:
        example.com/traffic-online: "true"
  selector:
    matchLabels:
      app: nginx
  template:
    metadata:
      labels:
        app: nginx
        example.com/traffic-online: "false"
    spec:
      containers:
      - name: main
        image: nginx:latest
  updateStrategy:
    type: ReCreate
    maxSurge: 1
    maxUnavailable: 0
`

// TestStoryPreNormal holds back a new Pod until callers find it.
func TestStoryPreNormal(t *testing.T) {
	e := newEnv(t)
	etcd := clustertest.StartEtcd(t)
	store := e.store(etcd.Endpoint())
	set := e.cloneSet(preNormalDemo)
	e.newRegistration(time.Second, usherv1alpha1.Hooks{PreNormal: keyPreNormal}, e.newRegistry(etcd.Endpoint()).Name)

	name := e.podOf(set, "aaaaa", appsv1alpha1.StatePreparingNormal).Name
	e.kubelet(name, "10.0.0.1", false)
	e.never("a Pod that is not ready", time.Second, func() string {
		if value := e.pod(name).Labels[keyPreNormal]; value != "false" {
			return "its hook is " + value
		}
		return ""
	})
	store.lists()
	e.kubelet(name, "10.0.0.1", true)
	e.hasLabel(name, keyPreNormal, "true")
	store.lists("10.0.0.1:80")
}

// TestStoryDirectDelete deletes a Pod behind its CloneSet's back, as an eviction does.
func TestStoryDirectDelete(t *testing.T) {
	e := newEnv(t)
	etcd := clustertest.StartEtcd(t)
	store := e.store(etcd.Endpoint())
	set := e.cloneSet(lifecycleDemo)
	e.newRegistration(time.Second, seedHooks(), e.newRegistry(etcd.Endpoint()).Name)
	name := e.podOf(set, "aaaaa", appsv1alpha1.StateNormal).Name
	e.kubelet(name, "10.0.0.1", true)
	e.hasLabel(name, keyCreated, "false")

	if err := etcd.Kill(); err != nil {
		t.Fatal(err)
	}
	e.remove(e.pod(name))
	e.condition(usherv1alpha1.ConditionWaiting, "True", "", name, "discovery-")
	e.never("the Pod's object", time.Second, func() string {
		if e.gone(name) {
			return "it is gone, and the registry may still list it"
		}
		return ""
	})
	if err := etcd.Restart(e.Context()); err != nil {
		t.Fatal(err)
	}
	e.vanishes(name)
	store.lists()
}

// TestStoryRegistryDown stops one of two registries in mid-drain.
func TestStoryRegistryDown(t *testing.T) {
	e := newEnv(t)
	up, down := clustertest.StartEtcd(t), clustertest.StartEtcd(t)
	upStore, downStore := e.store(up.Endpoint()), e.store(down.Endpoint())
	set := e.cloneSet(lifecycleDemo)
	broken := e.newRegistry(down.Endpoint())
	e.newRegistration(time.Second, seedHooks(), e.newRegistry(up.Endpoint()).Name, broken.Name)
	name := e.podOf(set, "aaaaa", appsv1alpha1.StateNormal).Name
	e.kubelet(name, "10.0.0.1", true)
	e.hasLabel(name, keyCreated, "false")
	upStore.lists("10.0.0.1:80")
	downStore.lists("10.0.0.1:80")

	if err := down.Kill(); err != nil {
		t.Fatal(err)
	}
	e.state(name, appsv1alpha1.StatePreparingUpdate)
	upStore.lists() // The other registry continues.
	e.condition(usherv1alpha1.ConditionWaiting, "True", "", name, keyInPlace, broken.Name, "since")
	e.condition(usherv1alpha1.ConditionReady, "False", "RegistryUnavailable", broken.Name)
	e.registered(name, "", "Waits at inPlaceUpdate ("+keyInPlace+") for Registry "+broken.Name+" since ")
	e.never("the hook", 2*time.Second, func() string {
		if value := e.pod(name).Labels[keyInPlace]; value != "true" {
			return "it was released although a registry is down"
		}
		return ""
	})
	if err := down.Restart(e.Context()); err != nil {
		t.Fatal(err)
	}
	e.hasLabel(name, keyInPlace, "false")
	downStore.lists()
	e.condition(usherv1alpha1.ConditionWaiting, "False", "")
	e.condition(usherv1alpha1.ConditionReady, "True", "")
}

// TestStoryUnknownRegistry names a Registry before it exists.
func TestStoryUnknownRegistry(t *testing.T) {
	e := newEnv(t)
	etcd := clustertest.StartEtcd(t)
	store := e.store(etcd.Endpoint())
	set := e.cloneSet(lifecycleDemo)
	name := "late-" + e.namespace
	e.newRegistration(time.Second, seedHooks(), name)
	pod := e.podOf(set, "aaaaa", appsv1alpha1.StateNormal).Name
	e.kubelet(pod, "10.0.0.1", true)
	e.condition(usherv1alpha1.ConditionReady, "False", "RegistryNotFound", name, "create it")
	if finalizers := e.pod(pod).Finalizers; len(finalizers) > 0 {
		t.Errorf("a Pod that is nowhere is held by %v", finalizers)
	}
	e.create(&usherv1alpha1.Registry{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       usherv1alpha1.RegistrySpec{Etcd: &usherv1alpha1.EtcdRegistry{Endpoints: []string{etcd.Endpoint()}}},
	})
	e.condition(usherv1alpha1.ConditionReady, "True", "")
	e.hasLabel(pod, keyCreated, "false")
	store.lists("10.0.0.1:80")
}

// TestStoryNotAllowed excludes a namespace from a Registry, then allows it.
func TestStoryNotAllowed(t *testing.T) {
	e := newEnv(t)
	etcd := clustertest.StartEtcd(t)
	store := e.store(etcd.Endpoint())
	set := e.cloneSet(lifecycleDemo)
	registry := e.newRegistry(etcd.Endpoint())
	e.patch(registry, map[string]any{"spec": map[string]any{"namespaces": map[string]any{
		"matchLabels": map[string]any{"discovery": "yes"},
	}}})
	e.newRegistration(time.Second, seedHooks(), registry.Name)
	pod := e.podOf(set, "aaaaa", appsv1alpha1.StateNormal).Name
	e.kubelet(pod, "10.0.0.1", true)
	e.condition(usherv1alpha1.ConditionReady, "False", "RegistryNotAllowed", e.namespace, registry.Name)
	store.lists()
	e.patch(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: e.namespace}}, map[string]any{
		"metadata": map[string]any{"labels": map[string]any{"discovery": "yes"}},
	})
	e.hasLabel(pod, keyCreated, "false")
	store.lists("10.0.0.1:80")
}

// TestStoryRestart stops the operator in mid-propagation.
func TestStoryRestart(t *testing.T) {
	const propagation = 4 * time.Second
	e := newEnv(t)
	etcd := clustertest.StartEtcd(t)
	store := e.store(etcd.Endpoint())
	set := e.cloneSet(lifecycleDemo)
	e.newRegistration(propagation, seedHooks(), e.newRegistry(etcd.Endpoint()).Name)
	name := e.podOf(set, "aaaaa", appsv1alpha1.StateNormal).Name
	e.kubelet(name, "10.0.0.1", true)
	e.hasLabel(name, keyCreated, "false")

	e.state(name, appsv1alpha1.StatePreparingUpdate)
	record := ""
	e.eventually("the drain record", func() string {
		if record = e.pod(name).Annotations[usherv1alpha1.AnnotationDrain]; record == "" {
			return "there is none"
		}
		return ""
	})
	gone := time.Now()
	store.lists()
	e.stop()
	e.never("the hook while the operator is down", propagation/2, func() string {
		if value := e.pod(name).Labels[keyInPlace]; value != "true" {
			return "it is " + value
		}
		return ""
	})
	e.start()
	e.eventually("the hook", func() string {
		pod := e.pod(name)
		switch now := pod.Annotations[usherv1alpha1.AnnotationDrain]; {
		case pod.Labels[keyInPlace] == "false":
			return ""
		case now != record:
			t.Fatalf("the record began anew: %s, before %s", now, record)
		}
		return "it is not released"
	})
	// The record was written before it could be seen here.
	if waited := time.Since(gone); waited < propagation-time.Second || waited > propagation+patience/2 {
		t.Errorf("the hook was released %s after the entry went, want about %s", waited, propagation)
	}
}

// TestStoryTearDown deletes everything at once; nothing is left behind.
func TestStoryTearDown(t *testing.T) {
	e := newEnv(t)
	etcd := clustertest.StartEtcd(t)
	store := e.store(etcd.Endpoint())
	set := e.cloneSet(lifecycleDemo)
	registry := e.newRegistry(etcd.Endpoint())
	registration := e.newRegistration(time.Second, seedHooks(), registry.Name)
	for n := range 3 {
		name := e.podOf(set, fmt.Sprintf("aaaa%d", n), appsv1alpha1.StateNormal).Name
		e.kubelet(name, fmt.Sprintf("10.0.0.%d", n+1), true)
		e.hasLabel(name, keyCreated, "false")
	}
	store.lists("10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80")
	e.remove(registry)
	e.remove(registration)
	for _, object := range []client.Object{registry, registration} {
		e.eventually(fmt.Sprintf("the end of %T", object), func() string {
			if err := e.Get(e.Context(), client.ObjectKeyFromObject(object), object); client.IgnoreNotFound(err) != nil {
				return err.Error()
			} else if err == nil {
				return fmt.Sprintf("it is held by %v", object.GetFinalizers())
			}
			return ""
		})
	}
	store.lists()
	if finalizers := e.pod(set.Name + "-aaaa0").Finalizers; len(finalizers) > 0 {
		t.Errorf("a Pod that nobody registers is held by %v", finalizers)
	}
}

// TestStoryHooksThatDoNotMatch reports a hook that only one side names to both sides.
func TestStoryHooksThatDoNotMatch(t *testing.T) {
	e := newEnv(t)
	etcd := clustertest.StartEtcd(t)
	set := e.cloneSet(lifecycleDemo)
	hooks := seedHooks()
	hooks.PreDelete = "example.com/misspelt"
	e.newRegistration(time.Second, hooks, e.newRegistry(etcd.Endpoint()).Name)
	e.condition(usherv1alpha1.ConditionHooksMatched, "False", "", "example.com/misspelt", set.Name, keyDelete)
	e.event(set, "HookUnanswered", keyDelete)
	e.event(set, "HookUnused", "example.com/misspelt")
}

// TestStoryMove changes the service: the old one is left, the new one joined.
func TestStoryMove(t *testing.T) {
	e := newEnv(t)
	etcd := clustertest.StartEtcd(t)
	store := e.store(etcd.Endpoint())
	set := e.cloneSet(lifecycleDemo)
	registration := e.newRegistration(time.Second, seedHooks(), e.newRegistry(etcd.Endpoint()).Name)
	name := e.podOf(set, "aaaaa", appsv1alpha1.StateNormal).Name
	e.kubelet(name, "10.0.0.1", true)
	e.hasLabel(name, keyCreated, "false")
	store.lists("10.0.0.1:80")
	e.patch(registration, map[string]any{"spec": map[string]any{"instance": map[string]any{"service": "moved"}}})
	store.lists()
	store.service = "moved"
	store.lists("10.0.0.1:80")
}
