// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/test/stage"
	"github.com/usher-dev/usher/test/traffic"
)

const addrA = "127.9.0.3:8080"

// aPod is a running, ready Pod that belongs to CloneSet web.
func aPod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	yes := true
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{appsv1alpha1.LabelLifecycleState: string(appsv1alpha1.StateNormal)},
			OwnerReferences: []metav1.OwnerReference{{Name: "web", Controller: &yes}},
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

func unready(pod *corev1.Pod)  { pod.Status.Conditions = nil }
func deleted(pod *corev1.Pod)  { pod.DeletionTimestamp = &metav1.Time{Time: time.Unix(50, 0)} }
func draining(pod *corev1.Pod) { pod.Labels[appsv1alpha1.LabelLifecycleState] = "PreparingUpdate" }

// ofDeploymentWeb makes the Pod one of Deployment web.
func ofDeploymentWeb(pod *corev1.Pod) {
	pod.Labels = map[string]string{"pod-template-hash": "f00"}
	pod.OwnerReferences[0].Kind, pod.OwnerReferences[0].Name = "ReplicaSet", "web-f00"
}

func requested(pod *corev1.Pod) {
	ofDeploymentWeb(pod)
	pod.Annotations = map[string]string{usherv1alpha1.AnnotationDeletionRequest: "{}"}
}

func aWorkload(observed int64) *workload {
	return &workload{observed: observed, desired: 1, replicas: 1, updated: 1, available: 1}
}

func newQuietBoard() *board { return newBoard(time.Now, func(...string) {}) }

func (b *board) joins(joined bool) {
	b.registryChanged(traffic.Change{Entry: traffic.Entry{Key: "a", Addr: addrA}, At: time.Now(), Joined: joined})
}

func TestSettledAt(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*board)
		want   bool
	}{
		"done":           {func(*board) {}, true},
		"no set":         {func(b *board) { delete(b.workloads, "web") }, false},
		"not observed":   {func(b *board) { b.workloads["web"] = aWorkload(1) }, false},
		"Deployment":     {func(b *board) { b.podIs(aPod("web-a", ofDeploymentWeb)) }, true},
		"requested":      {func(b *board) { b.podIs(aPod("web-a", requested)) }, false},
		"not registered": {func(b *board) { b.joins(false) }, false},
		"a Pod too many": {func(b *board) { b.podIs(aPod("web-b")) }, false},
		"a Pod too few":  {func(b *board) { b.podGone(aPod("web-a")) }, false},
		"not ready":      {func(b *board) { b.podIs(aPod("web-a", unready)) }, false},
		"at a gate":      {func(b *board) { b.podIs(aPod("web-a", draining)) }, false},
		"being deleted":  {func(b *board) { b.podIs(aPod("web-a", deleted)) }, false},
		"not available":  {func(b *board) { b.workloads["web"].available = 0 }, false},
		"not updated":    {func(b *board) { b.workloads["web"].updated = 0 }, false},
	} {
		b := newQuietBoard()
		b.workloads["web"] = aWorkload(2)
		b.podIs(aPod("web-a"))
		b.joins(true)
		c.change(b)
		if got := b.settledAt("web", 1, 2); got != c.want {
			t.Errorf("%s: settledAt = %t, want %t", name, got, c.want)
		}
	}
}

func TestFingerprintChangesWithWhatMustNotHappen(t *testing.T) {
	print := func(pod *corev1.Pod) string {
		b := newQuietBoard()
		b.podIs(pod)
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

func TestAnAddressThatIsUsedAgainHasNotLeft(t *testing.T) {
	b := newQuietBoard()
	b.podIs(aPod("web-a", deleted))
	if b.leftAt(addrA).IsZero() {
		t.Error("the Pod of the address is being deleted, but it has not left")
	}
	b.joins(true)
	if !b.leftAt(addrA).IsZero() {
		t.Error("the address has a new Pod, but it has left")
	}
}

// Lines that wrap would make the screen clear too few.
func TestPanelFitsEveryTerminal(t *testing.T) {
	b := newQuietBoard()
	for _, name := range []string{"web-a", "web-b", "web-c"} {
		b.podIs(aPod(name, draining))
	}
	p := panel{now: time.Now(), started: time.Now(), title: "hooks on  ·  2/6 in-place update", note: strings.Repeat("the registry is stopped ", 10),
		sets: []progressOf{{name: "web", desired: 30, updated: 1, available: 1, pods: b.rowsOf("web"), stats: traffic.Stats{Sent: 123456, Lost: 3}}}}
	for columns := 50; columns <= 140; columns++ {
		for _, rows := range []int{8, 9, 40} {
			lines := p.render(stage.Style{Width: columns, Height: rows, Color: true})
			if len(lines) > rows {
				t.Fatalf("%dx%d: %d lines", columns, rows, len(lines))
			}
			if height(lines, columns) != len(lines) {
				t.Fatalf("%dx%d: a line wraps in\n%s", columns, rows, strings.Join(lines, "\n"))
			}
		}
	}
	if got := height([]string{"1234567890", "", "\x1b[32m12345\x1b[0m"}, 5); got != 4 {
		t.Errorf("height %d, want 2+1+1", got)
	}
}
