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
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/test/model"
)

// draws lets the user change the set by a word with one of several values.
func draws(word string, values ...string) func(*Simulation) {
	return func(s *Simulation) { s.change(word + " " + pick(s.World, values...)) }
}

// change lets the user change the CloneSet as words say.
func (s *Simulation) change(about string) { s.Edit(about, to(about)) }

var (
	roll          = draws("image", "app:1", "app:2", "app:2-alias", "app:3", "app:4")
	rollAll       = draws("images", "app:1", "app:2", "app:3", "app:4")
	relabel       = draws("tier", "a", "b")
	recreate      = draws("env", "x", "y") // env cannot change in place
	scale         = draws("replicas", "0", "1", "2", "3", "4", "5")
	movePartition = draws("partition", "0", "1", "2", "50%", "100%")
	exclude       = draws("excluded", "true", "false")
	rebudget      = func(s *Simulation) { s.change(budgets(s.World, s.Set().Spec.UpdateStrategy.Type)) }
	pause         = func(s *Simulation) { s.change(fmt.Sprint("paused ", !s.Set().Spec.UpdateStrategy.Paused)) }
	deleteByHand  = func(s *Simulation) { s.eachOf(1, func(pod *corev1.Pod) { _ = s.Server.Delete("user", pod) }) }
)

// userActions are the actions of the user in a random schedule; likely ones are listed several times.
var userActions = slices.Concat(
	times(10, roll),
	times(3, (*Simulation).rollBack),
	times(2, (*Simulation).undo),
	times(2, relabel),
	times(2, recreate),
	times(8, scale),
	times(3, func(s *Simulation) { s.thinkAgain(scale, (*Simulation).scaleBack) }),
	times(3, func(s *Simulation) { s.thinkAgain(roll, roll) }),
	times(4, movePartition),
	times(2, rebudget),
	times(2, pause),
	times(2, (*Simulation).retype),
	times(3, (*Simulation).rehook),
	times(1, func(s *Simulation) {
		s.change(fmt.Sprintf("grace %d; minReady %d", pick(s.World, 0, 3, 20), pick(s.World, 0, 5, 30)))
	}),
	times(4, (*Simulation).nameForDeletion),
	times(3, (*Simulation).listForDeletion),
	times(3, deleteByHand),
	times(2, (*Simulation).touchByHand),
	times(1, exclude),
	times(2, func(s *Simulation) { s.eachOf(1, s.nodes.restart) }),
	times(2, func(s *Simulation) { s.eachOf(1, s.nodes.evict) }),
	times(3, func(s *Simulation) {
		node := s.World.chance.IntN(max(s.config.Nodes.Nodes, 1))
		s.nodes.nodeDown(node)
		s.World.after(s.World.between(time.Second, 2*time.Minute), func() { s.nodes.nodeUp(node) })
	}),
	times(4, func(s *Simulation) { // for some time, or until the end
		node := s.World.chance.IntN(max(s.config.Nodes.Nodes, 1))
		s.nodes.cordon(node, true)
		if s.World.roll(0.6) {
			s.World.after(s.World.between(0, pick(s.World, time.Second, time.Minute, 5*time.Minute)), func() { s.nodes.cordon(node, false) })
		}
	}),
	times(1, func(s *Simulation) { s.eachOf(1, s.orphan) }),
	times(2, (*Simulation).takeOutByHand),
	times(2, func(s *Simulation) {
		image := pick(s.World, "app:3", "app:4")
		s.World.say("story", "%s does not start", image)
		s.nodes.Broken[image] = true
	}),
	times(5, (*Simulation).rollResources),
	times(4, rollAll),
	times(3, func(s *Simulation) {
		s.thinkAgain(rollAll, pick(s.World, rollAll, (*Simulation).rollBack, (*Simulation).rollResources))
	}),
	times(1, func(s *Simulation) {
		s.World.say("story", "the API server refuses resizes")
		s.Server.RefuseResizes, s.refusedOnce = true, true
		s.World.after(s.World.between(time.Second, 2*time.Minute), func() { s.Server.RefuseResizes = false })
	}),
)

func times(n int, do func(*Simulation)) []func(*Simulation) {
	return slices.Repeat([]func(*Simulation){do}, n)
}

// act takes a random action of the user, or makes a random fault happen.
func (s *Simulation) act() {
	if s.closing || s.Set() == nil {
		return
	}
	actions := userActions
	if len(s.Set().Spec.VolumeClaimTemplates) > 0 && s.World.roll(0.3) {
		actions = claimActions
	}
	pick(s.World, actions...)(s)
}

// thinkAgain does something, and soon something else.
func (s *Simulation) thinkAgain(first, then func(*Simulation)) {
	first(s)
	s.World.after(s.World.between(0, pick(s.World, time.Second, 20*time.Second, time.Minute)), func() {
		if !s.closing {
			then(s)
		}
	})
}

// scaleBack scales to the present number of Pods, or to a few more.
func (s *Simulation) scaleBack() { s.change(fmt.Sprint("replicas ", min(len(s.Pods()), 6))) }

// rollBack returns to an earlier template.
func (s *Simulation) rollBack() {
	if len(s.templates) > 0 {
		template := pick(s.World, s.templates...)
		s.Edit("rolls back", func(set *apps.CloneSet) { set.Spec.Template = template })
	}
}

// undo rolls back like a client that merges the data of a revision into the set.
func (s *Simulation) undo() {
	if list := model.List[*appsv1.ControllerRevision](s.Server.Objects); len(list) > 0 {
		r := pick(s.World, list...)
		s.Edit("merges revision "+r.Name+" into the set", Undo(r.Data.Raw))
	}
}

// rollResources requests other resources, which the nodes may not have, and sometimes
// another image too.
func (s *Simulation) rollResources() {
	s.change("cpu " + pick(s.World, "100m", "200m", "300m", "700m", "950m") + pick(s.World, "", "", "; images app:1", "; images app:3"))
}

// budgets draws maxUnavailable and maxSurge, which cannot both be 0.
func budgets(w *World, kind apps.UpdateStrategyType) string {
	unavailable, surge := pick(w, "1", "2", "50%", "0"), pick(w, "0", "0", "1", "30%")
	if kind == apps.UpdateInPlaceOnly {
		surge = "0"
	}
	if surge == "0" && unavailable == "0" {
		unavailable = "1"
	}
	return "unavailable " + unavailable + "; surge " + surge
}

func (s *Simulation) retype() {
	kind := pick(s.World, apps.UpdateReCreate, apps.UpdateInPlaceIfPossible, apps.UpdateInPlaceOnly, apps.UpdateOnDelete)
	s.change("type " + string(kind) + "; " + budgets(s.World, kind))
}

// rehook changes the lifecycle, sometimes without changing the template.
func (s *Simulation) rehook() {
	hooks := someHooks(s.World)
	s.unprotected = true
	if s.World.roll(0.3) {
		s.Edit("changes the hooks and the template's labels for them", func(set *apps.CloneSet) { hook(set, hooks) })
		return
	}
	s.Edit("changes the hooks", func(set *apps.CloneSet) { set.Spec.Lifecycle = hooks })
}

// eachOf does something to n of the set's Pods.
func (s *Simulation) eachOf(n int, do func(*corev1.Pod)) {
	pods := s.Pods()
	for range min(n, len(pods)) {
		do(pods[s.World.chance.IntN(len(pods))])
	}
}

func (s *Simulation) changePod(pod *corev1.Pod, change func(*corev1.Pod)) {
	model.Change(s.Server, "user", client.ObjectKeyFromObject(pod), "", change)
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
			set.Spec.Replicas = new(*set.Spec.Replicas - 1)
		}
	})
}

// touchByHand writes something unrelated to the controller.
func (s *Simulation) touchByHand() {
	s.eachOf(2, func(pod *corev1.Pod) {
		s.changePod(pod, func(pod *corev1.Pod) {
			pod.Labels["other/label"] = fmt.Sprint(s.World.chance.IntN(100))
			if s.World.roll(0.2) && pod.DeletionTimestamp == nil {
				controllerutil.AddFinalizer(pod, "other/finalizer")
			}
		})
	})
}

// orphan removes a Pod from its set; the set may take it back.
func (s *Simulation) orphan(pod *corev1.Pod) {
	s.changePod(pod, func(pod *corev1.Pod) { pod.OwnerReferences = nil })
}

// someHooks draws a lifecycle.
func someHooks(w *World) *apps.Lifecycle {
	hooks := hooksNamed(pick(w,
		"none", "preDelete", "inPlaceUpdate", "finalizer", "one label", "label and finalizer", "label",
	))
	if hooks == nil {
		return nil
	}
	for _, h := range []*apps.LifecycleHook{hooks.InPlaceUpdate, hooks.PreDelete} {
		if h != nil {
			h.MarkPodNotReady = w.roll(0.4)
		}
	}
	return hooks
}

// takeOutByHand changes a Pod's labels so that its set no longer matches it, as users do to debug a
// Pod. Later the Pod is put back, or deleted, or neither.
func (s *Simulation) takeOutByHand() {
	s.eachOf(1, func(pod *corev1.Pod) {
		s.changePod(pod, func(pod *corev1.Pod) { pod.Labels["app"] = "apart" })
		then := func() { s.changePod(pod, func(pod *corev1.Pod) { pod.Labels["app"] = "demo" }) }
		if !s.World.roll(0.5) {
			if s.World.roll(0.5) {
				return
			}
			then = func() { _ = s.Server.Delete("user", pod, client.Preconditions{UID: &pod.UID}) }
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
func strayTouched(w *podWrite) {
	if w.old == nil || model.OwnerOf(w.old) != string(w.set.UID) || w.old.DeletionTimestamp != nil {
		return
	}
	switch out := stray(w.old, w.set); {
	case w.set.DeletionTimestamp != nil: // the garbage collector deletes such a Pod too
	case out && !w.frees() && !w.onlyOpens():
		w.fail("does not match the selector, and is changed")
	case !out && w.new != nil && model.OwnerOf(w.new) != string(w.set.UID):
		w.fail("matches the selector, and is let go")
	}
}
