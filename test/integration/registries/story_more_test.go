// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/cluster/clustertest"
)

// TestStoryDirectDelete deletes a Pod behind its CloneSet's back, as an eviction does.
func TestStoryDirectDelete(t *testing.T) {
	s := newStory(t)
	name := s.serving("aaaaa", "10.0.0.1")
	s.must(s.etcd.Kill())
	pod := s.pod(name)
	s.remove(pod)
	s.condition(usherv1alpha1.ConditionWaiting, "True", "", name, "discovery-")
	s.stays("the Pod's object", time.Second, func() string {
		s.pod(name) // It must exist: the registry may still list it.
		return ""
	})
	s.must(s.etcd.Restart(s.Context()))
	s.vanishes(pod)
	s.lists()
}

// TestStoryRegistryDown stops one of two registries in mid-drain.
func TestStoryRegistryDown(t *testing.T) {
	down := clustertest.StartEtcd(t)
	s := newStory(t)
	broken, downStore := s.newRegistry(down.Endpoint()), s.newStore(down)
	s.patch(s.registration, map[string]any{"spec": map[string]any{"registries": []string{s.registry.Name, broken.Name}}})
	name := s.serving("aaaaa", "10.0.0.1")
	s.lists("10.0.0.1:80")
	downStore.lists("10.0.0.1:80")

	s.must(down.Kill())
	s.state(name, appsv1alpha1.StatePreparingUpdate)
	s.lists() // The other registry continues.
	s.condition(usherv1alpha1.ConditionWaiting, "True", "", name, keyInPlace, broken.Name, "since")
	s.condition(usherv1alpha1.ConditionReady, "False", "RegistryUnavailable", broken.Name)
	s.registered(name, "", "Waits at inPlaceUpdate ("+keyInPlace+") for Registry "+broken.Name+" since ")
	s.keepsLabel(name, keyInPlace, "true", 2*time.Second)
	s.must(down.Restart(s.Context()))
	s.hasLabel(name, keyInPlace, "false")
	downStore.lists()
	s.condition(usherv1alpha1.ConditionWaiting, "False", "")
	s.condition(usherv1alpha1.ConditionReady, "True", "")
}

// TestStoryUnknownRegistry names a Registry before it exists.
func TestStoryUnknownRegistry(t *testing.T) {
	var late string
	s := newStory(t, func(r *usherv1alpha1.RegistrationSpec) {
		late = "late-" + r.Instance.Service
		r.Registries = []string{late}
	})
	pod := s.ready("aaaaa", "10.0.0.1")
	s.condition(usherv1alpha1.ConditionReady, "False", "RegistryNotFound", late, "create it")
	if finalizers := s.pod(pod).Finalizers; len(finalizers) > 0 {
		t.Errorf("a Pod that is in no registry is held by %v", finalizers)
	}
	s.create(&usherv1alpha1.Registry{
		ObjectMeta: metav1.ObjectMeta{Name: late},
		Spec:       usherv1alpha1.RegistrySpec{Etcd: &usherv1alpha1.EtcdRegistry{Endpoints: []string{s.etcd.Endpoint()}}},
	})
	s.condition(usherv1alpha1.ConditionReady, "True", "")
	s.hasLabel(pod, keyCreated, "false")
	s.lists("10.0.0.1:80")
}

// TestStoryNotAllowed excludes a namespace from a Registry, then allows it.
func TestStoryNotAllowed(t *testing.T) {
	s := newStory(t)
	s.patch(s.registry, map[string]any{"spec": map[string]any{"namespaces": map[string]any{
		"matchLabels": map[string]any{"discovery": "yes"},
	}}})
	pod := s.ready("aaaaa", "10.0.0.1")
	s.condition(usherv1alpha1.ConditionReady, "False", "RegistryNotAllowed", s.namespace, s.registry.Name)
	s.lists()
	s.patch(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}}, map[string]any{
		"metadata": map[string]any{"labels": map[string]any{"discovery": "yes"}},
	})
	s.hasLabel(pod, keyCreated, "false")
	s.lists("10.0.0.1:80")
}

// TestStoryRestart stops the operator in mid-propagation.
func TestStoryRestart(t *testing.T) {
	const propagation = 4 * time.Second
	s := newStory(t, func(r *usherv1alpha1.RegistrationSpec) { r.Drain.Propagation.Duration = propagation })
	name := s.serving("aaaaa", "10.0.0.1")
	s.state(name, appsv1alpha1.StatePreparingUpdate)
	record := ""
	s.eventually("the drain record", func() string {
		record = s.pod(name).Annotations[usherv1alpha1.AnnotationDrain]
		return registrytest.Unless(record != "", "there is none")
	})
	gone := time.Now()
	s.lists()
	s.stop()
	s.keepsLabel(name, keyInPlace, "true", propagation/2)
	s.start()
	s.eventually("the hook", func() string {
		pod := s.pod(name)
		released := pod.Labels[keyInPlace] == "false"
		if now := pod.Annotations[usherv1alpha1.AnnotationDrain]; !released && now != record {
			t.Fatalf("the record started again: %s, before %s", now, record)
		}
		return registrytest.Unless(released, "it is not released")
	})
	// The record was written before it could be seen here.
	if waited := time.Since(gone); waited < propagation-time.Second || waited > propagation+15*time.Second {
		t.Errorf("the hook was released %s after the entry was removed, want about %s", waited, propagation)
	}
}

// staysListed checks for a second that the store keeps n entries.
func (s *story) staysListed(n int) {
	s.Helper()
	s.stays("the entries", time.Second, func() string {
		have := s.addresses()
		return registrytest.Unless(len(have) == n, fmt.Sprintf("are %v, want %d", have, n))
	})
}

// pastDeadline drains a Pod from a registry that is down until the deadline of two
// seconds has passed.
func pastDeadline(t *testing.T, policy usherv1alpha1.DeadlinePolicy) (*story, string) {
	t.Helper()
	s := newStory(t, func(r *usherv1alpha1.RegistrationSpec) {
		r.Drain.Deadline, r.Drain.OnDeadline = &metav1.Duration{Duration: 2 * time.Second}, policy
	})
	name := s.serving("aaaaa", "10.0.0.1")
	s.must(s.etcd.Kill())
	s.state(name, appsv1alpha1.StatePreparingUpdate)
	return s, name
}

// TestStoryDeadlineBlock keeps waiting, and reports it.
func TestStoryDeadlineBlock(t *testing.T) {
	s, name := pastDeadline(t, usherv1alpha1.DeadlineBlock)
	s.condition(usherv1alpha1.ConditionWaiting, "True", "DeadlineExceeded", name, keyInPlace)
	s.event(s.pod(name), "DeadlineExceeded", keyInPlace)
	if value := s.pod(name).Labels[keyInPlace]; value != "true" {
		t.Errorf("the hook is %s", value)
	}
}

// TestStoryDeadlineProceed releases the Pod, with a warning.
func TestStoryDeadlineProceed(t *testing.T) {
	s, name := pastDeadline(t, usherv1alpha1.DeadlineProceed)
	s.hasLabel(name, keyInPlace, "false")
	s.event(s.pod(name), "HookReleasedAtDeadline", keyInPlace, "discovery-")
}
