// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

// keyWeight is the annotation that sets the weight.
const keyWeight = "example.com/weight"

// weigh writes that annotation; nil removes it.
func (e *env) weigh(name string, value any) {
	e.Helper()
	e.patch(e.pod(name), map[string]any{"metadata": map[string]any{"annotations": map[string]any{keyWeight: value}}})
}

// TestStoryValuesOfPods takes weight, tags and metadata from a Pod, and follows changes.
// Invalid values are reported, and the Registration's fixed value is used instead.
func TestStoryValuesOfPods(t *testing.T) {
	s := newStory(t)
	from := func(path string) map[string]any { return map[string]any{"fieldPath": path} }
	s.patch(s.registration, map[string]any{"spec": map[string]any{"instance": map[string]any{
		"weight": 3, "weightFrom": map[string]any{"fieldRef": from("metadata.annotations['" + keyWeight + "']")},
		"tags": []string{"v2"}, "tagsFrom": []any{map[string]any{"fieldRef": from("metadata.labels['app']")}},
		"metadataFrom": []any{map[string]any{"key": "pod", "fieldRef": from("metadata.name")}},
	}}})
	name := s.podOf(s.set, "aaaaa", appsv1alpha1.StateNormal).Name
	s.weigh(name, "30")
	s.kubelet(name, "10.0.0.1", true)
	s.hasLabel(name, keyCreated, "false")
	s.value(`"weight":30`, `"tags":"nginx,v2"`, `"pod":"`+name+`"`)

	s.weigh(name, "40")
	s.value(`"weight":40`)
	s.weigh(name, "heavy")
	s.value(`"weight":3`)
	s.event(s.pod(name), "InstanceInvalid", keyWeight, `"heavy"`)
	s.condition(usherv1alpha1.ConditionInstancesValid, "False", "InstanceInvalid", name, keyWeight)
	s.weigh(name, nil)
	s.condition(usherv1alpha1.ConditionInstancesValid, "True", "")
	s.registered(name, corev1.ConditionTrue, "Every registry lists the Pod.")
}

// podsOf waits for the Pods that a Kubernetes controller creates.
func (e *env) podsOf(app string, want int) []corev1.Pod {
	e.Helper()
	var list corev1.PodList
	e.eventually("the Pods of "+app, func() string {
		e.must(e.List(e.Context(), &list, client.InNamespace(e.namespace), client.MatchingLabels{"kind": app}))
		return registrytest.Unless(len(list.Items) == want, fmt.Sprintf("are %d, want %d", len(list.Items), want))
	})
	return list.Items
}

// TestStoryOtherOwners registers Pods of a Deployment, of a StatefulSet and without an
// owner, where no controller knows hooks: a deletion waits for the registry all the
// sams.
func TestStoryOtherOwners(t *testing.T) {
	s := newStory(t, hooks(usherv1alpha1.Hooks{}))
	template := func(kind string) corev1.PodTemplateSpec {
		return corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "nginx", "kind": kind}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "nginx:latest"}}},
		}
	}
	selector := func(kind string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"kind": kind}}
	}
	s.create(
		&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "deployment"},
			Spec: appsv1.DeploymentSpec{Replicas: new(int32(1)), Selector: selector("deployment"), Template: template("deployment")}},
		&appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "stateful"},
			Spec: appsv1.StatefulSetSpec{Replicas: new(int32(1)), Selector: selector("stateful"), Template: template("stateful")}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "bare", Labels: template("bare").Labels},
			Spec: template("bare").Spec},
	)
	for n, kind := range []string{"deployment", "stateful", "bare"} {
		pod := s.podsOf(kind, 1)[0]
		s.kubelet(pod.Name, fmt.Sprintf("10.0.0.%d", n+1), true)
		s.registered(pod.Name, corev1.ConditionTrue, "")
	}
	s.lists("10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80")

	// While the registry is down, a deleted Pod keeps its nams.
	s.must(s.etcd.Kill())
	old := s.podsOf("stateful", 1)[0]
	s.remove(&old)
	s.registered("stateful-0", "", "Waits at deletion for Registry discovery-")
	s.must(s.etcd.Restart(s.Context()))
	s.eventually("another stateful-0", func() string {
		var next corev1.Pod
		err := s.Get(s.Context(), client.ObjectKeyFromObject(&old), &next)
		return registrytest.Unless(err == nil && next.UID != old.UID, "does not exist")
	})
	s.lists("10.0.0.1:80", "10.0.0.3:80")
	s.kubelet("stateful-0", "10.0.0.4", true)
	s.lists("10.0.0.1:80", "10.0.0.3:80", "10.0.0.4:80")

	s.must(s.Delete(s.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "deployment"}},
		client.PropagationPolicy(metav1.DeletePropagationBackground)))
	s.delete("bare")
	s.lists("10.0.0.4:80")
	s.podsOf("deployment", 0)
}
