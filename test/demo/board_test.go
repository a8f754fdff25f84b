// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/page"
)

const addrA = "127.9.0.3:8080"

// aPod is a running, ready Pod that belongs to CloneSet web.
func aPod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	yes := true
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, OwnerReferences: []metav1.OwnerReference{{Name: "web", UID: "web", Controller: &yes}},
			Labels: map[string]string{appsv1alpha1.LabelLifecycleState: string(appsv1alpha1.StateNormal), appsv1alpha1.LabelTemplateHash: "new"},
		},
		Spec: corev1.PodSpec{NodeName: "node-1", Containers: []corev1.Container{{Name: "main", Image: "example.com/web:v1"}}},
		Status: corev1.PodStatus{
			PodIP:             "127.9.0.3",
			Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{RestartCount: 2}},
		},
	}
	for _, c := range change {
		c(pod)
	}
	return pod
}

func unready(pod *corev1.Pod)  { pod.Status.Conditions = pod.Status.Conditions[1:] }
func deleted(pod *corev1.Pod)  { pod.DeletionTimestamp = &metav1.Time{Time: time.Unix(50, 0)} }
func draining(pod *corev1.Pod) { pod.Labels[appsv1alpha1.LabelLifecycleState] = "PreparingUpdate" }

func outdated(pod *corev1.Pod) { pod.Labels[appsv1alpha1.LabelTemplateHash] = "old" }

// aSet is CloneSet web when all is done.
func aSet(change ...func(*appsv1alpha1.CloneSet)) *appsv1alpha1.CloneSet {
	one := int32(1)
	set := &appsv1alpha1.CloneSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web", UID: "web", Generation: 2},
		Spec:       appsv1alpha1.CloneSetSpec{Replicas: &one},
		Status:     appsv1alpha1.CloneSetStatus{ObservedGeneration: 2, UpdateRevision: "web-new"},
	}
	for _, c := range change {
		c(set)
	}
	return set
}

func newQuietBoard() *board {
	return newBoard(time.Now, func(...string) {}, page.NewServer(page.NewRecorder(time.Now(), "", 0), nil))
}

func (b *board) joins(joined bool) { b.registryChanged(addrA, joined) }

func TestSettledAt(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*board)
		want   bool
	}{
		"done":           {func(*board) {}, true},
		"no set":         {func(b *board) { b.isGone(aSet()) }, false},
		"not changed":    {func(b *board) { b.is(aSet(func(s *appsv1alpha1.CloneSet) { s.Generation = 1 })) }, false},
		"not observed":   {func(b *board) { b.is(aSet(func(s *appsv1alpha1.CloneSet) { s.Status.ObservedGeneration = 1 })) }, false},
		"not registered": {func(b *board) { b.joins(false) }, false},
		"a Pod too many": {func(b *board) { b.is(aPod("web-b")) }, false},
		"a Pod too few":  {func(b *board) { b.isGone(aPod("web-a")) }, false},
		"not ready":      {func(b *board) { b.is(aPod("web-a", unready)) }, false},
		"at a gate":      {func(b *board) { b.is(aPod("web-a", draining)) }, false},
		"being deleted":  {func(b *board) { b.is(aPod("web-a", deleted)) }, false},
		"not updated":    {func(b *board) { b.is(aPod("web-a", outdated)) }, false},
	} {
		b := newQuietBoard()
		b.is(aSet())
		b.is(aPod("web-a"))
		b.joins(true)
		c.change(b)
		if got := b.settledAt(aSet(), 1, 2); got != c.want {
			t.Errorf("%s: settledAt = %t, want %t; %v", name, got, c.want, b.waitingFor())
		}
	}
}

func TestFingerprintChangesWithWhatMustNotHappen(t *testing.T) {
	print := func(pod *corev1.Pod) string {
		b := newQuietBoard()
		b.is(pod)
		return strings.Join(b.fingerprint(), "\n")
	}
	still := print(aPod("web-a"))
	for name, change := range map[string]func(*corev1.Pod){
		"a new image":  func(p *corev1.Pod) { p.Spec.Containers[0].Image = "example.com/web:v2" },
		"a restart":    func(p *corev1.Pod) { p.Status.ContainerStatuses[0].RestartCount++ },
		"a deletion":   deleted,
		"another Pod":  func(p *corev1.Pod) { p.UID = "other" },
		"another name": func(p *corev1.Pod) { p.Name = "web-b" },
	} {
		if print(aPod("web-a", change)) == still {
			t.Errorf("%s does not change the fingerprint", name)
		}
	}
	if print(aPod("web-a", draining, unready)) != still {
		t.Error("a drain changes the fingerprint")
	}
}

func TestAnAddressThatIsUsedAgain(t *testing.T) {
	b, now := newQuietBoard(), time.Unix(60, 0)
	b.now = func() time.Time { now = now.Add(time.Second); return now }
	if _, lane := b.at(addrA, now); lane.lost(now) {
		t.Error("a request is lost because an unknown Pod left")
	}
	b.is(aPod("web-a"))
	b.is(aPod("web-a", deleted))
	if name, lane := b.at(addrA, now); name != "web-a" || !lane.lost(now) {
		t.Error("the Pod of the address is being deleted, but it has not left")
	}
	b.is(aPod("web-b"))
	if name, lane := b.at(addrA, now); name != "web-b" || lane.lost(now) {
		t.Error("the address has a new Pod, but it has left")
	}
}
