// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"testing"
	"time"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/test/cluster/clustertest"
)

// seedHooks are the hooks of the CloneSet lifecycleDemo.
func seedHooks() usherv1alpha1.Hooks {
	return usherv1alpha1.Hooks{Created: keyCreated, InPlaceUpdate: keyInPlace, PreDelete: keyDelete}
}

// TestStoryLabelHooks takes one Pod through its whole life with label hooks.
func TestStoryLabelHooks(t *testing.T) {
	const propagation = time.Second
	e := newEnv(t)
	etcd := clustertest.StartEtcd(t)
	store := e.store(etcd.Endpoint())
	set := e.cloneSet(lifecycleDemo)
	registry := e.newRegistry(etcd.Endpoint())
	e.newRegistration(propagation, seedHooks(), registry.Name)

	name := e.podOf(set, "aaaaa", appsv1alpha1.StateNormal).Name
	e.kubelet(name, "10.0.0.1", true)
	e.hasLabel(name, keyCreated, "false")
	store.lists("10.0.0.1:80")
	e.condition(usherv1alpha1.ConditionReady, "True", "")
	e.condition(usherv1alpha1.ConditionHooksMatched, "True", "")

	began := time.Now()
	e.state(name, appsv1alpha1.StatePreparingUpdate)
	e.hasLabel(name, keyInPlace, "false")
	if took := time.Since(began); took < propagation {
		t.Errorf("the hook was released after %s, before propagation of %s", took, propagation)
	}
	store.lists()

	e.state(name, appsv1alpha1.StateUpdating)
	e.kubelet(name, "10.0.0.1", false)
	e.state(name, appsv1alpha1.StateUpdated)
	e.kubelet(name, "10.0.0.1", true)
	e.hasLabel(name, keyInPlace, "true")
	store.lists("10.0.0.1:80")

	e.state(name, appsv1alpha1.StateNormal)
	e.state(name, appsv1alpha1.StatePreparingDelete)
	e.hasLabel(name, keyDelete, "false")
	store.lists()
	e.remove(e.pod(name))
	e.vanishes(name)
}
