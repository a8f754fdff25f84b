// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/model"
)

// truth describes how a Pod's status differs from what really runs; "" if it does not.
func (n *nodes) truth(pod *corev1.Pod) string {
	r := n.pods[pod.UID]
	if r == nil {
		return "" // nothing runs yet: the kubelet will start it as specified
	}
	for i := range pod.Spec.Containers {
		want := &pod.Spec.Containers[i]
		if what := r.Lacks(i, want); what != "" {
			return fmt.Sprintf("container %s %s", want.Name, what)
		}
	}
	return ""
}

// shows reports whether the process's cache has a revision.
func (p *Process) shows(name string) bool {
	return p.caches[model.Revisions].Objects[key(p.key.Namespace, name)] != nil
}

// Settle ends the faults and lets the cluster settle. It fails the run if that
// takes too long, if the cluster settles short of its goal, or if a pass after that writes
// anything.
func (s *Simulation) Settle() *Violation {
	s.closing, s.trouble = true, ""
	s.endFaults()
	s.outlast()
	deadline, most := s.World.now().Add(patience), s.World.steps+mostSteps
	for !s.World.idle() && s.World.failure == nil {
		if s.World.now().After(deadline) || s.World.steps > most {
			s.World.fail("it settles", "something still happens %s and %d steps after the last fault; %s",
				s.World.now().Sub(deadline.Add(-patience)), s.World.steps-most+mostSteps, s.missing())
			break
		}
		s.World.step()
	}
	if s.World.failure == nil {
		s.checkSettled()
	}
	return s.World.failure
}

// endFaults makes every actor well-behaved.
func (s *Simulation) endFaults() {
	s.World.say("story", "from here on nothing goes wrong any more")
	s.nodes.heal()
	s.removeObstacles()
	operator{s}.finish()
	s.leaveOneLeader()
	for _, p := range s.processes {
		p.config.Faults = Faults{}
		for _, kind := range kinds {
			cache := p.caches[kind]
			if cache.lag = quiet(ProcessConfig{}).Lag; cache.due.After(s.World.now().Add(time.Second)) { // it hangs
				cache.due = time.Time{}
				cache.plan(len(p.Server.Log[kind]))
			}
		}
	}
}

// leaveOneLeader stops all processes but the one that has led last: each would overwrite the status of the other, by what
// it remembers of failures.
func (s *Simulation) leaveOneLeader() {
	alive := list.Only(s.processes, func(p *Process) bool { return !p.dead })
	for _, p := range alive[:max(len(alive)-1, 0)] {
		p.stop()
	}
}

// mostSteps bounds the steps until a set settles, which usually are some hundreds; patience bounds the
// time.
const mostSteps, patience = 20000, time.Hour

func (s *Simulation) checkSettled() {
	if what := s.missing(); what != "" {
		s.World.fail("it converges", "nothing happens any more, but %s", what)
		return
	}
	s.World.say("story", "the set rests at its goal; another pass and a new process have nothing to do")
	s.launch(s.successor())
	writes := 0
	for _, p := range s.processes {
		writes += p.writes
		if !p.dead {
			p.queue.Add(reconcile.Request{NamespacedName: s.key})
		}
	}
	for n := 0; !s.World.idle() && s.World.failure == nil && n < 1000; n++ {
		s.World.step()
	}
	for _, p := range s.processes {
		writes -= p.writes
	}
	if writes != 0 || !s.World.idle() {
		s.World.fail("a pass at the goal does nothing", "%d writes, and something to do later: %t", -writes, !s.World.idle())
	}
}

// missing describes what keeps the set from its goal; "" if it is there.
func (s *Simulation) missing() string {
	set := s.Set()
	if goes(set) {
		return s.leftOver(set)
	}
	update, live := s.updateRevision(set), knowledge(s.Pods())
	for _, pod := range live {
		if !model.Active(pod) {
			return fmt.Sprintf("Pod %s has ended and is not cleaned up", pod.Name)
		}
		if what := s.missingOf(pod, set); what != "" {
			return fmt.Sprintf("Pod %s %s", pod.Name, what)
		}
	}
	if len(live) != replicas(set) {
		return fmt.Sprintf("there are %d Pods of %d", len(live), replicas(set))
	}
	old := live.count(func(pod *corev1.Pod) bool { return !of(pod, update) })
	if s.updates(set) && old > partitionOf(set) {
		return fmt.Sprintf("%d Pods are of an old revision, and the partition is %d", old, partitionOf(set))
	}
	for _, pod := range model.List[*corev1.Pod](s.Server.Objects) {
		if pulls(pod) {
			return fmt.Sprintf("Pod %s still pulls an image", pod.Name)
		}
	}
	return cmp.Or(s.missingClaims(set), s.missingStatus(set, len(live), old, update))
}

// updates reports whether the set updates its Pods by itself.
func (s *Simulation) updates(set *apps.CloneSet) bool {
	return !s.stands(set) && set.Spec.UpdateStrategy.Type != apps.UpdateOnDelete && !set.Spec.UpdateStrategy.Paused
}

// missingOf describes what keeps a Pod from its final state.
func (s *Simulation) missingOf(pod *corev1.Pod, set *apps.CloneSet) string {
	switch {
	case stray(pod, set):
		return "does not match the selector and is the set's all the same"
	case model.State(pod) != apps.StateNormal:
		return "is in " + string(model.State(pod))
	case model.Condition(pod, apps.ConditionInPlaceUpdateReady).Status == corev1.ConditionFalse:
		return "is still drained"
	case model.Condition(pod, apps.ConditionPodReady).Status == corev1.ConditionFalse:
		return "is still marked not ready"
	case !available(pod, set, s.World.now()):
		return "is not available"
	case specified(pod, set):
		return "was to be deleted"
	case s.nodes.truth(pod) != "":
		return "is not what runs: " + s.nodes.truth(pod)
	}
	return cmp.Or(s.leftBehind(pod, set), s.unprotectedBy(pod, set), s.torn(pod))
}

// unprotectedBy names the hook that a Pod has lost.
func (s *Simulation) unprotectedBy(pod *corev1.Pod, set *apps.CloneSet) string {
	hooks := lifecycle.FromSpec(set.Spec.Lifecycle)
	switch {
	case s.unprotected:
	case !hooks.PreDelete.Complete(pod.Labels, pod.Finalizers):
		return "is not protected by its preDelete hook"
	case !hooks.InPlaceUpdate.Complete(pod.Labels, pod.Finalizers):
		return "is not protected by its inPlaceUpdate hook"
	}
	return ""
}

// torn reports that a Pod carries the label of a revision but does not match it.
func (s *Simulation) torn(pod *corev1.Pod) string {
	name, template := pod.Labels[apps.LabelRevision], templateOfPod(s.Server, pod)
	if template == nil {
		return "is of a revision that does not exist, or cannot be read"
	}
	for i, want := range template.Spec.Containers {
		if i >= len(pod.Spec.Containers) || pod.Spec.Containers[i].Image != want.Image {
			return fmt.Sprintf("is of revision %s and runs %s", name, imagesOf(&pod.Spec))
		}
		if have := pod.Spec.Containers[i].Resources; !model.SameResources(have, want.Resources) {
			return fmt.Sprintf("is of revision %s and has %s", name, model.ResourcesText(have))
		}
	}
	for key, value := range template.Labels {
		if !strings.HasPrefix(key, hookPrefix) && pod.Labels[key] != value {
			return fmt.Sprintf("is of revision %s and lacks its label %s=%v", name, key, value)
		}
	}
	return ""
}

// templateOfPod returns the template of a Pod's revision; nil if there is none.
func templateOfPod(s *model.Server, pod *corev1.Pod) *corev1.PodTemplateSpec {
	r := model.Get[*appsv1.ControllerRevision](s.Objects, key(pod.Namespace, pod.Labels[apps.LabelRevision]))
	if r == nil {
		return nil
	}
	raw, err := revision.Template(r.Data.Raw)
	if err != nil {
		return nil
	}
	template := &corev1.PodTemplateSpec{}
	if runtime.DefaultUnstructuredConverter.FromUnstructured(raw, template) != nil {
		return nil
	}
	return template
}

func (s *Simulation) missingStatus(set *apps.CloneSet, live, old int, update string) string {
	got := set.Status
	for _, c := range got.Conditions {
		if c.Status == corev1.ConditionTrue && c.Type != apps.ConditionProgressing && !s.stands(set) {
			return fmt.Sprintf("condition %s is True: %s", c.Type, c.Message)
		}
	}
	want, all, updated := got, int32(live), int32(live-old) // of a few Pods
	want.Replicas, want.ReadyReplicas, want.AvailableReplicas = all, all, all
	want.UpdatedReplicas, want.UpdatedReadyReplicas, want.UpdatedAvailableReplicas = updated, updated, updated
	want.ExpectedUpdatedReplicas = int32(replicas(set) - partitionOf(set))
	want.ObservedGeneration, want.UpdateRevision = set.Generation, update
	if old == 0 {
		want.CurrentRevision = update
	}
	if !reflect.DeepEqual(want, got) {
		return "the status is not what it should be (-want +got):\n" + gocmp.Diff(want, got)
	}
	return ""
}
