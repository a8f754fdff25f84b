// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"flag"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/test/model"
)

var (
	deep   = flag.Bool("deep", false, "TestExplore visits the large models too, and TestMutantsAreFound all of its mutants")
	states = flag.Int("states", 1000000, "how many states TestExplore visits of each model at most")
)

// TestExplore visits every state of small worlds, for every order in which the
// controller, the kubelets, the hook operator and the user act, and for every point at
// which the controller can crash.
func TestExplore(t *testing.T) {
	worlds := smallModels()
	if *deep {
		worlds = append(worlds, largeModels()...)
	}
	for _, model := range worlds {
		t.Run(model.Name, func(t *testing.T) {
			t.Parallel()
			e := Explore(model, *states)
			t.Log(e)
			switch {
			case e.Violation != nil:
				t.Fail()
			case !e.Complete:
				t.Errorf("not all states were visited: make -states larger than %d", *states)
			case e.Goals == 0:
				t.Error("the set is nowhere at its goal: the model explores nothing")
			}
		})
	}
}

// found maps each mutant to a small model that finds it.
var found = []struct{ mutant, model string }{
	{"ignores the surge limit", "roll back, label hooks"},
	{"drops the drain", "roll back, label hooks"},
	{"advances the current revision early", "roll back, label hooks"},
	{"writes without preconditions", "roll back, label hooks"},
	{"ignores the inPlaceUpdate hook", "roll back, label hooks"},
	{"believes an update done at once", "roll back, label hooks"},
	{"leaves the gate open before a second update", "roll back, label hooks"},
	{"never leaves Updated", "roll back, label hooks"},
	{"never brings a drained Pod back", "lifecycle added mid-way"},
	{"never lifts the mark", "update two with marked hooks"},
	{"ignores maxUnavailable", "update two with marked hooks"},
	{"never wakes up by itself", "roll back with a grace period"},
	{"ignores the grace period", "roll back with a grace period"},
	{"ignores minReadySeconds", "minReadySeconds"},
	{"ignores the pause", "pause and go on"},
	{"ignores cordons", "a node is cordoned"},
	{"overruns the partition", "canary by partition"},
	{"makes every new Pod of the update revision", "scale out with a partition"},
	{"restores Pods without their hooks", "scale in and take it back"},
	{"never restores", "scale in and take it back"},
	{"deletes held Pods", "a Pod is labelled for deletion"},
	{"ignores the preDelete hook", "a Pod is labelled for deletion"},
	{"updates what is to be updated by hand", "OnDelete"},
	{"never cleans up", "a Pod is evicted"},
	{"never lets a deleted set go", "the set is deleted"},
	{"lets a deleted set go before its Pods", "the set is deleted while its Pod leaves a node"},
	{"creates Pods before the finalizer holds the set", "the set is deleted while it is created"},
	{"drains orphans", "the set is deleted, and its Pods shall stay"},
	{"forgets what it wrote", "stale caches, scale in and out"},
	{"goes to and fro", "roll back, label hooks"},
	{"acts on a change without an event", "somebody annotates a Pod"},
	{"acts on its own status", "metadata only"},
}

// graphMutants have bugs that only all states together can show.
func graphMutants() []mutant {
	return []mutant{
		{name: "goes to and fro", caught: []string{ruleEnds}, after: func(s *plan.Snapshot, p *plan.Plan) {
			label(s, p, func(pod *corev1.Pod) bool {
				return model.State(pod) == apps.StatePreparingUpdate && pod.Labels["hook/flag"] == ""
			})
		}},
		{name: "acts on its own status", caught: []string{ruleNothing}, before: func(p *Process, s *plan.Snapshot) {
			if p.pass.set.Status.ObservedGeneration > 0 {
				s.Spec.Replicas++
			}
		}},
		{name: "acts on a change without an event", caught: []string{ruleEvents}, after: func(s *plan.Snapshot, p *plan.Plan) {
			label(s, p, func(pod *corev1.Pod) bool { return pod.Annotations["other/note"] != "" })
		}},
	}
}

// label adds a label to Pods that need nothing else, or removes it.
func label(s *plan.Snapshot, p *plan.Plan, wanted func(*corev1.Pod) bool) {
	for _, pod := range s.Pods {
		taken := slices.ContainsFunc(p.Actions, func(a plan.Action) bool { return a.Pod == pod })
		_, has := pod.Labels["hook/flag"]
		if taken || pod.DeletionTimestamp != nil || wanted(pod) == has {
			continue
		}
		a := plan.Action{Verb: plan.Move, Reason: "Flag", Pod: pod, Labels: map[string]*string{"hook/flag": nil}}
		if yes := "yes"; wanted(pod) {
			a.Labels["hook/flag"] = &yes
		}
		p.Actions = append(p.Actions, a)
	}
}

// TestMutantsAreFound: an explorer that finds nothing proves something only if it finds
// known bugs.
func TestMutantsAreFound(t *testing.T) {
	all := append(mutants(), graphMutants()...)
	graph := []string{ruleStuck, ruleWakes}
	for _, f := range found {
		t.Run(f.mutant, func(t *testing.T) {
			t.Parallel()
			m := all[slices.IndexFunc(all, func(m mutant) bool { return m.name == f.mutant })]
			worlds := smallModels()
			model := worlds[slices.IndexFunc(worlds, func(w Model) bool { return w.Name == f.model })]
			model.Change = m.sabotage
			e := Explore(model, *states)
			t.Log(e)
			if e.Violation == nil || !slices.Contains(append(graph, m.caught...), e.Violation.Rule) {
				t.Errorf("the explorer misses it in %q", model.Name)
			}
		})
	}
}

// editSet is an edit that changes the CloneSet.
func editSet(what string, change func(*apps.CloneSet)) Edit { return Edit{What: what, Set: change} }

func rollout(image string) Edit { return editSet("rolls out "+image, Image(image)) }

// undone rolls back as a client does that merges the data of a revision into the set.
func undone(image string) Edit {
	return editSet("undoes the rollout", func(set *apps.CloneSet) {
		before := set.DeepCopy()
		Image(image)(before)
		if template, err := templateOf(before); err == nil {
			if data, err := revision.Data(template); err == nil {
				Undo(data)(set)
			}
		}
	})
}

func replicasTo(n int32) Edit { return editSet("scales", Replicas(n)) }

func partitionTo(n int) Edit { return editSet("moves the partition", Partition(n)) }

func pausedTo(paused bool) Edit {
	return editSet("pauses or goes on", func(set *apps.CloneSet) { set.Spec.UpdateStrategy.Paused = paused })
}

func typeTo(kind apps.UpdateStrategyType) Edit {
	return editSet("sets the type", func(set *apps.CloneSet) { set.Spec.UpdateStrategy.Type = kind })
}

func hooksTo(hooks *apps.Lifecycle) Edit {
	return editSet("changes the hooks", func(set *apps.CloneSet) { set.Spec.Lifecycle = hooks })
}

func recreates() Edit {
	return editSet("changes the environment", Retemplate(func(t *corev1.PodTemplateSpec) {
		t.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "VALUE", Value: "x"}}
	}))
}

func relabels() Edit {
	return editSet("changes a label of the template", Retemplate(func(t *corev1.PodTemplateSpec) { t.Labels["tier"] = "a" }))
}

func named() Edit {
	return Edit{What: "labels a Pod for deletion", Pod: func(pod *corev1.Pod) { pod.Labels[apps.LabelSpecifiedDelete] = "true" }}
}

func cordons(yes bool) Edit {
	return Edit{What: "cordons the node or uncordons it", Do: func(s *Simulation) { s.nodes.cordon(0, yes) }}
}

func deletes(how metav1.DeletionPropagation) Edit {
	return Edit{What: "deletes the set", Do: func(s *Simulation) { s.DeleteSet(how) }}
}

func listed(scale bool) Edit {
	return Edit{What: "lists a Pod for deletion", Named: func(set *apps.CloneSet, name string) {
		set.Spec.ScaleStrategy.PodsToDelete = []string{name}
		if scale {
			n := *set.Spec.Replicas - 1
			set.Spec.Replicas = &n
		}
	}}
}

func excludes() Edit {
	return editSet("leaves PreparingDelete out of the count", func(set *apps.CloneSet) {
		set.Labels = map[string]string{apps.LabelScalingExcludePreparingDelete: "true"}
	})
}

// markedHooks mark Pods not ready while they hold them.
func markedHooks() *apps.Lifecycle {
	hooks := LabelHooks()
	hooks.InPlaceUpdate.MarkPodNotReady, hooks.PreDelete.MarkPodNotReady = true, true
	return hooks
}

// finalizerHooks use one finalizer for both ways out of service.
func finalizerHooks() *apps.Lifecycle {
	hook := func() *apps.LifecycleHook { return &apps.LifecycleHook{FinalizersHandler: []string{"hook/registered"}} }
	return &apps.Lifecycle{InPlaceUpdate: hook(), PreDelete: hook()}
}

// oneLabelHooks use one label for being in service.
func oneLabelHooks() *apps.Lifecycle {
	hook := func() *apps.LifecycleHook {
		return &apps.LifecycleHook{LabelsHandler: map[string]string{"hook/online": "true"}}
	}
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

// smallModels are visited by every test run.
func smallModels() []Model {
	hooked := func(n int32) *Builder { return inPlace(n).Hooks(LabelHooks()) }
	forthAndBack := []Edit{rollout("app:2"), rollout("app:1")}
	return []Model{
		{Name: "roll back, label hooks", Set: hooked(1).Build, Interfere: unbounded, Edits: forthAndBack},
		{Name: "roll back, finalizer hooks", Set: inPlace(1).Hooks(finalizerHooks()).Build, Interfere: unbounded, Edits: forthAndBack},
		{Name: "undo", Set: hooked(1).Build, Interfere: 1, Edits: []Edit{rollout("app:2"), undone("app:1")}},
		{Name: "newer revision, one label for all", Set: inPlace(1).Hooks(oneLabelHooks()).Build, Interfere: unbounded,
			Edits: []Edit{rollout("app:2"), rollout("app:3")}},
		{Name: "update two with marked hooks", Set: inPlace(2).Hooks(markedHooks()).Build, Interfere: unbounded, Edits: []Edit{rollout("app:2")}},
		{Name: "lifecycle removed mid-way", Set: inPlace(1).Hooks(markedHooks()).Build, Interfere: unbounded, Lossy: true,
			Edits: []Edit{rollout("app:2"), hooksTo(nil)}},
		{Name: "lifecycle added mid-way", Set: inPlace(1).Build, Interfere: unbounded, Lossy: true,
			Edits: []Edit{rollout("app:2"), hooksTo(markedHooks())}},
		{Name: "roll back with a grace period", Set: inPlace(1).Grace(5).Build, Interfere: 1, Timed: true, Edits: forthAndBack},
		{Name: "minReadySeconds", Set: inPlace(2).MinReady(10).Build, Interfere: 1, Timed: true, Edits: []Edit{rollout("app:2")}},
		{Name: "pause and go on", Set: inPlace(1).Hooks(LabelHooks()).Build, Interfere: 1, Edits: []Edit{rollout("app:2"), pausedTo(true), pausedTo(false)}},
		{Name: "canary by partition", Set: inPlace(2).Partition(one).Build, Interfere: unbounded, Edits: []Edit{rollout("app:2"), partitionTo(0)}},
		{Name: "scale out with a partition", Set: Demo(1).Partition(two).Build, Interfere: 1, Edits: []Edit{rollout("app:2"), replicasTo(2)}},
		{Name: "recreate", Set: Demo(1).Unavailable(one).Build, Interfere: 1, Edits: []Edit{rollout("app:2")}},
		{Name: "recreate with surge", Set: surging(1).Build, Interfere: 1, Edits: []Edit{rollout("app:2")}},
		{Name: "recreate with surge, new names first, writes reversed", Set: surging(1).Build, Interfere: 1, NamesFirst: true, Reverse: true,
			Edits: []Edit{rollout("app:2")}},
		{Name: "metadata only", Set: hooked(2).Build, Interfere: unbounded, Edits: []Edit{relabels()}},
		{Name: "OnDelete", Set: Demo(2).Type(apps.UpdateOnDelete).Hooks(LabelHooks()).Build, Interfere: 1, Edits: []Edit{rollout("app:2"), named()}},
		{Name: "type changed mid-way", Set: hooked(1).Build, Interfere: 1, Edits: []Edit{rollout("app:2"), typeTo(apps.UpdateReCreate)}},
		{Name: "scale in and take it back", Set: hooked(2).Build, Interfere: unbounded, Edits: []Edit{replicasTo(1), replicasTo(2)}},
		{Name: "a Pod is labelled for deletion", Set: Demo(2).Unavailable(one).Hooks(preDelete()).Build, Interfere: 1, Edits: []Edit{named()}},
		{Name: "a node is cordoned", Set: surging(2).Hooks(preDelete()).Build, Interfere: 1, Edits: []Edit{cordons(true)}},
		{Name: "a node is cordoned and uncordoned", Set: Demo(1).Unavailable(one).Hooks(preDelete()).Build, Interfere: 1,
			Edits: []Edit{cordons(true), cordons(false)}},
		{Name: "the set is deleted", Set: Demo(2).Hooks(preDelete()).Build, Interfere: 1, Edits: []Edit{deletes(background)}},
		{Name: "the set is deleted while it is created", Set: Demo(1).Hooks(preDelete()).Build, Fresh: true, Interfere: 1,
			Edits: []Edit{deletes(background)}},
		{Name: "the set is deleted while its Pod leaves a node", Set: surging(1).Hooks(preDelete()).Build, Interfere: 1,
			Edits: []Edit{cordons(true), deletes(background)}},
		{Name: "the set is deleted, and its Pods shall stay", Set: hooked(1).Build, Interfere: 1,
			Edits: []Edit{deletes(background), deletes(metav1.DeletePropagationOrphan)}},
		{Name: "kubelet step by step", Set: inPlace(1).Build, Interfere: 1, Slow: true, Edits: []Edit{rollout("app:2"), rollout("app:1")}},
		{Name: "a Pod is evicted", Set: Demo(1).Hooks(preDelete()).Build, Interfere: 1, Faults: []Fault{Evicted}},
		{Name: "somebody annotates a Pod", Set: inPlace(1).Build, Interfere: 1, Edits: []Edit{rollout("app:2")}, Faults: []Fault{Touched}},
		{Name: "stale caches in place", Set: hooked(2).Build, Interfere: 1, Stale: true, Edits: []Edit{rollout("app:2")}},
		{Name: "stale caches, scale in and out", Set: Demo(2).Hooks(preDelete()).Build, Interfere: 1, Stale: true,
			Edits: []Edit{replicasTo(1), replicasTo(2)}},
	}
}

// largeModels are visited too if asked.
func largeModels() []Model {
	return slices.Concat(largeHookModels(), largeUpdateModels(), largeScaleModels(), largeFaultModels(), largeOrderModels())
}

func largeHookModels() []Model {
	forthAndBack := []Edit{rollout("app:2"), rollout("app:1")}
	return []Model{
		{Name: "create two with hooks", Set: inPlace(2).Hooks(LabelHooks()).Build, Fresh: true, Interfere: 2},
		{Name: "create three with hooks", Set: inPlace(3).Hooks(LabelHooks()).Build, Fresh: true, Interfere: 1},
		{Name: "roll back, marked hooks by label and finalizer", Set: inPlace(1).Hooks(bothHooks()).Build, Interfere: unbounded, Edits: forthAndBack},
		{Name: "roll back and forth, marked hooks", Set: inPlace(1).Hooks(markedHooks()).Build, Interfere: unbounded,
			Edits: []Edit{rollout("app:2"), rollout("app:1"), rollout("app:2")}},
		{Name: "roll back two at once", Set: inPlace(2).Unavailable(two).Hooks(LabelHooks()).Build, Interfere: 1, Edits: forthAndBack},
		{Name: "update three, two at once", Set: inPlace(3).Unavailable(two).Hooks(LabelHooks()).Build, Interfere: 1, Edits: []Edit{rollout("app:2")}},
		{Name: "hooks exchanged mid-way", Set: inPlace(1).Hooks(bothHooks()).Build, Interfere: unbounded, Lossy: true,
			Edits: []Edit{rollout("app:2"), hooksTo(finalizerHooks()), rollout("app:1")}},
		{Name: "hooks removed from two mid-way", Set: inPlace(2).Unavailable(two).Hooks(bothHooks()).Build, Interfere: 1, Lossy: true,
			Edits: []Edit{rollout("app:2"), hooksTo(nil), replicasTo(1)}},
	}
}

func largeUpdateModels() []Model {
	hooked := func(n int32) *Builder { return inPlace(n).Hooks(LabelHooks()) }
	forthAndBack := []Edit{rollout("app:2"), rollout("app:1")}
	return []Model{
		{Name: "in place, three at once", Set: inPlace(3).Unavailable(intstr.FromInt32(3)).Build, Interfere: 1, Edits: []Edit{rollout("app:2")}},
		{Name: "roll back with a grace period, anything during a pass", Set: inPlace(1).Grace(5).Build, Interfere: unbounded, Timed: true, Edits: forthAndBack},
		{Name: "newer revision with a grace period and hooks", Set: hooked(1).Grace(5).Build, Interfere: unbounded, Timed: true,
			Edits: []Edit{rollout("app:2"), rollout("app:3")}},
		{Name: "two at once with a grace period", Set: inPlace(2).Unavailable(two).Grace(5).Build, Interfere: 1, Timed: true, Edits: []Edit{rollout("app:2")}},
		{Name: "minReadySeconds of three", Set: inPlace(3).MinReady(10).Build, Interfere: 1, Timed: true, Edits: forthAndBack},
		{Name: "pause two and go on", Set: hooked(2).Build, Interfere: 2, Edits: []Edit{rollout("app:2"), pausedTo(true), pausedTo(false)}},
		{Name: "partition moved back", Set: hooked(2).Build, Interfere: 2, Edits: []Edit{rollout("app:2"), partitionTo(1)}},
		{Name: "partition moved and replicas with it", Set: inPlace(2).Partition(one).Build, Interfere: 1,
			Edits: []Edit{rollout("app:2"), replicasTo(3), partitionTo(0)}},
		{Name: "recreate two", Set: Demo(2).Unavailable(one).Build, Interfere: unbounded, Edits: []Edit{rollout("app:2")}},
		{Name: "recreate two with surge", Set: surging(2).Build, Interfere: 2, Edits: []Edit{rollout("app:2")}},
		{Name: "recreate with surge and roll back", Set: surging(1).Hooks(preDelete()).Build, Interfere: 1, Edits: forthAndBack},
		{Name: "recreate with a preDelete hook and roll back", Set: Demo(1).Unavailable(one).Hooks(preDelete()).Build, Interfere: unbounded, Edits: forthAndBack},
		{Name: "in place with surge", Set: surging(2).Type(apps.UpdateInPlaceIfPossible).Hooks(LabelHooks()).Build, Interfere: 1, Edits: []Edit{rollout("app:2")}},
		{Name: "not possible in place", Set: hooked(1).Build, Interfere: unbounded, Edits: []Edit{recreates(), rollout("app:2")}},
	}
}

func largeScaleModels() []Model {
	hooked := func(n int32) *Builder { return inPlace(n).Hooks(LabelHooks()) }
	return []Model{
		{Name: "scale in and take it back, marked", Set: inPlace(1).Hooks(bothHooks()).Build, Interfere: unbounded, Edits: []Edit{replicasTo(0), replicasTo(1)}},
		{Name: "scale three in and take it back", Set: hooked(3).Build, Interfere: 1, Edits: []Edit{replicasTo(1), replicasTo(3)}},
		{Name: "scale in during an update", Set: hooked(2).Build, Interfere: 2, Edits: []Edit{rollout("app:2"), replicasTo(1)}},
		{Name: "scale in and out during an update", Set: hooked(2).Build, Interfere: 1, Edits: []Edit{rollout("app:2"), replicasTo(1), replicasTo(2)}},
		{Name: "scale out during an update", Set: inPlace(1).Build, Interfere: 2, Edits: []Edit{rollout("app:2"), replicasTo(2)}},
		{Name: "a Pod is listed for deletion", Set: Demo(2).Unavailable(one).Build, Interfere: 2, Edits: []Edit{listed(false)}},
		{Name: "a Pod is listed and the set scaled", Set: Demo(2).Unavailable(one).Hooks(preDelete()).Build, Interfere: 1, Edits: []Edit{listed(true)}},
		{Name: "a Pod is labelled for deletion during an update", Set: hooked(2).Build, Interfere: 1, Edits: []Edit{rollout("app:2"), named()}},
		{Name: "a node is cordoned during an update, and uncordoned", Set: hooked(1).Build, Interfere: 1,
			Edits: []Edit{rollout("app:2"), cordons(true), cordons(false)}},
		{Name: "the set is deleted during an update, and loses its hooks", Set: hooked(2).Build, Interfere: 1, Lossy: true,
			Edits: []Edit{rollout("app:2"), deletes(background), hooksTo(nil)}},
		{Name: "the set is deleted in the foreground", Set: hooked(2).Build, Interfere: 1, Edits: []Edit{deletes(metav1.DeletePropagationForeground)}},
		{Name: "PreparingDelete left out of the count", Set: Demo(1).Unavailable(one).Hooks(preDelete()).Build, Interfere: 1,
			Edits: []Edit{excludes(), named(), replicasTo(0), replicasTo(1)}},
	}
}

func largeFaultModels() []Model {
	hooked := func(n int32) *Builder { return inPlace(n).Hooks(LabelHooks()) }
	update := []Edit{rollout("app:2")}
	return []Model{
		{Name: "containers end", Set: hooked(1).Build, Interfere: unbounded, Edits: update, Faults: []Fault{Restarts, Restarts}},
		{Name: "kubelet step by step, with hooks", Set: hooked(1).Build, Interfere: 2, Slow: true, Edits: []Edit{rollout("app:2"), rollout("app:1")}},
		{Name: "kubelet step by step, and containers end", Set: inPlace(1).Build, Interfere: 2, Slow: true,
			Edits: []Edit{rollout("app:2"), rollout("app:1")}, Faults: []Fault{Restarts}},
		{Name: "a Pod is evicted during an update", Set: inPlace(1).Hooks(preDelete()).Build, Interfere: 1, Edits: update, Faults: []Fault{Evicted}},
		{Name: "one of two Pods is evicted", Set: inPlace(2).Hooks(preDelete()).Build, Interfere: 1, Edits: update, Faults: []Fault{Evicted}},
		{Name: "somebody deletes a Pod", Set: inPlace(1).Hooks(finalizerHooks()).Build, Interfere: 1, Edits: update, Faults: []Fault{DeletedByHand}},
		{Name: "somebody deletes one of two Pods", Set: inPlace(2).Build, Interfere: 1, Edits: update, Faults: []Fault{DeletedByHand}},
		{Name: "somebody orphans a Pod", Set: inPlace(1).Build, Interfere: 1, Edits: update, Faults: []Fault{Orphaned}},
		{Name: "stale caches, three in place", Set: inPlace(3).Unavailable(two).Build, Interfere: 1, Stale: true, Edits: update},
		{Name: "stale caches, recreate", Set: Demo(2).Unavailable(one).Build, Interfere: 1, Stale: true, Edits: update},
		{Name: "stale caches, roll back", Set: hooked(1).Build, Interfere: 2, Stale: true, Edits: []Edit{rollout("app:2"), rollout("app:1")}},
	}
}

// largeOrderModels are models in which names sort, or writes follow, in the other
// order.
func largeOrderModels() []Model {
	hooked := func(n int32) *Builder { return inPlace(n).Hooks(LabelHooks()) }
	return []Model{
		{Name: "new names first, recreate two with surge", Set: surging(2).Build, Interfere: 1, NamesFirst: true, Edits: []Edit{rollout("app:2")}},
		{Name: "new names first, scale out and in during an update", Set: inPlace(1).Build, Interfere: 1, NamesFirst: true,
			Edits: []Edit{rollout("app:2"), replicasTo(2), replicasTo(1)}},
		{Name: "new names first, a Pod is listed for deletion", Set: Demo(2).Unavailable(one).Build, Interfere: 1, NamesFirst: true,
			Edits: []Edit{listed(false), replicasTo(1)}},
		{Name: "writes reversed, update two at once", Set: hooked(3).Unavailable(two).Build, Interfere: 1, Reverse: true, Edits: []Edit{rollout("app:2")}},
		{Name: "writes reversed, partition moved and replicas with it", Set: inPlace(2).Partition(one).Build, Interfere: 1, Reverse: true,
			Edits: []Edit{rollout("app:2"), replicasTo(3), partitionTo(0)}},
		{Name: "writes reversed, scale three in and take it back", Set: hooked(3).Build, Interfere: 1, Reverse: true,
			Edits: []Edit{replicasTo(1), replicasTo(3)}},
		{Name: "writes reversed, recreate two with surge", Set: surging(2).Build, Interfere: 1, Reverse: true, Edits: []Edit{rollout("app:2")}},
	}
}

var two = intstr.FromInt32(2)

const background = metav1.DeletePropagationBackground
