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
