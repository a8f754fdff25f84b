// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// pod builds a Pod that is at rest and ready with an image.
func pod(name string, changes ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: "7", Labels: map[string]string{
			apps.LabelLifecycleState: string(apps.StateNormal),
		}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "v1"}}},
		Status: corev1.PodStatus{
			Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "main", Image: "v1"}},
		},
	}
	for _, change := range changes {
		change(p)
	}
	return p
}

func unready(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }
func ending(p *corev1.Pod)  { p.DeletionTimestamp = &metav1.Time{} }
func asked(p *corev1.Pod)   { p.Spec.Containers[0].Image = "v2" }
func ran(p *corev1.Pod)     { p.Status.ContainerStatuses[0].Image = "v2" }
func version(v string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.ResourceVersion = v }
}
func in(state apps.LifecycleState) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels[apps.LabelLifecycleState] = string(state) }
}

// stand is a crowd with a clock.
type stand struct {
	*testing.T
	*crowd
	clock *clocktesting.FakePassiveClock
}

func newStand(t *testing.T) *stand {
	clock := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	return &stand{t, newCrowd(clock.Now, func(*corev1.Pod, apps.LifecycleState) {}), clock}
}

func (s *stand) see(after time.Duration, p *corev1.Pod) {
	s.Helper()
	s.clock.SetTime(s.clock.Now().Add(after))
	if err := s.Update(p); err != nil {
		s.Fatal(err)
	}
}

// holds reports whether the crowd is what await waits for.
func (s *stand) holds(pods int, image string) bool {
	ctx, cancel := context.WithCancel(s.Context())
	cancel()
	return s.await(ctx, pods, image) == nil
}

func TestOutOfService(t *testing.T) {
	s := newStand(t)
	s.see(0, pod("a", unready))
	s.see(2*time.Second, pod("a"))
	s.see(0, pod("b"))
	s.begin()
	s.see(time.Second, pod("a", asked, unready))
	s.see(time.Second, pod("a", asked, ran, unready))
	s.see(time.Second, pod("a", asked, ran))
	s.see(time.Second, pod("b", ending))
	if err := s.Delete(pod("b", ending)); err != nil {
		t.Fatal(err)
	}
	s.see(0, pod("c", unready))
	s.see(3*time.Second, pod("c"))
	got := s.end()
	if !slices.Equal(got.outs, []time.Duration{2 * time.Second}) {
		t.Errorf("out of service: %v, want a's 2s", got.outs)
	}
	if !slices.Equal(got.joins, []time.Duration{3 * time.Second}) {
		t.Errorf("startup: %v, want c's 3s", got.joins)
	}
	if got.least != 1 {
		t.Errorf("least ready: %d, want 1", got.least)
	}
}

func TestAwait(t *testing.T) {
	s := newStand(t)
	if !s.holds(0, "") {
		t.Error("an empty crowd is no crowd of none")
	}
	s.see(0, pod("a", asked, ran))
	for name, last := range map[string]*corev1.Pod{
		"not ready":       pod("b", asked, ran, unready),
		"old image runs":  pod("b", asked),
		"old image asked": pod("b"),
		"being updated":   pod("b", asked, ran, in(apps.StateUpdating)),
		"ending":          pod("b", asked, ran, ending),
	} {
		s.see(0, last)
		if s.holds(2, "v2") {
			t.Errorf("%s: it is settled", name)
		}
	}
	s.see(0, pod("b", asked, ran))
	for _, c := range []struct {
		pods  int
		image string
		want  bool
	}{{2, "v2", true}, {1, "v2", false}, {2, "v1", false}, {0, "", false}} {
		if got := s.holds(c.pods, c.image); got != c.want {
			t.Errorf("two Pods with v2 are %d with %s: %t", c.pods, c.image, got)
		}
	}
}

func TestWatchThatWasCutOff(t *testing.T) {
	s := newStand(t)
	s.see(0, pod("a"))
	s.see(0, pod("b"))
	// It has missed that b was deleted and c was created.
	if err := s.Replace([]any{pod("a", asked, ran), pod("c", asked, ran, version("90"))}, "90"); err != nil {
		t.Fatal(err)
	}
	if !s.holds(2, "v2") || s.version != 90 || s.ready != 2 {
		t.Errorf("after a relist: %d members, version %d, %d ready", len(s.members), s.version, s.ready)
	}
	if err := s.Add(&corev1.Node{}); err == nil {
		t.Error("a Node is taken for a Pod")
	}
}

// await returns when the last Pod is seen, or, if none comes, with the cause of its
// context.
func TestAwaitWakes(t *testing.T) {
	s := newStand(t)
	done := make(chan error, 1)
	go func() { done <- s.await(t.Context(), 1, "v1") }()
	s.see(0, pod("a", unready))
	s.see(0, pod("a"))
	if err := <-done; err != nil {
		t.Error(err)
	}
	late := errors.New("too late")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(late)
	if err := s.awaitVersion(ctx, 8); !errors.Is(err, late) {
		t.Errorf("awaitVersion: %v, want the cause", err)
	}
	if err := s.awaitVersion(ctx, 7); err != nil {
		t.Errorf("awaitVersion of what was seen: %v", err)
	}
}

func TestAnswerTo(t *testing.T) {
	marked := func(p *corev1.Pod) { p.Labels[updateHook], p.Labels[deleteHook] = hooked, hooked }
	for name, c := range map[string]struct {
		pod    *corev1.Pod
		before apps.LifecycleState
		want   string
	}{
		"at the update gate":     {pod("a", marked, in(apps.StatePreparingUpdate)), apps.StateNormal, `{"metadata":{"labels":{"measure.usher.dev/update":null}}}`},
		"still at the gate":      {pod("a", marked, in(apps.StatePreparingUpdate)), apps.StatePreparingUpdate, ""},
		"updated":                {pod("a", in(apps.StateUpdated)), apps.StateUpdating, `{"metadata":{"labels":{"measure.usher.dev/update":"true"}}}`},
		"updated without a hook": {pod("a", marked, in(apps.StateUpdated)), apps.StateUpdating, ""},
		"at the delete gate":     {pod("a", marked, in(apps.StatePreparingDelete)), apps.StateNormal, `{"metadata":{"labels":{"measure.usher.dev/delete":null}}}`},
		"on its way out":         {pod("a", marked, ending, in(apps.StatePreparingDelete)), apps.StateNormal, ""},
		"at rest":                {pod("a", marked), apps.StateUpdated, ""},
	} {
		if got := answerTo(c.pod, c.before); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
