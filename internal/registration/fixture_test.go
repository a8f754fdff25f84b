// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/plan"
)

// Keys and names of the fixtures.
const (
	keyCreated   = "example.com/newly-create"
	keyPreNormal = "example.com/traffic-online"
	keyInPlace   = "example.com/unready-blocker-inplace"
	keyDelete    = "example.com/unready-blocker-delete"

	here      = "cluster-here"
	namespace = "demo"
	service   = "nginx"
)

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func target(name string) plan.Target {
	return plan.Target{Registry: name, Prefix: "services", Service: service}
}

// newRegistration selects Pods by a label and answers every hook.
func newRegistration(name, key, value string, registries ...string) *usherv1alpha1.Registration {
	return &usherv1alpha1.Registration{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name)},
		Spec: usherv1alpha1.RegistrationSpec{
			Selector:   metav1.LabelSelector{MatchLabels: map[string]string{key: value}},
			Registries: registries,
			Instance:   usherv1alpha1.Instance{Service: name, Port: intstr.FromInt32(80), Weight: 10},
			Hooks: usherv1alpha1.Hooks{
				Created: keyCreated, PreNormal: keyPreNormal, InPlaceUpdate: keyInPlace, PreDelete: keyDelete,
			},
			Drain: usherv1alpha1.Drain{
				Propagation: &metav1.Duration{Duration: 5 * time.Second},
				Deadline:    &metav1.Duration{Duration: time.Minute},
			},
		},
	}
}

// newCloneSet uses the same hooks.
func newCloneSet() *appsv1alpha1.CloneSet {
	set := &appsv1alpha1.CloneSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "nginx", UID: "uid-set"}}
	hook := func(key string) *appsv1alpha1.LifecycleHook {
		return &appsv1alpha1.LifecycleHook{LabelsHandler: map[string]string{key: "true"}}
	}
	set.Spec.Lifecycle = &appsv1alpha1.Lifecycle{PreNormal: hook(keyPreNormal), InPlaceUpdate: hook(keyInPlace), PreDelete: hook(keyDelete)}
	set.Spec.Template.Metadata.Labels = map[string]appsv1alpha1.LabelValue{"app": "nginx", keyCreated: "true"}
	return set
}

// newPod is a new Pod of the CloneSet.
func newPod(name string, state appsv1alpha1.LifecycleState, ready corev1.ConditionStatus) *corev1.Pod {
	yes := true
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: types.UID("uid-" + name + "-0000"),
			Labels: map[string]string{"app": "nginx", keyCreated: "true", keyInPlace: "true", keyDelete: "true",
				appsv1alpha1.LabelLifecycleState: string(state)},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "apps.kruise.io/v1alpha1", Kind: "CloneSet", Name: "nginx", UID: "uid-set", Controller: &yes,
			}},
		},
		Status: corev1.PodStatus{PodIP: "10.0.0.1"},
	}
	setReady(pod, ready)
	return pod
}

func setReady(pod *corev1.Pod, status corev1.ConditionStatus) {
	setCondition(pod, corev1.PodCondition{Type: corev1.ContainersReady, Status: status})
	setCondition(pod, corev1.PodCondition{Type: corev1.PodReady, Status: status})
}

func setCondition(pod *corev1.Pod, condition corev1.PodCondition) {
	pod.Status.Conditions = append(slices.DeleteFunc(pod.Status.Conditions,
		func(c corev1.PodCondition) bool { return c.Type == condition.Type }), condition)
}

// registeredStatus is that of the condition that Usher writes; empty without one.
func registeredStatus(pod *corev1.Pod) corev1.ConditionStatus {
	for _, c := range pod.Status.Conditions {
		if c.Type == usherv1alpha1.ConditionRegistered {
			return c.Status
		}
	}
	return ""
}

// fromAnnotation takes weights from an annotation of the Pod.
func fromAnnotation() *usherv1alpha1.PodSource {
	return &usherv1alpha1.PodSource{FieldRef: usherv1alpha1.FieldRef{FieldPath: "metadata.annotations['example.com/weight']"}}
}
