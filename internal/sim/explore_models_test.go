// SPDX-License-Identifier: Apache-2.0

package sim

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// wish is a wish that changes the CloneSet.
func wish(what string, change func(*apps.CloneSet)) Wish { return Wish{What: what, Set: change} }

func rollout(image string) Wish { return wish("rolls out "+image, Image(image)) }

func replicasTo(n int32) Wish {
	return wish("scales", func(set *apps.CloneSet) { set.Spec.Replicas = &n })
}

func partitionTo(n int) Wish {
	return wish("moves the partition", func(set *apps.CloneSet) { set.Spec.UpdateStrategy.Partition = countPointer(n) })
}

func pausedTo(paused bool) Wish {
	return wish("pauses or goes on", func(set *apps.CloneSet) { set.Spec.UpdateStrategy.Paused = paused })
}

func typeTo(kind apps.UpdateStrategyType) Wish {
	return wish("sets the type", func(set *apps.CloneSet) { set.Spec.UpdateStrategy.Type = kind })
}

func hooksTo(hooks *apps.Lifecycle) Wish {
	return wish("changes the hooks", func(set *apps.CloneSet) { set.Spec.Lifecycle = hooks })
}

func recreates() Wish {
	return wish("changes the environment", Retemplate(func(t *corev1.PodTemplateSpec) {
		t.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "VALUE", Value: "x"}}
	}))
}

func relabels() Wish {
	return wish("changes a label of the template", Retemplate(func(t *corev1.PodTemplateSpec) { t.Labels["tier"] = "a" }))
}

func named() Wish {
	return Wish{What: "labels a Pod for deletion", Pod: func(pod *corev1.Pod) { pod.Labels[apps.LabelSpecifiedDelete] = "true" }}
}

func listed(scale bool) Wish {
	return Wish{What: "lists a Pod for deletion", Named: func(set *apps.CloneSet, name string) {
		set.Spec.ScaleStrategy.PodsToDelete = []string{name}
		if scale {
			n := *set.Spec.Replicas - 1
			set.Spec.Replicas = &n
		}
	}}
}

func excludes() Wish {
	return wish("leaves PreparingDelete out of the count", func(set *apps.CloneSet) {
		set.Labels = map[string]string{apps.LabelScalingExcludePreparingDelete: "true"}
	})
}

// markedHooks mark Pods not ready while they hold them.
func markedHooks() *apps.Lifecycle {
	hooks := LabelHooks()
	hooks.InPlaceUpdate.MarkPodNotReady, hooks.PreDelete.MarkPodNotReady = true, true
	return hooks
}

// finalizerHooks are one finalizer for both ways out of service.
func finalizerHooks() *apps.Lifecycle {
	hook := func() *apps.LifecycleHook { return &apps.LifecycleHook{FinalizersHandler: []string{"hook/registered"}} }
	return &apps.Lifecycle{InPlaceUpdate: hook(), PreDelete: hook()}
}

// oneLabelHooks are one label for being in service.
func oneLabelHooks() *apps.Lifecycle {
	hook := func() *apps.LifecycleHook { return &apps.LifecycleHook{LabelsHandler: map[string]string{"hook/online": "true"}} }
	return &apps.Lifecycle{PreNormal: hook(), InPlaceUpdate: hook(), PreDelete: hook()}
}

// bothHooks hold by a label and a finalizer.
func bothHooks() *apps.Lifecycle {
	hooks := markedHooks()
	hooks.InPlaceUpdate.FinalizersHandler = []string{"hook/update"}
	hooks.PreDelete.FinalizersHandler = []string{"hook/delete"}
	return hooks
}

func preDelete() *apps.Lifecycle { return &apps.Lifecycle{PreDelete: LabelHooks().PreDelete} }

func surging(replicas int32) *Builder { return Demo(replicas).Unavailable(zero).Surge(one) }

// unbounded is for models in which others may do anything during a pass.
const unbounded = -1

// models are the small worlds that every test run visits.
func models() []Model {
	out := hookModels()
	out = append(out, updateModels()...)
	out = append(out, scaleModels()...)
	return append(out, faultModels()...)
}

func hookModels() []Model {
	return []Model{
		{Name: "create with hooks", Set: inPlace(2).Hooks(LabelHooks()).Build, Fresh: true, Interfere: 2},
		{Name: "roll back, label hooks", Set: inPlace(1).Hooks(LabelHooks()).Build, Interfere: unbounded, Wishes: []Wish{rollout("app:2"), rollout("app:1")}},
		{Name: "roll back, finalizer hooks", Set: inPlace(1).Hooks(finalizerHooks()).Build, Interfere: unbounded, Wishes: []Wish{rollout("app:2"), rollout("app:1")}},
		{Name: "roll back, marked hooks by label and finalizer", Set: inPlace(1).Hooks(bothHooks()).Build, Interfere: unbounded,
			Wishes: []Wish{rollout("app:2"), rollout("app:1")}},
		{Name: "newer revision, one label for all", Set: inPlace(1).Hooks(oneLabelHooks()).Build, Interfere: unbounded, Wishes: []Wish{rollout("app:2"), rollout("app:3")}},
		{Name: "update two with marked hooks", Set: inPlace(2).Hooks(markedHooks()).Build, Interfere: unbounded, Wishes: []Wish{rollout("app:2")}},
		{Name: "lifecycle removed mid-way", Set: inPlace(1).Hooks(markedHooks()).Build, Interfere: unbounded, Lossy: true, Wishes: []Wish{rollout("app:2"), hooksTo(nil)}},
		{Name: "lifecycle added mid-way", Set: inPlace(1).Build, Interfere: unbounded, Lossy: true, Wishes: []Wish{rollout("app:2"), hooksTo(markedHooks())}},
		{Name: "hooks exchanged mid-way", Set: inPlace(1).Hooks(bothHooks()).Build, Interfere: unbounded, Lossy: true,
			Wishes: []Wish{rollout("app:2"), hooksTo(finalizerHooks()), rollout("app:1")}},
	}
}

func updateModels() []Model {
	return []Model{
		{Name: "in place, no hooks", Set: inPlace(3).Build, Interfere: 2, Wishes: []Wish{rollout("app:2")}},
		{Name: "roll back with a grace period", Set: inPlace(1).Grace(5).Build, Interfere: unbounded, Timed: true, Wishes: []Wish{rollout("app:2"), rollout("app:1")}},
		{Name: "newer revision with a grace period and hooks", Set: inPlace(1).Grace(5).Hooks(LabelHooks()).Build, Interfere: unbounded, Timed: true,
			Wishes: []Wish{rollout("app:2"), rollout("app:3")}},
		{Name: "minReadySeconds", Set: inPlace(2).MinReady(10).Build, Interfere: 2, Timed: true, Wishes: []Wish{rollout("app:2")}},
		{Name: "pause and go on", Set: inPlace(2).Hooks(LabelHooks()).Build, Interfere: 2, Wishes: []Wish{rollout("app:2"), pausedTo(true), pausedTo(false)}},
		{Name: "canary by partition", Set: inPlace(2).Partition(one).Build, Interfere: 2, Wishes: []Wish{rollout("app:2"), partitionTo(0)}},
		{Name: "partition moved back", Set: inPlace(2).Hooks(LabelHooks()).Build, Interfere: 2, Wishes: []Wish{rollout("app:2"), partitionTo(1)}},
		{Name: "recreate", Set: Demo(2).Unavailable(one).Build, Interfere: 2, Wishes: []Wish{rollout("app:2")}},
		{Name: "recreate with surge", Set: surging(2).Build, Interfere: 1, Wishes: []Wish{rollout("app:2")}},
		{Name: "recreate with a preDelete hook", Set: Demo(1).Unavailable(one).Hooks(preDelete()).Build, Interfere: unbounded, Wishes: []Wish{rollout("app:2"), rollout("app:1")}},
		{Name: "in place with surge", Set: surging(1).Type(apps.UpdateInPlaceIfPossible).Hooks(LabelHooks()).Build, Interfere: 1, Wishes: []Wish{rollout("app:2")}},
		{Name: "not possible in place", Set: inPlace(1).Hooks(LabelHooks()).Build, Interfere: unbounded, Wishes: []Wish{recreates(), rollout("app:2")}},
		{Name: "metadata only", Set: inPlace(2).Hooks(LabelHooks()).Build, Interfere: 2, Wishes: []Wish{relabels()}},
		{Name: "OnDelete", Set: Demo(2).Type(apps.UpdateOnDelete).Hooks(LabelHooks()).Build, Interfere: 1, Wishes: []Wish{rollout("app:2"), named()}},
		{Name: "type changed mid-way", Set: inPlace(1).Hooks(LabelHooks()).Build, Interfere: unbounded, Wishes: []Wish{rollout("app:2"), typeTo(apps.UpdateReCreate)}},
	}
}

func scaleModels() []Model {
	return []Model{
		{Name: "scale in and take it back", Set: inPlace(2).Hooks(LabelHooks()).Build, Interfere: 2, Wishes: []Wish{replicasTo(1), replicasTo(2)}},
		{Name: "scale in and take it back, marked", Set: inPlace(1).Hooks(bothHooks()).Build, Interfere: unbounded, Wishes: []Wish{replicasTo(0), replicasTo(1)}},
		{Name: "scale in during an update", Set: inPlace(2).Hooks(LabelHooks()).Build, Interfere: 1, Wishes: []Wish{rollout("app:2"), replicasTo(1)}},
		{Name: "scale out during an update", Set: inPlace(1).Build, Interfere: 1, Wishes: []Wish{rollout("app:2"), replicasTo(2)}},
		{Name: "a Pod is labelled for deletion", Set: Demo(2).Unavailable(one).Hooks(preDelete()).Build, Interfere: 1, Wishes: []Wish{named()}},
		{Name: "a Pod is listed for deletion", Set: Demo(2).Unavailable(one).Build, Interfere: 2, Wishes: []Wish{listed(false)}},
		{Name: "a Pod is listed and the set scaled", Set: Demo(2).Unavailable(one).Hooks(preDelete()).Build, Interfere: 1, Wishes: []Wish{listed(true)}},
		{Name: "PreparingDelete left out of the count", Set: Demo(1).Unavailable(one).Hooks(preDelete()).Build, Interfere: 1,
			Wishes: []Wish{excludes(), named(), replicasTo(0), replicasTo(1)}},
	}
}

func faultModels() []Model {
	return []Model{
		{Name: "containers end", Set: inPlace(1).Hooks(LabelHooks()).Build, Interfere: unbounded, Wishes: []Wish{rollout("app:2")}, Faults: []Fault{Restarts, Restarts}},
		{Name: "kubelet step by step", Set: inPlace(1).Build, Interfere: 2, Slow: true, Wishes: []Wish{rollout("app:2"), rollout("app:1")}},
		{Name: "a Pod is evicted", Set: inPlace(2).Hooks(preDelete()).Build, Interfere: 1, Wishes: []Wish{rollout("app:2")}, Faults: []Fault{Evicted}},
		{Name: "somebody deletes a Pod", Set: inPlace(2).Hooks(finalizerHooks()).Build, Interfere: 1, Wishes: []Wish{rollout("app:2")}, Faults: []Fault{DeletedByHand}},
		{Name: "somebody orphans a Pod", Set: inPlace(1).Build, Interfere: 1, Wishes: []Wish{rollout("app:2")}, Faults: []Fault{Orphaned, Touched}},
		{Name: "stale caches in place", Set: inPlace(2).Hooks(LabelHooks()).Build, Interfere: 1, Stale: true, Wishes: []Wish{rollout("app:2")}},
		{Name: "stale caches, scale in and out", Set: Demo(2).Hooks(preDelete()).Build, Interfere: 1, Stale: true, Wishes: []Wish{replicasTo(1), replicasTo(2)}},
		{Name: "stale caches, recreate", Set: Demo(2).Unavailable(intstr.FromInt32(1)).Build, Interfere: 1, Stale: true, Wishes: []Wish{rollout("app:2")}},
	}
}
