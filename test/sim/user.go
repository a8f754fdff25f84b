// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/test/model"
)

// userDeeds are what a random schedule lets the user do, with the weight of each.
var userActions = []struct {
	weight int
	do     func(*Simulation)
}{
	{10, func(s *Simulation) { s.roll() }},
	{3, func(s *Simulation) { s.rollBack() }},
	{2, func(s *Simulation) { s.undo() }},
	{2, func(s *Simulation) { s.relabel() }},
	{2, func(s *Simulation) { s.recreate() }},
	{8, func(s *Simulation) { s.scale() }},
	{3, func(s *Simulation) { s.thinkAgain(s.scale, s.scaleBack) }},
	{3, func(s *Simulation) { s.thinkAgain(s.roll, s.roll) }},
	{4, func(s *Simulation) { s.move("partition") }},
	{2, func(s *Simulation) { s.move("budget") }},
	{2, func(s *Simulation) { s.pause() }},
	{2, func(s *Simulation) { s.retype() }},
	{3, func(s *Simulation) { s.rehook() }},
	{1, func(s *Simulation) { s.retime() }},
	{4, func(s *Simulation) { s.nameForDeletion() }},
	{3, func(s *Simulation) { s.listForDeletion() }},
	{3, func(s *Simulation) { s.deleteByHand() }},
	{2, func(s *Simulation) { s.touchByHand() }},
	{1, func(s *Simulation) { s.exclude() }},
	{2, func(s *Simulation) { s.eachOf(1, s.nodes.restart) }},
	{2, func(s *Simulation) { s.eachOf(1, s.nodes.evict) }},
	{3, func(s *Simulation) { s.losesNode() }},
	{4, func(s *Simulation) { s.cordonsNode() }},
	{1, func(s *Simulation) { s.orphanByHand() }},
	{2, func(s *Simulation) { s.takeOutByHand() }},
	{2, func(s *Simulation) { s.breakImage() }},
	{5, func(s *Simulation) { s.rollResources() }},
	{4, func(s *Simulation) { s.rollAll() }},
	{3, func(s *Simulation) { s.thinkAgain(s.rollAll, pick(s.World, s.rollAll, s.rollBack, s.rollResources)) }},
	{1, func(s *Simulation) { s.forbidResizes() }},
}

// act lets the user, or fate, do something.
func (s *Simulation) act() {
	if s.closing || s.Set() == nil {
		return
	}
	if len(s.Set().Spec.VolumeClaimTemplates) > 0 && s.World.roll(0.3) {
		pick(s.World, claimActions...)(s)
		return
	}
	total := 0
	for _, d := range userActions {
		total += d.weight
	}
	n := s.World.chance.IntN(total)
	for _, d := range userActions {
		if n -= d.weight; n < 0 {
			d.do(s)
			return
		}
	}
}

func (s *Simulation) roll() {
	image := pick(s.World, "app:1", "app:2", "app:2-alias", "app:3", "app:4")
	s.Edit("rolls out "+image, to("image "+image))
}

// thinkAgain does something, and soon something else.
func (s *Simulation) thinkAgain(first, then func()) {
	first()
	s.World.after(s.World.between(0, pick(s.World, time.Second, 20*time.Second, time.Minute)), func() {
		if !s.closing {
			then()
		}
	})
}

// scaleBack scales to the present number of Pods, or to a few more.
func (s *Simulation) scaleBack() {
	n := min(len(s.Pods()), 6)
	s.Edit(fmt.Sprintf("scales back to %d", n), to(fmt.Sprint("replicas ", n)))
}

func (s *Simulation) breakImage() {
	image := pick(s.World, "app:3", "app:4")
	s.World.say("story", "%s does not start", image)
	s.nodes.Broken[image] = true
}

// rollBack returns to an earlier template.
func (s *Simulation) rollBack() {
	if len(s.templates) == 0 {
		return
	}
	template := s.templates[s.World.chance.IntN(len(s.templates))]
	s.Edit("rolls back", func(set *apps.CloneSet) { set.Spec.Template = template })
}

// undo rolls back as a client does that merges the data of a revision into the set.
func (s *Simulation) undo() {
	list := model.List[*appsv1.ControllerRevision](s.Server.Objects)
	if len(list) == 0 {
		return
	}
	object := list[s.World.chance.IntN(len(list))]
	s.Edit("merges revision "+object.GetName()+" into the set", Undo(object.Data.Raw))
}

func (s *Simulation) relabel() {
	tier := pick(s.World, "a", "b")
	s.Edit("changes a label of the template", to("tier "+tier))
}

// recreate changes what cannot change in place.
func (s *Simulation) recreate() {
	value := pick(s.World, "x", "y")
	s.Edit("changes the environment of the container", to("env "+value))
}

func (s *Simulation) scale() {
	n := s.World.chance.IntN(6)
	s.Edit(fmt.Sprintf("scales to %d", n), to(fmt.Sprint("replicas ", n)))
}

func (s *Simulation) move(what string) {
	s.Edit("moves the "+what, func(set *apps.CloneSet) {
		if what == "partition" {
			set.Spec.UpdateStrategy.Partition = s.count(intstr.FromInt32(0), intstr.FromInt32(1), intstr.FromInt32(2), intstr.FromString("50%"), intstr.FromString("100%"))
			return
		}
		budgets(s.World, set)
	})
}

func (s *Simulation) count(from ...intstr.IntOrString) *apps.Count {
	value := pick(s.World, from...)
	return (*apps.Count)(&value)
}

// budgets draws maxUnavailable and maxSurge, which cannot both be 0.
func budgets(w *World, set *apps.CloneSet) {
	unavailable := pick(w, intstr.FromInt32(1), intstr.FromInt32(2), intstr.FromString("50%"), intstr.FromInt32(0))
	surge := pick(w, intstr.FromInt32(0), intstr.FromInt32(0), intstr.FromInt32(1), intstr.FromString("30%"))
	if set.Spec.UpdateStrategy.Type == apps.UpdateInPlaceOnly {
		surge = intstr.FromInt32(0)
	}
	if surge == intstr.FromInt32(0) && unavailable == intstr.FromInt32(0) {
		unavailable = intstr.FromInt32(1)
	}
	set.Spec.UpdateStrategy.MaxUnavailable = (*apps.Count)(&unavailable)
	set.Spec.UpdateStrategy.MaxSurge = (*apps.Count)(&surge)
}

func (s *Simulation) pause() {
	s.Edit("pauses or goes on", func(set *apps.CloneSet) { set.Spec.UpdateStrategy.Paused = !set.Spec.UpdateStrategy.Paused })
}

func (s *Simulation) retype() {
	kind := pick(s.World, apps.UpdateReCreate, apps.UpdateInPlaceIfPossible, apps.UpdateInPlaceOnly, apps.UpdateOnDelete)
	s.Edit("sets the type to "+string(kind), func(set *apps.CloneSet) {
		set.Spec.UpdateStrategy.Type = kind
		budgets(s.World, set)
	})
}

// rehook changes the lifecycle, sometimes without changing the template.
func (s *Simulation) rehook() {
	hooks := someHooks(s.World)
	s.unprotected = true
	if s.World.roll(0.3) {
		s.Edit("changes the hooks and the template's labels for them", func(set *apps.CloneSet) {
			hook(set, hooks)
		})
		return
	}
	s.Edit("changes the hooks", func(set *apps.CloneSet) { set.Spec.Lifecycle = hooks })
}

func (s *Simulation) retime() {
	grace, ready := pick(s.World, int32(0), 3, 20), pick(s.World, int32(0), 5, 30)
	s.Edit("changes the grace period and minReadySeconds", func(set *apps.CloneSet) {
		set.Spec.UpdateStrategy.InPlaceUpdateStrategy = &apps.InPlaceUpdateStrategy{GracePeriodSeconds: grace}
		set.Spec.MinReadySeconds = ready
	})
}

// eachOf does something to n of the set's Pods.
func (s *Simulation) eachOf(n int, do func(*corev1.Pod)) {
	pods := s.Pods()
	for range min(n, len(pods)) {
		do(pods[s.World.chance.IntN(len(pods))])
	}
}

func (s *Simulation) changePod(pod *corev1.Pod, change func(*corev1.Pod)) {
	s.nodes.write("user", client.ObjectKeyFromObject(pod), "", change)
}

func (s *Simulation) nameForDeletion() {
	s.eachOf(1+s.World.chance.IntN(2), func(pod *corev1.Pod) {
		s.changePod(pod, func(pod *corev1.Pod) { pod.Labels[apps.LabelSpecifiedDelete] = pick(s.World, "true", "true", "false") })
	})
}

func (s *Simulation) listForDeletion() {
	var names []string
	s.eachOf(1+s.World.chance.IntN(2), func(pod *corev1.Pod) {
		if !slices.Contains(names, pod.Name) {
			names = append(names, pod.Name)
		}
	})
	s.Edit("lists Pods to delete", func(set *apps.CloneSet) {
		set.Spec.ScaleStrategy.PodsToDelete = names
		if s.World.roll(0.5) && *set.Spec.Replicas > 0 {
			n := *set.Spec.Replicas - 1
			set.Spec.Replicas = &n
		}
	})
}

func (s *Simulation) deleteByHand() {
	s.eachOf(1, func(pod *corev1.Pod) {
		_ = s.Server.Delete("user", model.Pods, client.ObjectKeyFromObject(pod), model.Deletion{})
	})
}

// touchByHand writes something unrelated to the controller.
func (s *Simulation) touchByHand() {
	s.eachOf(2, func(pod *corev1.Pod) {
		s.changePod(pod, func(pod *corev1.Pod) {
			pod.Labels["other/label"] = fmt.Sprint(s.World.chance.IntN(100))
			if s.World.roll(0.2) && pod.DeletionTimestamp == nil && !slices.Contains(pod.Finalizers, "other/finalizer") {
				pod.Finalizers = append(pod.Finalizers, "other/finalizer")
			}
		})
	})
}

func (s *Simulation) exclude() {
	s.Edit("changes whether PreparingDelete counts", func(set *apps.CloneSet) {
		value := pick(s.World, "true", "false")
		set.Labels = map[string]string{apps.LabelScalingExcludePreparingDelete: value}
	})
}

func (s *Simulation) losesNode() {
	node := s.World.chance.IntN(max(s.config.Nodes.Nodes, 1))
	s.nodes.nodeDown(node)
	s.World.after(s.World.between(time.Second, 2*time.Minute), func() { s.nodes.nodeUp(node) })
}

// orphanByHand removes a Pod from its set; the set may take it back.
func (s *Simulation) orphanByHand() {
	s.eachOf(1, func(pod *corev1.Pod) {
		s.changePod(pod, func(pod *corev1.Pod) { pod.OwnerReferences = nil })
	})
}

// someHooks draws a lifecycle.
func someHooks(w *World) *apps.Lifecycle {
	mark := func(h *apps.LifecycleHook) *apps.LifecycleHook {
		h.MarkPodNotReady = w.roll(0.4)
		return h
	}
	switch w.chance.IntN(7) {
	case 0:
		return nil
	case 1:
		return &apps.Lifecycle{PreDelete: mark(labelHook("hook/block-delete"))}
	case 2:
		return &apps.Lifecycle{InPlaceUpdate: mark(labelHook("hook/block-update"))}
	case 3: // one finalizer for both ways out of service
		return &apps.Lifecycle{InPlaceUpdate: mark(registeredHook()), PreDelete: mark(registeredHook())}
	case 4: // one label for being in service
		return &apps.Lifecycle{
			PreNormal: labelHook("hook/online"), InPlaceUpdate: mark(labelHook("hook/online")), PreDelete: mark(labelHook("hook/online")),
		}
	case 5:
		both := labelHook("hook/block-delete")
		both.FinalizersHandler = []string{"hook/registered"}
		return &apps.Lifecycle{PreNormal: labelHook("hook/online"), PreDelete: mark(both)}
	}
	hooks := hooksNamed("label")
	hooks.InPlaceUpdate, hooks.PreDelete = mark(hooks.InPlaceUpdate), mark(hooks.PreDelete)
	return hooks
}

// takeOutByHand changes a Pod's labels so that its set no longer matches it, as a user
// does to debug it undisturbed; later it is put back, or deleted, or neither.
func (s *Simulation) takeOutByHand() {
	s.eachOf(1, func(pod *corev1.Pod) {
		s.changePod(pod, func(pod *corev1.Pod) { pod.Labels["app"] = "apart" })
		then := func() { s.changePod(pod, func(pod *corev1.Pod) { pod.Labels["app"] = "demo" }) }
		if !s.World.roll(0.5) {
			if s.World.roll(0.5) {
				return
			}
			then = func() {
				_ = s.Server.Delete("user", model.Pods, client.ObjectKeyFromObject(pod), model.Deletion{UID: pod.UID})
			}
		}
		s.World.after(s.World.between(0, pick(s.World, time.Second, time.Minute)), then)
	})
}

// stray reports whether a set's selector does not match a Pod.
func stray(pod *corev1.Pod, set *apps.CloneSet) bool {
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector.AsMeta())
	return err == nil && !selector.Matches(labels.Set(pod.Labels))
}

// frees reports whether the write removes the set from the Pod's owners and does nothing
// else.
func (w *podWrite) frees() bool {
	if w.old == nil || w.new == nil || model.OwnerOf(w.old) != string(w.set.UID) || model.OwnerOf(w.new) == string(w.set.UID) {
		return false
	}
	before := w.old.DeepCopy()
	before.ResourceVersion, before.OwnerReferences = w.new.ResourceVersion, w.new.OwnerReferences
	return model.Same(before, w.new)
}

// strayTouched: a Pod that the set does not match is released unchanged, and only such
// a Pod is released.
func strayTouched(w *podWrite) string {
	if w.old == nil || model.OwnerOf(w.old) != string(w.set.UID) || w.old.DeletionTimestamp != nil {
		return ""
	}
	switch out := stray(w.old, w.set); {
	case w.set.DeletionTimestamp != nil: // the garbage collector deletes such a Pod too
	case out && !w.frees() && !w.onlyOpens():
		return fmt.Sprintf("Pod %s does not match the selector, and is changed", w.name())
	case !out && w.new != nil && model.OwnerOf(w.new) != string(w.set.UID):
		return fmt.Sprintf("Pod %s matches the selector, and is let go", w.name())
	}
	return ""
}
