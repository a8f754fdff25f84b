// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// aPod is a running, ready Pod that belongs to CloneSet web.
func aPod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	yes := true
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{appsv1alpha1.LabelLifecycleState: string(appsv1alpha1.StateNormal)},
			Annotations:     map[string]string{},
			Finalizers:      []string{usherv1alpha1.Finalizer},
			OwnerReferences: []metav1.OwnerReference{{Name: "web", Controller: &yes}},
		},
		Spec: corev1.PodSpec{NodeName: "node-1", Containers: []corev1.Container{{Name: "main", Image: imageV1}}},
		Status: corev1.PodStatus{
			PodIP:      "127.9.0.3",
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{
				Image: imageV1, RestartCount: 2, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
			}},
		},
	}
	for _, c := range change {
		c(pod)
	}
	return pod
}

func in(state appsv1alpha1.LifecycleState) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Labels[appsv1alpha1.LabelLifecycleState] = string(state) }
}

func drain(record string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Annotations[usherv1alpha1.AnnotationDrain] = record }
}

func unready(pod *corev1.Pod) { pod.Status.Conditions = nil }

func deletedPod(pod *corev1.Pod) { pod.DeletionTimestamp = &metav1.Time{Time: time.Unix(50, 0)} }

var listed, unlisted = listing{listed: true}, listing{}

func TestWhatAPodWaitsFor(t *testing.T) {
	gone := `{"gate":"inPlaceUpdate","gone":{"web@discovery/services/web":"2026-01-02T03:04:05Z","web@other/services/web":"2026-01-02T03:04:09Z"}}`
	for _, c := range []struct {
		name  string
		pod   *corev1.Pod
		entry listing
		want  string
	}{
		{"in service", aPod("a"), listed, ""},
		{"unscheduled", aPod("a", unready, func(p *corev1.Pod) { p.Spec.NodeName = "" }), unlisted, waitNode},
		{"starting", aPod("a", unready, in(appsv1alpha1.StatePreparingNormal)), unlisted, waitContainer},
		{"to be registered", aPod("a", in(appsv1alpha1.StatePreparingNormal)), unlisted, waitListed},
		{"preNormal", aPod("a", in(appsv1alpha1.StatePreparingNormal)), listed, waitHook},
		{"Normal before its registration", aPod("a"), unlisted, waitListed},
		{"drain begins", aPod("a", in(appsv1alpha1.StatePreparingUpdate)), listed, waitUnlisted},
		{"drain unconfirmed", aPod("a", in(appsv1alpha1.StatePreparingDelete)), unlisted, waitConfirm},
		{"drain record unreadable", aPod("a", in(appsv1alpha1.StatePreparingDelete), drain("{")), unlisted, waitConfirm},
		{"propagation", aPod("a", in(appsv1alpha1.StatePreparingUpdate), drain(gone)), unlisted, waitCallers},
		{"updating", aPod("a", in(appsv1alpha1.StateUpdating)), unlisted, waitNewVersion},
		{"updated", aPod("a", in(appsv1alpha1.StateUpdated)), unlisted, waitListed},
		{"terminating but listed", aPod("a", deletedPod), listed, waitUnlisted},
		{"terminating", aPod("a", deletedPod), unlisted, ""},
	} {
		if got, _ := waits(c.pod, c.entry); got != c.want {
			t.Errorf("%s: waits for %q, want %q", c.name, got, c.want)
		}
	}
	_, since := waits(aPod("a", in(appsv1alpha1.StatePreparingUpdate), drain(gone)), unlisted)
	if want := time.Date(2026, 1, 2, 3, 4, 9, 0, time.UTC); !since.Equal(want) {
		t.Errorf("callers' caches are waited for since %s, want since the last registry was left, %s", since, want)
	}
}

func TestDescribe(t *testing.T) {
	row := describe(aPod("web-a"), listed)
	if row.Address != "127.9.0.3:8080" || row.Version != "v1" || row.Restarts != 2 || !row.Ready || row.Leaving || row.State != "Normal" {
		t.Errorf("got %+v", row)
	}
	stopped := aPod("web-a", func(p *corev1.Pod) {
		p.Status.PodIP = ""
		p.Status.ContainerStatuses[0].State = corev1.ContainerState{}
	})
	if row := describe(stopped, unlisted); row.Address != "" || row.Version != "" {
		t.Errorf("a Pod without an address and a container has %+v", row)
	}
}

func TestSettled(t *testing.T) {
	for _, c := range []struct {
		name  string
		pod   *corev1.Pod
		entry listing
		want  bool
	}{
		{"in service", aPod("a"), listed, true},
		{"unlisted", aPod("a"), unlisted, false},
		{"unready", aPod("a", unready), listed, false},
		{"terminating", aPod("a", deletedPod), listed, false},
		{"updated", aPod("a", in(appsv1alpha1.StateUpdated)), listed, false},
	} {
		if got := settled(c.pod, c.entry); got != c.want {
			t.Errorf("%s: settled = %t, want %t", c.name, got, c.want)
		}
	}
}
