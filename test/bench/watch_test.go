// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/test/servers"
	"github.com/usher-dev/usher/test/traffic"
)

func pod(name string, changes ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{
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
func in(state apps.LifecycleState) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels[apps.LabelLifecycleState] = string(state) }
}

// clocked is both watches with a clock of their own.
type clocked struct {
	*testing.T
	clock   *clocktesting.FakePassiveClock
	pods    *podWatch
	entries *entryWatch
}

func newClocked(t *testing.T) *clocked {
	clock := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	entries := newEntryWatch(clock.Now)
	return &clocked{T: t, clock: clock, entries: entries, pods: newPodWatch(clock.Now, entries.saw)}
}

func (c *clocked) after(d time.Duration) *clocked {
	c.clock.SetTime(c.clock.Now().Add(d))
	return c
}

func (c *clocked) pod(changes ...func(*corev1.Pod)) { c.pods.is(pod("a", changes...)) }
func (c *clocked) joins() {
	c.entries.sighted(servers.Sighting{UID: "a", In: true, Since: c.clock.Now()})
}

// leaves is an entry that left at some time after the last check.
func (c *clocked) leaves(look time.Duration) {
	c.entries.sighted(servers.Sighting{UID: "a", Since: c.clock.Now().Add(-look)})
}

func (c *clocked) settled(pods int, image string) bool {
	ctx, cancel := context.WithCancel(c.Context())
	cancel()
	return c.pods.await(ctx, pods, map[string]int{image: pods}) == nil
}

func TestOutOfService(t *testing.T) {
	c := newClocked(t)
	c.pods.is(pod("a", unready))
	c.after(2 * time.Second).pods.is(pod("a"))
	c.pods.is(pod("b"))
	c.pods.begin()
	c.after(time.Second).pods.is(pod("a", asked, unready))
	c.after(time.Second).pods.is(pod("a", asked, ran, unready))
	c.after(time.Second).pods.is(pod("a", asked, ran))
	c.after(time.Second).pods.is(pod("b", ending))
	c.pods.gone(pod("b", ending))
	c.pods.is(pod("c", unready))
	c.after(3 * time.Second).pods.is(pod("c"))
	got := c.pods.end()
	checktest.Same(t, "out of service", traffic.Latencies{2 * time.Second}, got.out)
	checktest.Same(t, "startup", traffic.Latencies{3 * time.Second}, got.startup)
	if got.least != 1 || c.pods.ready != 2 {
		t.Errorf("least ready: %d, now %d; want 1 and 2", got.least, c.pods.ready)
	}
}

func TestSettled(t *testing.T) {
	c := newClocked(t)
	if !c.settled(0, "") {
		t.Error("no Pods are not recognized")
	}
	c.pods.is(pod("a", asked, ran))
	for name, last := range map[string]*corev1.Pod{
		"not ready":       pod("b", asked, ran, unready),
		"old image runs":  pod("b", asked),
		"old image asked": pod("b"),
		"being updated":   pod("b", asked, ran, in(apps.StateUpdating)),
		"ending":          pod("b", asked, ran, ending),
	} {
		c.pods.is(last)
		if c.settled(2, "v2") {
			t.Errorf("%s: it is settled", name)
		}
	}
	c.pods.is(pod("b", asked, ran))
	if !c.settled(2, "v2") || c.settled(1, "v2") || c.settled(2, "v1") {
		t.Error("two Pods with v2 are not recognized")
	}
	c.pods.gone(pod("b"))
	if !c.settled(1, "v2") {
		t.Error("one Pod with v2 is not recognized")
	}
}

func TestWrongRemovals(t *testing.T) {
	const moment = 10 * time.Millisecond
	for name, test := range map[string]struct {
		happens func(c *clocked)
		wrong   bool
	}{
		"an entry of a Pod that serves": {wrong: true, happens: func(c *clocked) { c.leaves(0) }},
		"one that came back at once":    {wrong: true, happens: func(c *clocked) { c.leaves(0); c.joins() }},
		"found by a look at intervals":  {wrong: true, happens: func(c *clocked) { c.leaves(2 * time.Second) }},
		"of a Pod that was updated":     {wrong: true, happens: func(c *clocked) { c.pod(in(apps.StateUpdated)); c.leaves(0) }},
		"of a Pod that is at PreNormal": {wrong: true, happens: func(c *clocked) { c.pod(in(apps.StatePreparingNormal)); c.leaves(0) }},
		"that drains long afterwards": {wrong: true, happens: func(c *clocked) {
			c.leaves(0)
			c.after(tolerance).entries.judge()
			c.pod(in(apps.StatePreparingDelete))
		}},
		"that drained before it came": {wrong: true, happens: func(c *clocked) {
			c.pod(in(apps.StatePreparingUpdate))
			c.leaves(0)
			c.pod(in(apps.StateUpdated))
			c.after(moment).joins()
			c.after(moment).leaves(0)
		}},
		"for an update":   {happens: func(c *clocked) { c.pod(in(apps.StatePreparingUpdate)); c.leaves(0) }},
		"for a deletion":  {happens: func(c *clocked) { c.pod(in(apps.StatePreparingDelete)); c.leaves(0) }},
		"without a hook":  {happens: func(c *clocked) { c.pod(ending); c.leaves(0) }},
		"not ready":       {happens: func(c *clocked) { c.pod(unready); c.leaves(0) }},
		"the Pod's watch": {happens: func(c *clocked) { c.leaves(0); c.after(moment).pod(in(apps.StatePreparingUpdate)) }},
		"a look that is late": {happens: func(c *clocked) {
			c.pod(in(apps.StatePreparingUpdate))
			c.after(moment).pod(in(apps.StateUpdated))
			c.after(time.Second).leaves(2 * time.Second)
		}},
		"of an unknown Pod": {happens: func(c *clocked) { c.entries.sighted(servers.Sighting{UID: "b"}) }},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClocked(t)
			c.pod()
			c.joins()
			c.after(time.Hour)
			test.happens(c)
			c.after(tolerance).entries.judge()
			got, err := c.entries.end(t.Context())
			if wrong := slices.Equal(got.wrong, []string{"a"}); err != nil || wrong != test.wrong || len(got.wrong) > 1 {
				t.Errorf("wrong are %v, %v; want %t", got.wrong, err, test.wrong)
			}
		})
	}
}
