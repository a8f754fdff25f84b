// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"strconv"
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
	s.Must(s.etcd.Kill())
	pod := s.Pod(name)
	s.remove(pod)
	s.condition(usherv1alpha1.ConditionWaiting, "True", name, "discovery-")
	s.Stays("the Pod's object", time.Second, func() string {
		s.Pod(name) // It must exist: the registry may still list it.
		return ""
	})
	s.Must(s.etcd.Restart(s.Context()))
	s.Gone(pod)
	s.lists()
}

// TestStoryRegistryDown stops one of two registries in mid-drain.
func TestStoryRegistryDown(t *testing.T) {
	down := clustertest.StartEtcd(t)
	s := newStory(t)
	broken, downStore := s.etcdRegistry(down), s.newStore(down)
	s.Change(s.registration, "spec: {registries: [%s, %s]}", s.registry.Name, broken.Name)
	name := s.serving("aaaaa", "10.0.0.1")
	s.lists("10.0.0.1:80")
	downStore.lists("10.0.0.1:80")

	s.Must(down.Kill())
	s.state(name, appsv1alpha1.StatePreparingUpdate)
	s.lists() // The other registry continues.
	s.condition(usherv1alpha1.ConditionWaiting, "True", name, keyInPlace, broken.Name, "since")
	s.condition(usherv1alpha1.ConditionReady, "False", "RegistryUnavailable: ", broken.Name)
	s.registered(name, "", "Waits at inPlaceUpdate ("+keyInPlace+") for Registry "+broken.Name+" since ")
	s.keepsLabel(name, keyInPlace, "true", 2*time.Second)
	s.Must(down.Restart(s.Context()))
	s.hasLabel(name, keyInPlace, "false")
	downStore.lists()
	s.condition(usherv1alpha1.ConditionWaiting, "False")
	s.condition(usherv1alpha1.ConditionReady, "True")
}

// TestStoryUnknownRegistry names a Registry before it exists.
func TestStoryUnknownRegistry(t *testing.T) {
	late := "late-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	s := newStory(t, "spec: {registries: ["+late+"]}")
	pod := s.ready("aaaaa", "10.0.0.1")
	s.condition(usherv1alpha1.ConditionReady, "False", "RegistryNotFound: ", late, "create it")
	if finalizers := s.Pod(pod).Finalizers; len(finalizers) > 0 {
		t.Errorf("a Pod that is in no registry is held by %v", finalizers)
	}
	s.Make(s.Object(`{apiVersion: usher.dev/v1alpha1, kind: Registry, metadata: {name: ` + late + `}, spec: {etcd: {endpoints: [` + s.etcd.Endpoint() + `]}}}`))
	s.condition(usherv1alpha1.ConditionReady, "True")
	s.hasLabel(pod, keyCreated, "false")
	s.lists("10.0.0.1:80")
}

// TestStoryNotAllowed excludes a namespace from a Registry, then allows it.
func TestStoryNotAllowed(t *testing.T) {
	s := newStory(t)
	s.Change(s.registry, `spec: {namespaces: {matchLabels: {discovery: "yes"}}}`)
	pod := s.ready("aaaaa", "10.0.0.1")
	s.condition(usherv1alpha1.ConditionReady, "False", "RegistryNotAllowed: ", s.Namespace, s.registry.Name)
	s.lists()
	s.Change(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.Namespace}}, `metadata: {labels: {discovery: "yes"}}`)
	s.hasLabel(pod, keyCreated, "false")
	s.lists("10.0.0.1:80")
}

// TestStoryRestart stops the operator in mid-propagation.
func TestStoryRestart(t *testing.T) {
	const propagation = 4 * time.Second
	s := newStory(t, "spec: {drain: {propagation: 4s}}")
	name := s.serving("aaaaa", "10.0.0.1")
	s.state(name, appsv1alpha1.StatePreparingUpdate)
	record := ""
	s.Until("the drain record", func() string {
		record = s.Pod(name).Annotations[usherv1alpha1.AnnotationDrain]
		return registrytest.Unless(record != "", "there is none")
	})
	gone := time.Now()
	s.lists()
	s.stop()
	s.keepsLabel(name, keyInPlace, "true", propagation/2)
	s.start()
	s.Until("the hook", func() string {
		pod := s.Pod(name)
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

// pastDeadline drains a Pod from a registry that is down until the deadline of two
// seconds has passed.
func pastDeadline(t *testing.T, policy usherv1alpha1.DeadlinePolicy) (*story, string) {
	t.Helper()
	s := newStory(t, "spec: {drain: {deadline: 2s, onDeadline: "+string(policy)+"}}")
	name := s.serving("aaaaa", "10.0.0.1")
	s.Must(s.etcd.Kill())
	s.state(name, appsv1alpha1.StatePreparingUpdate)
	return s, name
}

// TestStoryDeadlineBlock keeps waiting, and reports it.
func TestStoryDeadlineBlock(t *testing.T) {
	s, name := pastDeadline(t, usherv1alpha1.DeadlineBlock)
	s.condition(usherv1alpha1.ConditionWaiting, "True", "DeadlineExceeded: ", name, keyInPlace)
	s.Event(s.Pod(name), "DeadlineExceeded", keyInPlace)
	if value := s.Pod(name).Labels[keyInPlace]; value != "true" {
		t.Errorf("the hook is %s", value)
	}
}

// TestStoryDeadlineProceed releases the Pod, with a warning.
func TestStoryDeadlineProceed(t *testing.T) {
	s, name := pastDeadline(t, usherv1alpha1.DeadlineProceed)
	s.hasLabel(name, keyInPlace, "false")
	s.Event(s.Pod(name), "HookReleasedAtDeadline", keyInPlace, "discovery-")
}
