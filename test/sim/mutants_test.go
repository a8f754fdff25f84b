// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/test/model"
)

// mutant is a controller with one bug. A simulator that lets one of them pass proves
// nothing about the real one.
type mutant struct {
	name string
	// before changes what the planner sees; after changes what it decided.
	before func(*Process, *plan.Snapshot)
	after  func(*plan.Snapshot, *plan.Plan)
	// change breaks the process in another way.
	change func(*Config)
	// caught lists rules; at least one of them must catch it.
	caught []string
}

const (
	ruleDrain       = "no drain is skipped"
	ruleHooks       = "a Pod comes back with its hooks"
	ruleDone        = "an update is done when the kubelet says so"
	ruleGate        = "a gate opens only when its hook says so"
	ruleUnavailable = "no more unavailable by our doing than allowed"
	ruleAtOnce      = "unavailable Pods are not all updated or deleted at once"
	rulePods        = "never more Pods than replicas and surge"
	rulePartition   = "the partition is never overrun"
	ruleNewPods     = "new Pods keep to the partition"
	ruleCurrent     = "the current revision does not advance early"
	ruleConverges   = "it converges"
	ruleSettles     = "it settles"
	ruleLeaving     = "no Pod in PreparingDelete or on its way out is updated"
	ruleMoves       = "states follow the table"
	rulePaused      = "nothing is updated that the strategy leaves alone"
	ruleSpins       = "it does not spin"
	ruleOrder       = "containers are updated by their priority"
	ruleClaimFirst  = "no claim goes while its Pod stays"
	ruleClaimLost   = "claims outlive a Pod that others deleted"
	ruleClaimsLeft  = "claims that wait are used first"
	ruleWithClaims  = "a Pod is made after its claims"
	ruleNamed       = "no Pod is named for deletion for nothing"
)

func mutants() []mutant {
	return slices.Concat(planMutants(), snapshotMutants(), containerMutants(), claimMutants(), deletionMutants())
}

// snapshotMutants misread the world.
func snapshotMutants() []mutant {
	return []mutant{
		{name: "ignores maxUnavailable", caught: []string{ruleUnavailable},
			before: func(_ *Process, s *plan.Snapshot) { s.Spec.MaxUnavailable = plan.Count{Value: 100, Percent: true} }},
		{name: "ignores the surge limit", caught: []string{rulePods},
			before: func(_ *Process, s *plan.Snapshot) { s.Spec.MaxSurge = plan.Count{Value: 5} }},
		{name: "overruns the partition", caught: []string{rulePartition, ruleNewPods},
			before: func(_ *Process, s *plan.Snapshot) { s.Spec.Partition = plan.Count{} }},
		{name: "forgets what it wrote", caught: []string{rulePods, ruleUnavailable, rulePartition},
			before: forgetWrites},
		{name: "ignores the grace period", caught: []string{ruleDrain},
			before: func(_ *Process, s *plan.Snapshot) { s.Spec.Grace = 0 }},
		{name: "ignores the inPlaceUpdate hook", caught: []string{ruleHeldUpdate, ruleMoves, ruleGate},
			before: func(_ *Process, s *plan.Snapshot) { s.Spec.Hooks.InPlaceUpdate = lifecycle.Hook{} }},
		{name: "ignores the preNormal hook", caught: []string{ruleGate},
			before: func(_ *Process, s *plan.Snapshot) { s.Spec.Hooks.PreNormal = lifecycle.Hook{} }},
		{name: "ignores the preDelete hook", caught: []string{ruleHeldDelete},
			before: func(_ *Process, s *plan.Snapshot) { s.Spec.Hooks.PreDelete = lifecycle.Hook{} }},
		{name: "ignores cordons", caught: []string{ruleConverges},
			before: func(_ *Process, s *plan.Snapshot) { s.GoingNodes = nil }},
		{name: "takes a node for cordoned that is not", caught: []string{ruleNamed},
			before: func(_ *Process, s *plan.Snapshot) { s.GoingNodes = cordonedNode() }},
		{name: "ignores the pause", caught: []string{rulePaused},
			before: func(_ *Process, s *plan.Snapshot) { s.Spec.Paused = false }},
		{name: "updates what is to be updated by hand", caught: []string{rulePaused},
			before: func(_ *Process, s *plan.Snapshot) {
				if s.Spec.Method == plan.OnDelete {
					s.Spec.Method = plan.InPlaceIfPossible
				}
			}},
		{name: "ignores minReadySeconds", caught: []string{ruleUnavailable, ruleConverges},
			before: func(_ *Process, s *plan.Snapshot) { s.Spec.MinReady = 0 }},
		{name: "makes every new Pod of the update revision", caught: []string{ruleNewPods},
			before: func(_ *Process, s *plan.Snapshot) { s.Current = s.Update }},
		{name: "advances the current revision early", caught: []string{ruleCurrent},
			after: func(s *plan.Snapshot, _ *plan.Plan) {
				s.Pods = slices.DeleteFunc(slices.Clone(s.Pods), func(pod *corev1.Pod) bool { return !of(pod, s.Update.Name) })
				s.Spec.Replicas = len(s.Pods)
			}},
		{name: "makes revisions that are there", caught: []string{ruleRevisions}, before: oneMoreRevision},
		{name: "writes without preconditions", caught: []string{ruleHeldUpdate, ruleHeldDelete, ruleDrain, ruleUnavailable, ruleGate, ruleDone, ruleMoves, ruleLeaving},
			change: func(c *Config) { c.Process.Careless = true }},
	}
}

// oneMoreRevision makes another revision of the template in each pass.
func oneMoreRevision(p *Process, s *plan.Snapshot) {
	set := p.pass.set
	data, err := revision.Data(s.Update.Template)
	if err != nil {
		return
	}
	again := &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: set.Namespace, Name: fmt.Sprintf("%s-v%d", set.Name, versionOf(set)),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, apps.KindCloneSet)},
		},
		Data: runtime.RawExtension{Raw: data},
	}
	_ = p.reconciler.Client.Create(context.Background(), again) // a fault does not matter
}

func forgetWrites(p *Process, s *plan.Snapshot) {
	s.Pods = nil
	for _, object := range model.Sorted(p.pass.base) {
		if pod, ok := object.(*corev1.Pod); ok && model.OwnerOf(pod) == string(p.pass.set.UID) {
			s.Pods = append(s.Pods, pod)
		}
	}
}

// eachAction lets a function change or drop every action.
func eachAction(change func(*plan.Action) bool) func(*plan.Snapshot, *plan.Plan) {
	return func(_ *plan.Snapshot, p *plan.Plan) {
		var kept []plan.Action
		for _, a := range p.Actions {
			if change(&a) {
				kept = append(kept, a)
			}
		}
		p.Actions = kept
	}
}

func without(kind corev1.PodConditionType, status corev1.ConditionStatus) func(*plan.Action) bool {
	return func(a *plan.Action) bool {
		a.Conditions = slices.DeleteFunc(slices.Clone(a.Conditions), func(c plan.Condition) bool { return c.Type == kind && c.Status == status })
		return true
	}
}

// cordonedNode is the first node, cordoned.
func cordonedNode() map[string][]corev1.Taint {
	node := &corev1.Node{Spec: corev1.NodeSpec{Unschedulable: true}}
	return map[string][]corev1.Taint{nodeName(0): plan.LeaveCordoned.Taints(node)}
}

// planMutants decide wrongly.
func planMutants() []mutant {
	careless := func(c *Config) { c.Process.Careless = true }
	return []mutant{
		{name: "drops the drain", change: careless, caught: []string{ruleDrain},
			after: eachAction(without(apps.ConditionInPlaceUpdateReady, corev1.ConditionFalse))},
		{name: "never brings a drained Pod back", caught: []string{ruleConverges, ruleDone, ruleSettles},
			after: eachAction(func(a *plan.Action) bool {
				return a.Verb == plan.Create || without(apps.ConditionInPlaceUpdateReady, corev1.ConditionTrue)(a)
			})},
		{name: "never lifts the mark", caught: []string{ruleConverges, ruleSettles},
			after: eachAction(without(apps.ConditionPodReady, corev1.ConditionTrue))},
		{name: "deletes held Pods", caught: []string{ruleHeldDelete},
			after: eachAction(func(a *plan.Action) bool {
				if a.To == apps.StatePreparingDelete {
					*a = plan.Action{Verb: plan.Delete, Reason: a.Reason, Pod: a.Pod}
				}
				return true
			})},
		{name: "restores Pods without their hooks", caught: []string{ruleHooks},
			after: eachAction(func(a *plan.Action) bool {
				if a.Reason == plan.ReasonScaleInCancelled {
					a.Labels, a.AddFinalizers, a.RemoveFinalizers = nil, nil, nil
				}
				return true
			})},
		{name: "leaves the gate open before a second update", caught: []string{ruleHooks},
			after: eachAction(func(a *plan.Action) bool {
				if a.To == apps.StatePreparingUpdate {
					a.Labels, a.AddFinalizers = nil, nil
				}
				return true
			})},
		{name: "never leaves Updated", caught: []string{ruleConverges},
			after: eachAction(func(a *plan.Action) bool { return a.Pod == nil || model.State(a.Pod) != apps.StateUpdated })},
		{name: "never cleans up", caught: []string{ruleConverges},
			after: eachAction(func(a *plan.Action) bool { return a.Reason != plan.ReasonCleanUp })},
		{name: "never restores", caught: []string{ruleConverges, ruleSettles, rulePods},
			after: eachAction(func(a *plan.Action) bool { return a.Reason != plan.ReasonScaleInCancelled })},
		{name: "never wakes up by itself", caught: []string{ruleConverges},
			after: func(_ *plan.Snapshot, p *plan.Plan) { p.RequeueAt = time.Time{} }},
		{name: "believes an update done at once", caught: []string{ruleDone},
			after: finishAll},
		{name: "replaces all that is not ready at once", caught: []string{ruleAtOnce, ruleHeldDelete, rulePaused, rulePartition},
			after: replaceUnready},
		{name: "always has something to write", caught: []string{ruleSpins},
			after: func(_ *plan.Snapshot, p *plan.Plan) { p.More = true }},
	}
}

// finishAll takes every Pod out of Updating.
func finishAll(s *plan.Snapshot, p *plan.Plan) {
	for _, pod := range s.Pods {
		taken := slices.ContainsFunc(p.Actions, func(a plan.Action) bool { return a.Pod == pod })
		if !taken && model.State(pod) == apps.StateUpdating && pod.DeletionTimestamp == nil {
			p.Actions = append(p.Actions, plan.Action{
				Verb: plan.Move, Reason: lifecycle.ReasonUpdateDone, Pod: pod, To: apps.StateUpdated,
				Conditions: []plan.Condition{{Type: apps.ConditionInPlaceUpdateReady, Status: corev1.ConditionTrue}},
			})
		}
	}
}

// replaceUnready deletes every old Pod that is not ready.
func replaceUnready(s *plan.Snapshot, p *plan.Plan) {
	for _, pod := range s.Pods {
		ready := model.Condition(pod, corev1.PodReady).Status == corev1.ConditionTrue
		if !ready && model.Active(pod) && !of(pod, s.Update.Name) {
			p.Actions = slices.DeleteFunc(p.Actions, func(a plan.Action) bool { return a.Pod == pod })
			p.Actions = append(p.Actions, plan.Action{Verb: plan.Delete, Reason: plan.ReasonRecreate, Pod: pod})
		}
	}
}

func (m mutant) sabotage(c *Config) {
	c.Process.Planner = func(p *Process, s *plan.Snapshot) plan.Plan {
		if m.before != nil {
			m.before(p, s)
		}
		decided := plan.Make(s)
		if m.after != nil {
			m.after(s, &decided)
		}
		return decided
	}
	if m.change != nil {
		m.change(c)
	}
}

// mutantSeeds is the number of schedules within which every mutant must be caught.
const mutantSeeds = 1500

func TestMutantsAreCaught(t *testing.T) {
	for _, m := range mutants() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			found := map[string]int{}
			for seed := uint64(1); seed <= mutantSeeds; seed++ {
				v := Random(seed, m.sabotage).Run()
				if v == nil {
					continue
				}
				found[v.Rule]++
				if slices.Contains(m.caught, v.Rule) {
					t.Logf("seed %d: %v", seed, v)
					return
				}
			}
			t.Errorf("not caught in %d schedules; other rules that it broke: %s", mutantSeeds, fmt.Sprint(slices.Sorted(maps.Keys(found))))
		})
	}
}

// containerMutants break the steps between the writes of one update.
func containerMutants() []mutant {
	careless := func(c *Config) { c.Process.Careless = true }
	return []mutant{
		{name: "believes a resize done at once", change: careless, caught: []string{ruleDone},
			before: eachRecord(func(record map[string]any) { delete(record, "containerResources") })},
		{name: "never resizes", caught: []string{ruleConverges, ruleSettles},
			after: eachAction(func(a *plan.Action) bool { return a.Reason != plan.ReasonResize && !resizes(a) })},
		{name: "resizes what is in service", change: careless, caught: []string{ruleDrain},
			after: eachAction(func(a *plan.Action) bool {
				if resizes(a) {
					a.Conditions = nil
				}
				return true
			})},
		{name: "does not wait for the first containers", change: careless, caught: []string{ruleOrder},
			before: eachRecord(func(record map[string]any) { record["preCheckBeforeNext"] = map[string]any{} })},
		{name: "never comes to the next containers", caught: []string{ruleConverges, ruleSettles},
			after: eachAction(func(a *plan.Action) bool { return a.Reason != plan.ReasonNextContainers })},
		{name: "forgets the next containers", change: careless, caught: []string{ruleDone, ruleConverges},
			before: eachRecord(func(record map[string]any) { delete(record, "nextContainerImages") })},
	}
}

func resizes(a *plan.Action) bool { return a.Change != nil && len(a.Change.Resources) > 0 }

// eachRecord changes the record of every Pod that the planner sees.
func eachRecord(change func(map[string]any)) func(*Process, *plan.Snapshot) {
	return func(_ *Process, s *plan.Snapshot) {
		pods := make([]*corev1.Pod, 0, len(s.Pods))
		for _, pod := range s.Pods {
			var record map[string]any
			if json.Unmarshal([]byte(pod.Annotations[apps.AnnotationInPlaceUpdateState]), &record) == nil {
				change(record)
				if data, err := json.Marshal(record); err == nil {
					pod = pod.DeepCopy()
					pod.Annotations[apps.AnnotationInPlaceUpdateState] = string(data)
				}
			}
			pods = append(pods, pod)
		}
		s.Pods = pods
	}
}

// claimMutants handle claims wrongly.
func claimMutants() []mutant {
	return []mutant{
		{name: "deletes claims before their Pod", caught: []string{ruleClaimFirst},
			change: func(c *Config) { c.Process.Planner = claimsFirst }},
		{name: "leaves claims that wait", caught: []string{ruleClaimsLeft},
			after: eachAction(func(a *plan.Action) bool {
				if a.Verb == plan.Create {
					a.Instance = ""
				}
				return true
			})},
		{name: "deletes the claims of Pods that failed", caught: []string{ruleClaimLost},
			after: func(s *plan.Snapshot, p *plan.Plan) {
				for i := range p.Actions {
					if a := &p.Actions[i]; a.Reason == plan.ReasonCleanUp && a.Verb == plan.Delete {
						a.Claims = held(s, a.Pod.Name)
					}
				}
			}},
		{name: "takes every claim that no Pod has for unwanted", caught: []string{ruleClaimLost},
			before: func(_ *Process, s *plan.Snapshot) { s.Spec.DisableClaimReuse = true }},
		{name: "forgets the claims of deleted Pods", caught: []string{ruleConverges},
			after: eachAction(func(a *plan.Action) bool {
				a.Claims = nil
				return a.Verb != plan.Discard
			})},
		{name: "never makes a claim that was lost", caught: []string{ruleSettles},
			after: eachAction(func(a *plan.Action) bool { return a.Verb != plan.Provide })},
	}
}

// claimsFirst deletes the claims of a Pod before the Pod.
func claimsFirst(p *Process, s *plan.Snapshot) plan.Plan {
	decided := plan.Make(s)
	for i := range decided.Actions {
		if a := &decided.Actions[i]; a.Verb == plan.Delete {
			for _, claim := range a.Claims {
				_ = p.server.Delete(p.name, model.Claims, client.ObjectKeyFromObject(claim), model.Deletion{})
			}
		}
	}
	return decided
}

// held lists the claims that carry the instance ID of a Pod.
func held(s *plan.Snapshot, pod string) []*corev1.PersistentVolumeClaim {
	var out []*corev1.PersistentVolumeClaim
	for _, claim := range s.Claims {
		if s.Set+"-"+claim.Labels[apps.LabelInstanceID] == pod && claim.DeletionTimestamp == nil {
			out = append(out, claim)
		}
	}
	return out
}

// deletionMutants part with the Pods of a deleted set in the wrong way.
func deletionMutants() []mutant {
	return []mutant{
		{name: "never lets a deleted set go", caught: []string{ruleConverges},
			before: func(_ *Process, s *plan.Snapshot) {
				if s.Deletion == plan.Drain {
					s.Deletion = plan.LetGo
				}
			}},
		{name: "lets a deleted set go before its Pods", caught: []string{ruleCollected},
			before: func(p *Process, s *plan.Snapshot) {
				if s.Deletion == plan.Drain {
					removeFinalizers(p)
				}
			}},
		{name: "drains orphans", caught: []string{ruleDeletedSet},
			before: func(_ *Process, s *plan.Snapshot) {
				if s.Deletion == plan.LetGo {
					s.Deletion = plan.Drain
				}
			}},
		{name: "creates Pods before the finalizer holds the set", caught: []string{ruleHeldSet},
			before: func(p *Process, s *plan.Snapshot) {
				if s.Deletion == plan.NotDeleted {
					removeFinalizers(p)
				}
			}},
	}
}

// removeFinalizers takes all finalizers off the set.
func removeFinalizers(p *Process) {
	set := &apps.CloneSet{ObjectMeta: metav1.ObjectMeta{Namespace: p.pass.set.Namespace, Name: p.pass.set.Name}}
	_ = p.reconciler.Client.Patch(context.Background(), set, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))) // a fault does not matter
}
