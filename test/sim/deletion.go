// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/model"
)

// collector is the garbage collector of kube-controller-manager, for objects that a CloneSet owns.
type collector struct{ *Simulation }

// collectorName is the name of the collector as an actor.
const collectorName = "collector"

// dependents are the kinds of objects that a CloneSet owns.
var dependents = []model.Kind{model.Pods, model.Claims, model.Revisions}

// observe receives every commit. It acts on those of terminating sets, and of objects whose set is
// gone.
func (c collector) observe(commit *model.Commit) {
	object := commit.Object()
	if set, ok := object.(*apps.CloneSet); ok {
		if commit.New == nil || set.DeletionTimestamp != nil {
			c.later(func() { c.collect(client.ObjectKeyFromObject(set), set.UID) })
		}
		return
	}
	owner := ownerIn(commit)
	if owner == nil || owner.Kind != apps.KindCloneSet.Kind {
		return
	}
	at := key(object.GetNamespace(), owner.Name)
	if set := model.Get[*apps.CloneSet](c.Server.Objects, at); set == nil || set.DeletionTimestamp != nil {
		c.later(func() { c.collect(at, owner.UID) })
	}
}

// ownerIn returns the owner of a commit's object, or the one that has released it; nil if there is
// none.
func ownerIn(commit *model.Commit) *metav1.OwnerReference {
	for _, object := range []client.Object{commit.New, commit.Old} {
		if object != nil && len(object.GetOwnerReferences()) > 0 {
			return &object.GetOwnerReferences()[0]
		}
	}
	return nil
}

func (c collector) later(do func()) {
	c.World.after(c.World.between(time.Millisecond, time.Second), do)
}

// collect does what is due for the dependents of a set.
func (c collector) collect(at types.NamespacedName, owner types.UID) {
	set := model.Get[*apps.CloneSet](c.Server.Objects, at)
	has := func(finalizer string) bool { return set != nil && slices.Contains(set.Finalizers, finalizer) }
	owned := c.owned(owner)
	switch {
	case set == nil || set.UID != owner || has(metav1.FinalizerDeleteDependents):
		for _, object := range owned {
			_ = c.Server.Delete(collectorName, object, client.Preconditions{UID: new(object.GetUID())})
		}
		if len(owned) == 0 && has(metav1.FinalizerDeleteDependents) {
			c.finish(at, metav1.FinalizerDeleteDependents)
		}
	case has(metav1.FinalizerOrphanDependents):
		for _, object := range owned {
			_, _ = c.Server.Update(collectorName, model.KindOf(object), client.ObjectKeyFromObject(object), "", func(object client.Object) error {
				object.SetOwnerReferences(nil)
				return nil
			})
		}
		c.finish(at, metav1.FinalizerOrphanDependents)
	}
}

func (c collector) owned(owner types.UID) (out []client.Object) {
	for _, kind := range dependents {
		out = append(out, list.Only(model.Sorted(c.Server.Objects[kind]), func(o client.Object) bool {
			return model.OwnerOf(o) == string(owner) || ownerOf(o) == "pulls/"+string(owner)
		})...)
	}
	return out
}

func (c collector) finish(at types.NamespacedName, finalizer string) {
	model.Change(c.Server, collectorName, at, "", func(set *apps.CloneSet) { controllerutil.RemoveFinalizer(set, finalizer) })
}

// DeleteSet lets the user delete the CloneSet.
func (s *Simulation) DeleteSet(how metav1.DeletionPropagation) {
	if set := s.Set(); set != nil {
		s.World.say("user", "deletes the CloneSet (%s)", how)
		_ = s.Server.Delete("user", set, client.PropagationPolicy(how))
	}
}

// randomEnd makes the user of some schedules delete the set, and sometimes change how it is deleted. It
// has its own random source, so that the other seeds stay unchanged.
func (s *Simulation) randomEnd(seed uint64) {
	w := newWorld(seed ^ 0xde1e7e)
	if !w.roll(0.2) {
		return
	}
	how := pick(w, metav1.DeletePropagationBackground, metav1.DeletePropagationBackground, metav1.DeletePropagationBackground,
		metav1.DeletePropagationOrphan, metav1.DeletePropagationForeground)
	at := w.between(0, s.plannedEnd+10*time.Second)
	s.World.after(at, func() { s.DeleteSet(how) })
	after := at + w.between(0, pick(w, time.Second, time.Minute))
	switch {
	case w.roll(0.15):
		s.World.after(after, func() { s.DeleteSet(metav1.DeletePropagationOrphan) })
	case w.roll(0.15):
		s.World.after(after, func() { s.happen("removes the hooks", "lifecycle none") })
	}
	s.plannedEnd = max(s.plannedEnd, after)
}

const ruleCollected = "no Pod of a deleted set is collected while its hook holds it"

// withoutFinalizer: a set with a preDelete hook has its finalizer before it has Pods.
func withoutFinalizer(w *podWrite) {
	set := model.Get[*apps.CloneSet](w.process.Server.Objects, client.ObjectKeyFromObject(w.set))
	switch {
	case w.old != nil || w.hooks.PreDelete.Empty() || set == nil || set.UID != w.set.UID || set.DeletionTimestamp != nil:
	case set.Spec.Lifecycle != nil && set.Spec.Lifecycle.PreDelete != nil && !slices.Contains(set.Finalizers, apps.FinalizerPreDelete) &&
		set.Generation == w.set.Generation:
		w.fail("is created, and the CloneSet has the finalizers %v", set.Finalizers)
	}
}

// afterDeletion: if the process knows that the set is deleted, it creates and updates no Pod of it, and
// does not change orphans.
func afterDeletion(w *podWrite) {
	switch {
	case w.set.DeletionTimestamp == nil:
	case slices.Contains(w.set.Finalizers, metav1.FinalizerOrphanDependents):
		w.fail("is touched, and is to be an orphan")
	case w.old == nil || w.updates():
		w.fail("is created or updated")
	}
}

// judgeCollected checks a deletion by the garbage collector: when the controller has released a set
// that is deleted in background, the hook holds none of its Pods. Pods that another process, which did
// not know of the deletion, created or adopted meanwhile do not count.
func (s *Simulation) judgeCollected(c *model.Commit) {
	pod, _ := c.Pods()
	if c.Actor != collectorName || pod == nil || !c.Deletes() || s.Set() != nil {
		return
	}
	log := s.Server.Log[model.CloneSets]
	end := log[len(log)-1]
	set, _ := end.Old.(*apps.CloneSet)
	if !isProcess(end.Actor) || set == nil || s.lateComer(pod, end.Actor) {
		return
	}
	if hook := lifecycle.FromSpec(set.Spec.Lifecycle).PreDelete; hook.Holds(pod.Labels, pod.Finalizers) {
		s.World.fail(ruleCollected, "Pod %s is deleted, and the preDelete hook holds it", pod.Name)
	}
}

// lateComer reports whether another process gave the set a Pod after the set was deleted.
func (s *Simulation) lateComer(pod *corev1.Pod, process string) bool {
	log := s.Server.Log[model.CloneSets]
	deleted := log[slices.IndexFunc(log, (*model.Commit).Deletes)].Version
	late := false
	for _, c := range s.Server.History(model.Pods, pod.UID) {
		if old, next := c.Pods(); next != nil && (old == nil || model.OwnerOf(old) != model.OwnerOf(next)) {
			late = c.Version > deleted && c.Actor != process
		}
	}
	return late
}

// overtaken reports whether a set that a pass began with is gone or deleted by now, and the process
// does not know. The garbage collector cleans up what the process still does for the set.
func (s *Simulation) overtaken(set *apps.CloneSet) bool {
	live := s.Set()
	return live == nil || live.UID != set.UID || (live.DeletionTimestamp != nil && set.DeletionTimestamp == nil)
}

// goes reports whether the set is gone or terminating.
func goes(set *apps.CloneSet) bool { return set == nil || set.DeletionTimestamp != nil }

// leftOver describes the remaining objects of a deleted set; "" if there are none. A released Pod keeps
// its claims, and these hold a set that is deleted in the foreground.
func (s *Simulation) leftOver(set *apps.CloneSet) string {
	if set != nil && (!slices.Equal(set.Finalizers, []string{metav1.FinalizerDeleteDependents}) || !slices.ContainsFunc(s.Claims(), s.inUse)) {
		return fmt.Sprintf("the CloneSet is deleted and still there, with the finalizers %v", set.Finalizers)
	}
	for _, kind := range dependents {
		for _, object := range model.Sorted(s.Server.Objects[kind]) {
			owner := metav1.GetControllerOf(object)
			claim, _ := object.(*corev1.PersistentVolumeClaim)
			if owner != nil && owner.Kind == apps.KindCloneSet.Kind && (claim == nil || !s.inUse(claim)) {
				return fmt.Sprintf("the CloneSet goes, and %s %s stays", kind, object.GetName())
			}
		}
	}
	return ""
}
