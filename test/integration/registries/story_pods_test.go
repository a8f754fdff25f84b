// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/test/cluster/clustertest"
)

// registered waits for a Pod's condition; an empty status matches any.
func (e *env) registered(name string, status corev1.ConditionStatus, says string) {
	e.Helper()
	e.eventually("the condition of "+name, func() string {
		for _, c := range e.pod(name).Status.Conditions {
			if c.Type != usherv1alpha1.ConditionRegistered {
				continue
			}
			if (status == "" || c.Status == status) && strings.Contains(c.Message, says) {
				return ""
			}
			return fmt.Sprintf("is %s: %s", c.Status, c.Message)
		}
		return "is not there"
	})
}

// value waits until the service's only entry in etcd has all the parts.
func (s *store) value(parts ...string) {
	s.Helper()
	s.eventually("the entry in etcd", func() string {
		answer, err := s.client.Get(s.Context(), s.prefix+"/"+s.service+"/", clientv3.WithPrefix())
		if err != nil {
			return err.Error()
		}
		if len(answer.Kvs) != 1 {
			return fmt.Sprintf("is one of %d", len(answer.Kvs))
		}
		for _, part := range parts {
			if !strings.Contains(string(answer.Kvs[0].Value), part) {
				return fmt.Sprintf("is %s, without %s", answer.Kvs[0].Value, part)
			}
		}
		return ""
	})
}

// keyWeight is the annotation that sets the weight.
const keyWeight = "example.com/weight"

// weigh writes that annotation; nil removes it.
func (e *env) weigh(name string, value any) {
	e.Helper()
	e.patch(e.pod(name), map[string]any{"metadata": map[string]any{"annotations": map[string]any{keyWeight: value}}})
}

// TestStoryValuesOfPods takes weight, tags and metadata from a Pod, and follows
// changes. Invalid values are reported, and the Registration's fixed value
// is used instead.
func TestStoryValuesOfPods(t *testing.T) {
	e := newEnv(t)
	etcd := clustertest.StartEtcd(t)
	store := e.store(etcd.Endpoint())
	set := e.cloneSet(lifecycleDemo)
	registration := e.newRegistration(time.Second, seedHooks(), e.newRegistry(etcd.Endpoint()).Name)
	from := func(path string) map[string]any { return map[string]any{"fieldPath": path} }
	e.patch(registration, map[string]any{"spec": map[string]any{"instance": map[string]any{
		"weight": 3, "weightFrom": map[string]any{"fieldRef": from("metadata.annotations['" + keyWeight + "']")},
		"tags": []string{"v2"}, "tagsFrom": []any{map[string]any{"fieldRef": from("metadata.labels['app']")}},
		"metadataFrom": []any{map[string]any{"key": "pod", "fieldRef": from("metadata.name")}},
	}}})
	name := e.podOf(set, "aaaaa", appsv1alpha1.StateNormal).Name
	e.weigh(name, "30")
	e.kubelet(name, "10.0.0.1", true)
	e.hasLabel(name, keyCreated, "false")
	store.value(`"weight":30`, `"tags":"nginx,v2"`, `"pod":"`+name+`"`)

	e.weigh(name, "40")
	store.value(`"weight":40`)
	e.weigh(name, "heavy")
	store.value(`"weight":3`)
	e.event(e.pod(name), "InstanceInvalid", keyWeight, `"heavy"`)
	e.condition(usherv1alpha1.ConditionInstancesValid, "False", "InstanceInvalid", name, keyWeight)
	e.weigh(name, nil)
	e.condition(usherv1alpha1.ConditionInstancesValid, "True", "")
	e.registered(name, corev1.ConditionTrue, "Every registry lists the Pod.")
}

// TestStoryNamesakes answers hooks named after the Registration, which names none, and
// stays registered during an in-place update.
func TestStoryNamesakes(t *testing.T) {
	e := newEnv(t)
	etcd := clustertest.StartEtcd(t)
	store := e.store(etcd.Endpoint())
	set := e.cloneSet(strings.NewReplacer("example.com/newly-create", "nginx.usher.dev/created",
		"example.com/unready-blocker", "nginx.usher.dev/blocker").Replace(lifecycleDemo))
	registration := e.newRegistration(time.Second, usherv1alpha1.Hooks{}, e.newRegistry(etcd.Endpoint()).Name)
	e.patch(registration, map[string]any{"spec": map[string]any{"onInPlaceUpdate": "Stay"}})
	name := e.podOf(set, "aaaaa", appsv1alpha1.StateNormal).Name
	e.kubelet(name, "10.0.0.1", true)
	e.hasLabel(name, "nginx.usher.dev/created", "false")
	store.lists("10.0.0.1:80")
	e.condition(usherv1alpha1.ConditionHooksMatched, "True", "")

	e.state(name, appsv1alpha1.StatePreparingUpdate)
	e.hasLabel(name, "nginx.usher.dev/blocker-inplace", "false")
	e.state(name, appsv1alpha1.StateUpdating)
	e.kubelet(name, "10.0.0.1", false)
	e.never("a Pod that stays", time.Second, func() string {
		if have := store.addresses(); len(have) != 1 {
			return fmt.Sprintf("has left: %v", have)
		}
		return ""
	})
	e.state(name, appsv1alpha1.StateUpdated)
	e.kubelet(name, "10.0.0.1", true)
	e.hasLabel(name, "nginx.usher.dev/blocker-inplace", "true")

	e.state(name, appsv1alpha1.StatePreparingDelete)
	e.hasLabel(name, "nginx.usher.dev/blocker-delete", "false")
	store.lists()
}

// TestStoryNodeSilent does what the node controller does to the Pods of an unresponsive
// node: they are deregistered after a grace period, except the last one, and come back
// with the node.
func TestStoryNodeSilent(t *testing.T) {
	e := newEnv(t)
	etcd := clustertest.StartEtcd(t)
	store := e.store(etcd.Endpoint())
	set := e.cloneSet(lifecycleDemo)
	registration := e.newRegistration(time.Second, seedHooks(), e.newRegistry(etcd.Endpoint()).Name)
	e.patch(registration, map[string]any{"spec": map[string]any{"nodeFailure": map[string]any{"grace": "3s", "maxPercent": 100}}})
	names := []string{e.podOf(set, "aaaaa", appsv1alpha1.StateNormal).Name, e.podOf(set, "bbbbb", appsv1alpha1.StateNormal).Name}
	for n, name := range names {
		e.kubelet(name, fmt.Sprintf("10.0.0.%d", n+1), true)
		e.hasLabel(name, keyCreated, "false")
	}
	silence := func(name string) {
		t.Helper()
		pod := e.pod(name)
		base := pod.DeepCopy()
		for i := range pod.Status.Conditions {
			if pod.Status.Conditions[i].Type == corev1.PodReady {
				pod.Status.Conditions[i].Status, pod.Status.Conditions[i].LastTransitionTime = corev1.ConditionFalse, metav1.Now()
			}
		}
		if err := e.Status().Patch(t.Context(), pod, client.StrategicMergeFrom(base)); err != nil {
			t.Fatal(err)
		}
	}
	silence(names[0])
	e.never("a Pod whose node has only just fallen silent", time.Second, func() string {
		if have := store.addresses(); len(have) != 2 {
			return fmt.Sprintf("has left: %v", have)
		}
		return ""
	})
	store.lists("10.0.0.2:80")
	silence(names[1])
	e.condition(usherv1alpha1.ConditionWaiting, "True", "", names[1], "its node does not answer", "the last one always stays")
	e.registered(names[1], corev1.ConditionTrue, "its node does not answer")
	store.lists("10.0.0.2:80")
	e.kubelet(names[0], "10.0.0.1", true)
	store.lists("10.0.0.1:80")
	e.kubelet(names[1], "10.0.0.2", true)
	store.lists("10.0.0.1:80", "10.0.0.2:80")
}

// podsOf waits for the Pods that a Kubernetes controller creates.
func (e *env) podsOf(app string, want int) []corev1.Pod {
	e.Helper()
	var list corev1.PodList
	e.eventually("the Pods of "+app, func() string {
		if err := e.List(e.Context(), &list, client.InNamespace(e.namespace), client.MatchingLabels{"kind": app}); err != nil {
			return err.Error()
		}
		if len(list.Items) != want {
			return fmt.Sprintf("are %d, want %d", len(list.Items), want)
		}
		return ""
	})
	return list.Items
}

// TestStoryOtherOwners registers Pods of a Deployment, of a StatefulSet and without an
// owner, where no controller knows hooks: a deletion waits for the registry all the
// same.
func TestStoryOtherOwners(t *testing.T) {
	e := newEnv(t)
	etcd := clustertest.StartEtcd(t)
	store := e.store(etcd.Endpoint())
	e.newRegistration(time.Second, usherv1alpha1.Hooks{}, e.newRegistry(etcd.Endpoint()).Name)
	template := func(kind string) corev1.PodTemplateSpec {
		return corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "nginx", "kind": kind}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "nginx:latest"}}},
		}
	}
	one := int32(1)
	selector := func(kind string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"kind": kind}}
	}
	e.create(
		&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "deployment"},
			Spec: appsv1.DeploymentSpec{Replicas: &one, Selector: selector("deployment"), Template: template("deployment")}},
		&appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "stateful"},
			Spec: appsv1.StatefulSetSpec{Replicas: &one, Selector: selector("stateful"), Template: template("stateful")}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "bare", Labels: template("bare").Labels},
			Spec: template("bare").Spec},
	)
	for n, kind := range []string{"deployment", "stateful", "bare"} {
		pod := e.podsOf(kind, 1)[0]
		e.kubelet(pod.Name, fmt.Sprintf("10.0.0.%d", n+1), true)
		e.registered(pod.Name, corev1.ConditionTrue, "")
	}
	store.lists("10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80")

	// While the registry is down, a deleted Pod keeps its name.
	if err := etcd.Kill(); err != nil {
		t.Fatal(err)
	}
	old := e.podsOf("stateful", 1)[0]
	e.remove(&old)
	e.registered("stateful-0", "", "Waits at deletion for Registry discovery-")
	if err := etcd.Restart(e.Context()); err != nil {
		t.Fatal(err)
	}
	e.eventually("another stateful-0", func() string {
		var next corev1.Pod
		if err := e.Get(e.Context(), client.ObjectKeyFromObject(&old), &next); err != nil {
			return err.Error()
		}
		if next.UID == old.UID {
			return "is the old one"
		}
		return ""
	})
	store.lists("10.0.0.1:80", "10.0.0.3:80")
	e.kubelet("stateful-0", "10.0.0.4", true)
	store.lists("10.0.0.1:80", "10.0.0.3:80", "10.0.0.4:80")

	if err := e.Delete(e.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "deployment"}},
		client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		t.Fatal(err)
	}
	e.remove(e.pod("bare"))
	store.lists("10.0.0.4:80")
	e.vanishes("bare")
	e.podsOf("deployment", 0)
}
