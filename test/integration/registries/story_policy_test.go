// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/test/cluster/clustertest"
)

// drainPastDeadline drains a Pod from a registry that is down until the deadline of two
// seconds has passed.
func drainPastDeadline(t *testing.T, policy usherv1alpha1.DeadlinePolicy) (*env, string) {
	t.Helper()
	e := newEnv(t)
	etcd := clustertest.StartEtcd(t)
	set := e.cloneSet(lifecycleDemo)
	registration := e.newRegistration(time.Second, seedHooks(), e.newRegistry(etcd.Endpoint()).Name)
	e.patch(registration, map[string]any{"spec": map[string]any{"drain": map[string]any{
		"deadline": "2s", "onDeadline": string(policy),
	}}})
	name := e.podOf(set, "aaaaa", appsv1alpha1.StateNormal).Name
	e.kubelet(name, "10.0.0.1", true)
	e.hasLabel(name, keyCreated, "false")
	if err := etcd.Kill(); err != nil {
		t.Fatal(err)
	}
	e.state(name, appsv1alpha1.StatePreparingUpdate)
	return e, name
}

// TestStoryDeadlineBlock keeps waiting, and reports it.
func TestStoryDeadlineBlock(t *testing.T) {
	e, name := drainPastDeadline(t, usherv1alpha1.DeadlineBlock)
	e.condition(usherv1alpha1.ConditionWaiting, "True", "DeadlineExceeded", name, keyInPlace)
	e.event(e.pod(name), "DeadlineExceeded", keyInPlace)
	if value := e.pod(name).Labels[keyInPlace]; value != "true" {
		t.Errorf("the hook is %s", value)
	}
}

// TestStoryDeadlineProceed releases the Pod, with a warning.
func TestStoryDeadlineProceed(t *testing.T) {
	e, name := drainPastDeadline(t, usherv1alpha1.DeadlineProceed)
	e.hasLabel(name, keyInPlace, "false")
	e.event(e.pod(name), "HookReleasedAtDeadline", keyInPlace, "discovery-")
}

// TestStoryNewPrefix moves the entries of an etcd Registry.
func TestStoryNewPrefix(t *testing.T) {
	e := newEnv(t)
	etcd := clustertest.StartEtcd(t)
	store := e.store(etcd.Endpoint())
	set := e.cloneSet(lifecycleDemo)
	registry := e.newRegistry(etcd.Endpoint())
	e.newRegistration(time.Second, seedHooks(), registry.Name)
	name := e.podOf(set, "aaaaa", appsv1alpha1.StateNormal).Name
	e.kubelet(name, "10.0.0.1", true)
	e.hasLabel(name, keyCreated, "false")
	store.lists("10.0.0.1:80")
	e.patch(registry, map[string]any{"spec": map[string]any{"etcd": map[string]any{"prefix": "moved/here"}}})
	store.lists()
	store.prefix = "moved/here"
	store.lists("10.0.0.1:80")
	e.eventually("the recorded targets", func() string {
		targets := e.registration().Status.Targets
		if len(targets) != 1 || targets[0].Prefix != "moved/here" {
			return "are wrong"
		}
		return ""
	})
}

// TestStoryFinalizerHooks does with finalizers what the seeds do with labels.
func TestStoryFinalizerHooks(t *testing.T) {
	const hook = "example.com/drained"
	e := newEnv(t)
	etcd := clustertest.StartEtcd(t)
	store := e.store(etcd.Endpoint())
	set := e.cloneSet(strings.NewReplacer(
		"labelsHandler:\n        example.com/unready-blocker-inplace: \"true\"", "finalizersHandler: ["+hook+"]",
		"labelsHandler:\n        example.com/unready-blocker-delete: \"true\"", "finalizersHandler: ["+hook+"]",
	).Replace(lifecycleDemo))
	hooks := usherv1alpha1.Hooks{InPlaceUpdate: hook, PreDelete: hook}
	e.newRegistration(time.Second, hooks, e.newRegistry(etcd.Endpoint()).Name)
	name := e.podOf(set, "aaaaa", appsv1alpha1.StateNormal).Name
	e.patch(e.pod(name), map[string]any{"metadata": map[string]any{"finalizers": []string{hook}}})
	e.kubelet(name, "10.0.0.1", true)
	store.lists("10.0.0.1:80")
	e.condition(usherv1alpha1.ConditionHooksMatched, "True", "")

	e.state(name, appsv1alpha1.StatePreparingUpdate)
	e.finalizer(name, hook, false)
	store.lists()
	e.state(name, appsv1alpha1.StateUpdated)
	e.finalizer(name, hook, true)
	store.lists("10.0.0.1:80")

	// Somebody other than the CloneSet deletes it: the hook must not hold it forever.
	e.remove(e.pod(name))
	e.vanishes(name)
	store.lists()
}

// TestStoryReadiness: a Pod leaves and comes back with its readiness.
func TestStoryReadiness(t *testing.T) {
	e := newEnv(t)
	etcd := clustertest.StartEtcd(t)
	store := e.store(etcd.Endpoint())
	set := e.cloneSet(lifecycleDemo)
	e.newRegistration(time.Second, seedHooks(), e.newRegistry(etcd.Endpoint()).Name)
	name := e.podOf(set, "aaaaa", appsv1alpha1.StateNormal).Name
	registered := func(want metav1.ConditionStatus) {
		t.Helper()
		e.eventually("the Pod's condition", func() string {
			for _, c := range e.pod(name).Status.Conditions {
				if c.Type == usherv1alpha1.ConditionRegistered && string(c.Status) == string(want) {
					return ""
				}
			}
			return "is not " + string(want)
		})
	}
	e.kubelet(name, "10.0.0.1", true)
	registered("True")
	store.lists("10.0.0.1:80")
	e.kubelet(name, "10.0.0.1", false)
	registered("False")
	store.lists()
	e.kubelet(name, "10.0.0.1", true)
	registered("True")
	store.lists("10.0.0.1:80")
}
