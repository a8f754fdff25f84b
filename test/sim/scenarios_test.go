// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/test/model"
)

// scenario is a classic rollout: a set, what its user does, and when.
type scenario struct {
	name string
	set  func() *apps.CloneSet
	// steps happen in a cluster without faults.
	steps []step
	// mostWrites limits the controller's writes per Pod from the first step on; 0 is
	// not checked.
	mostWrites int
}

type step struct {
	// after is the time since the previous step.
	after time.Duration
	do    func(*Simulation)
}

func edit(what string, change func(*apps.CloneSet)) func(*Simulation) {
	return func(s *Simulation) { s.Edit(what, change) }
}

func scaleTo(n int32) func(*Simulation) { return edit("scales", Replicas(n)) }

func partitionAt(n int) func(*Simulation) { return edit("moves the partition", Partition(n)) }

// crash ends the controller process; another one takes over.
func crash(s *Simulation) { s.processes[0].crash() }

// removeByHand deletes the first Pod as kubectl does.
func removeByHand(s *Simulation) {
	pod := s.Pods()[0]
	s.World.say("user", "deletes Pod %s", pod.Name)
	_ = s.Server.Delete("user", model.Pods, client.ObjectKeyFromObject(pod), model.Deletion{})
}

func evictOne(s *Simulation) { s.nodes.evict(s.Pods()[0]) }

func inPlace(replicas int32) *Builder {
	return Demo(replicas).Type(apps.UpdateInPlaceIfPossible).Unavailable(intstr.FromInt32(1))
}

var one = intstr.FromInt32(1)

func scenarios() []scenario {
	hooked := func() *apps.CloneSet { return inPlace(3).Hooks(LabelHooks()).Build() }
	claimed := func() *apps.CloneSet { return Demo(2).Unavailable(one).Claims("data").Build() }
	marked := LabelHooks()
	marked.InPlaceUpdate.MarkPodNotReady, marked.PreDelete.MarkPodNotReady = true, true
	return []scenario{
		{name: "create with a preNormal hook", set: hooked},
		{name: "update in place with hooks", set: hooked, mostWrites: 5,
			steps: []step{{time.Minute, edit("rolls out app:2", Image("app:2"))}}},
		{name: "update in place without hooks", set: func() *apps.CloneSet { return inPlace(3).Build() }, mostWrites: 3,
			steps: []step{{time.Minute, edit("rolls out app:2", Image("app:2"))}}},
		{name: "update in place with a grace period", set: func() *apps.CloneSet { return inPlace(2).Grace(5).Build() }, mostWrites: 3,
			steps: []step{{time.Minute, edit("rolls out app:2", Image("app:2"))}}},
		{name: "update in place with hooks that mark not ready", set: func() *apps.CloneSet { return inPlace(2).Hooks(marked).Build() },
			steps: []step{{time.Minute, edit("rolls out app:2", Image("app:2"))}}},
		{name: "resize in place", set: func() *apps.CloneSet { return inPlace(2).CPU("100m", false).Build() }, mostWrites: 4,
			steps: []step{{time.Minute, edit("asks for cpu 200m", Resize("200m"))}}},
		{name: "resize with a restart and another image", set: func() *apps.CloneSet { return inPlace(2).CPU("100m", true).Build() }, mostWrites: 4,
			steps: []step{{time.Minute, edit("asks for cpu 200m and app:2", func(set *apps.CloneSet) { Resize("200m")(set); Image("app:2")(set) })}}},
		{name: "resize that the node cannot do and back", set: func() *apps.CloneSet { return inPlace(2).CPU("100m", false).Build() },
			steps: []step{{time.Minute, edit("asks for cpu 950m", Resize("950m"))}, {time.Minute, edit("asks for cpu 100m again", Resize("100m"))}}},
		{name: "update by launch priority", set: func() *apps.CloneSet { return inPlace(2).Ordered().Build() }, mostWrites: 4,
			steps: []step{{time.Minute, edit("rolls out app:2 in both", Images("app:2"))}}},
		{name: "roll back between two containers", set: func() *apps.CloneSet { return inPlace(2).Ordered().Build() },
			steps: []step{{time.Minute, edit("rolls out app:2 in both", Images("app:2"))}, {time.Second, edit("rolls back to app:1", Images("app:1"))}}},
		{name: "recreate with surge", set: func() *apps.CloneSet { return Demo(3).Unavailable(zero).Surge(one).Build() }, mostWrites: 5,
			steps: []step{{time.Minute, edit("rolls out app:2", Image("app:2"))}}},
		{name: "recreate with a preDelete hook", set: func() *apps.CloneSet { return Demo(2).Unavailable(one).Hooks(LabelHooks()).Build() },
			steps: []step{{time.Minute, edit("rolls out app:2", Image("app:2"))}}},
		{name: "scale in with a preDelete hook", set: hooked, steps: []step{{time.Minute, scaleTo(1)}}},
		{name: "scale in and take it back", set: hooked, steps: []step{{time.Minute, scaleTo(1)}, {200 * time.Millisecond, scaleTo(3)}}},
		{name: "roll back in mid-update", set: hooked, steps: []step{
			{time.Minute, edit("rolls out app:2", Image("app:2"))}, {2 * time.Second, edit("rolls back to app:1", Image("app:1"))}}},
		{name: "roll back while a Pod waits at its gate", set: hooked, steps: []step{
			{time.Minute, edit("rolls out app:2", Image("app:2"))}, {200 * time.Millisecond, edit("rolls back to app:1", Image("app:1"))}}},
		{name: "canary by partition", set: func() *apps.CloneSet { return inPlace(3).Build() }, steps: []step{
			{time.Minute, edit("rolls out app:2 to one Pod", func(set *apps.CloneSet) { Image("app:2")(set); Partition(2)(set) })},
			{time.Minute, scaleTo(4)}, {time.Minute, partitionAt(0)}}},
		{name: "take a Pod out by its labels", set: hooked, steps: []step{{time.Minute, func(s *Simulation) {
			s.changePod(s.Pods()[0], func(pod *corev1.Pod) { pod.Labels["app"] = "apart" })
		}}}},
		{name: "claims that are reused and claims that go", set: claimed, steps: []step{
			{time.Minute, removeByHand}, {time.Minute, scaleTo(1)}, {time.Minute, scaleTo(2)}, {time.Minute, evictOne}}},
		{name: "claims and a recreate", set: claimed, steps: []step{{time.Minute, edit("rolls out app:2", Image("app:2"))}}},
		{name: "crash in mid-update", set: hooked, steps: []step{
			{time.Minute, edit("rolls out app:2", Image("app:2"))}, {1300 * time.Millisecond, crash}}},
	}
}

// steady is a cluster without faults in which everything always takes the same time, so
// that a story changes only if somebody's behaviour changes.
func steady() Config {
	config := Calm()
	config.Steady = true
	return config
}

// play runs a scenario to its end.
func (c scenario) play(config Config) (*Simulation, *Violation) {
	s := New(config, c.set())
	at := epoch
	for _, step := range c.steps {
		at = at.Add(step.after)
		s.World.runUntil(at)
		if s.World.failure == nil {
			step.do(s)
		}
	}
	return s, s.Settle()
}
