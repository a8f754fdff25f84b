// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/test/model"
)

// claimRules must hold whenever the controller writes to a claim.
var claimRules = []struct {
	name string
	find func(*Simulation, *Process, *claimWrite) string
}{
	{"no claim of another owner is touched", foreignClaim},
	{"no claim goes while its Pod stays", claimFirst},
	{"claims outlive a Pod that others deleted", claimLost},
}

// claimWrite is one write of a controller process to a claim.
type claimWrite struct {
	set      *apps.CloneSet
	old, new *corev1.PersistentVolumeClaim
	id       string
}

func (s *Simulation) judgeClaim(p *Process, c *model.Commit) {
	w := &claimWrite{set: p.pass.set, id: c.Object().GetLabels()[apps.LabelInstanceID]}
	w.old, _ = c.Old.(*corev1.PersistentVolumeClaim)
	w.new, _ = c.New.(*corev1.PersistentVolumeClaim)
	for _, r := range claimRules {
		if what := r.find(s, p, w); what != "" {
			s.World.fail(r.name, "%s", what)
			return
		}
	}
}

func (w *claimWrite) deletes() bool {
	return w.old != nil && w.old.DeletionTimestamp == nil && (w.new == nil || w.new.DeletionTimestamp != nil)
}

func foreignClaim(_ *Simulation, p *Process, w *claimWrite) string {
	if w.old == nil || model.OwnerOf(w.old) == string(w.set.UID) {
		return ""
	}
	used := p.known(w.set, nil).count(func(pod *corev1.Pod) bool { return pod.Name == w.set.Name+"-"+w.id }) > 0
	if model.OwnerOf(w.old) == model.Orphan && w.new != nil && model.OwnerOf(w.new) == string(w.set.UID) && used {
		return "" // it is adopted together with its Pod
	}
	return fmt.Sprintf("claim %s belongs to %s", w.old.Name, model.OwnerOf(w.old))
}

// claimFirst also applies if another process has created the Pod in the meantime. A
// process that deletes a Pod and then its claims cannot know of the next Pod, but finds
// its mark.
func claimFirst(s *Simulation, _ *Process, w *claimWrite) string {
	if !w.deletes() {
		return ""
	}
	if pod := usedBy(s.Server, w.old.Name, model.Active); pod != nil {
		return fmt.Sprintf("claim %s is deleted, and Pod %s stays", w.old.Name, pod.Name)
	}
	return ""
}

// claimLost: a Pod keeps its claims unless the controller wanted the Pod deleted or the
// user disabled reuse.
func claimLost(s *Simulation, p *Process, w *claimWrite) string {
	if !w.deletes() || s.reuseDisabled || p.rivals() {
		return ""
	}
	end := s.endOf(w.set.Name + "-" + w.id)
	if end == nil {
		return "" // there was no Pod: its name was taken
	}
	pod := s.latest(end.Old.GetUID())
	asked := slices.ContainsFunc(s.processes, func(p *Process) bool { return p.deleted[pod.UID] })
	wanted := s.namedAtEnd(end) || slices.Contains(s.listed, pod.Name)
	if ended := pod.Status.Phase == corev1.PodFailed; !ended {
		wanted = wanted || asked || model.State(pod) == apps.StatePreparingDelete
	}
	if !wanted {
		return fmt.Sprintf("claim %s is deleted, and Pod %s was deleted by %s in phase %s", w.old.Name, pod.Name, end.Actor, pod.Status.Phase)
	}
	return ""
}

// endOf finds the commit that deleted the latest Pod of a name.
func (s *Simulation) endOf(name string) *model.Commit {
	log := s.Server.Log[model.Pods]
	for i := len(log) - 1; i >= 0; i-- {
		c := log[i]
		if c.Object().GetName() == name && c.Deletes() {
			return c
		}
	}
	return nil
}

// namedAtEnd reports whether a Pod was named for deletion when it was deleted, or at
// some time while it terminated: the controller may have acted before it learned that
// the user took the name back.
func (s *Simulation) namedAtEnd(end *model.Commit) bool {
	log := s.Server.Log[model.Pods]
	return slices.ContainsFunc(log[slices.Index(log, end):], func(c *model.Commit) bool {
		return c.Object().GetUID() == end.Old.GetUID() && c.Object().GetLabels()[apps.LabelSpecifiedDelete] == "true"
	})
}

// latest is the last version of a Pod before it was removed.
func (s *Simulation) latest(uid types.UID) *corev1.Pod {
	var last *corev1.Pod
	for _, c := range s.Server.Log[model.Pods] {
		if pod, ok := c.Object().(*corev1.Pod); ok && pod.UID == uid {
			last = pod
		}
	}
	return last
}

// withoutClaims: a Pod is created after its claims, and mounts them.
func withoutClaims(w *podWrite) string {
	if w.old != nil || w.process.rivals() {
		return ""
	}
	id := strings.TrimPrefix(w.new.Name, w.set.Name+"-")
	for _, template := range templateNames(w.set) {
		name := template + "-" + w.set.Name + "-" + id
		if !slices.Contains(claimsOf(w.new), name) {
			return fmt.Sprintf("Pod %s does not mount %s", w.new.Name, name)
		}
		object, err := w.process.server.Get(model.Claims, key(w.new.Namespace, name))
		if (err != nil || model.OwnerOf(object) != string(w.set.UID)) && !wroteClaim(w.process.server, name) {
			return fmt.Sprintf("Pod %s is created without its claim %s", w.new.Name, name)
		}
	}
	return ""
}

// wroteClaim reports whether the user has changed a claim of that name.
func wroteClaim(s *model.Server, name string) bool {
	return slices.ContainsFunc(s.Log[model.Claims], func(c *model.Commit) bool { return c.Actor == "user" && c.Object().GetName() == name })
}

// claimsLeft: new claims are created only if none wait for a Pod.
func claimsLeft(w *podWrite) string {
	s := w.process.pass.snapshot
	if w.old != nil || s == nil || s.Spec.DisableClaimReuse || len(s.Spec.ClaimTemplates) == 0 {
		return ""
	}
	actions := w.process.pass.plan.Actions
	fresh := slices.ContainsFunc(actions, func(a plan.Action) bool { return a.Verb == plan.Create && a.Instance == "" })
	for _, claim := range s.Claims {
		id := claim.Labels[apps.LabelInstanceID]
		used := slices.ContainsFunc(actions, func(a plan.Action) bool { return a.Verb == plan.Create && a.Instance == id })
		if fresh && !used && waits(s, claim, id) {
			return fmt.Sprintf("Pod %s is created with new claims while %s waits for a Pod", w.new.Name, claim.Name)
		}
	}
	return ""
}

// waits reports whether the planner could see a claim waiting for a Pod.
func waits(s *plan.Snapshot, claim *corev1.PersistentVolumeClaim, id string) bool {
	going := slices.ContainsFunc(s.Claims, func(c *corev1.PersistentVolumeClaim) bool {
		return c.Labels[apps.LabelInstanceID] == id && c.DeletionTimestamp != nil
	})
	held := slices.ContainsFunc(s.Pods, func(pod *corev1.Pod) bool { return pod.Name == s.Set+"-"+id })
	template := strings.TrimSuffix(claim.Name, "-"+s.Set+"-"+id)
	return !going && !held && !s.DeletedInstances[id] && !s.ReleasedInstances[id] && slices.Contains(s.Spec.ClaimTemplates, template)
}

// rivals reports whether another process has written something this one cannot know
// yet.
func (p *Process) rivals() bool {
	others := func(c *model.Commit) bool { return c.Actor != p.name && isProcess(c.Actor) }
	return slices.ContainsFunc(p.server.Log[model.Pods][p.pass.upTo:], others) ||
		slices.ContainsFunc(p.server.Log[model.Claims][p.pass.claimsUpTo:], others)
}

// missingClaims describes what is wrong with the claims once it has settled.
func (s *Simulation) missingClaims(set *apps.CloneSet) string {
	for _, pod := range s.Pods() {
		for _, name := range claimsOf(pod) {
			claim, err := s.Server.Get(model.Claims, key(pod.Namespace, name))
			if err != nil || claim.GetDeletionTimestamp() != nil || model.OwnerOf(claim) != string(set.UID) {
				return fmt.Sprintf("Pod %s lacks its claim %s", pod.Name, name)
			}
		}
	}
	for _, claim := range s.Claims() {
		id := claim.Labels[apps.LabelInstanceID]
		// A Pod that was released keeps its claims until it is gone.
		_, err := s.Server.Get(model.Pods, key(set.Namespace, set.Name+"-"+id))
		switch {
		case claim.DeletionTimestamp != nil:
			return fmt.Sprintf("claim %s is still going", claim.Name)
		case err != nil && set.Spec.ScaleStrategy.DisablePVCReuse:
			return fmt.Sprintf("claim %s belongs to no Pod and waits for none", claim.Name)
		}
	}
	return ""
}

// remember keeps what the user once wanted; later actions are judged by it.
func (s *Simulation) remember(object client.Object) {
	if set, ok := object.(*apps.CloneSet); ok {
		s.reuseDisabled = s.reuseDisabled || set.Spec.ScaleStrategy.DisablePVCReuse
		s.listed = append(s.listed, set.Spec.ScaleStrategy.PodsToDelete...)
	}
}

// asked notes that a process asked to delete a Pod, even if the Pod is already gone: if
// the answer is lost, nobody can tell who deleted it.
func (p *Process) asked(r *model.Request) {
	if r.Kind != model.Pods {
		return
	}
	for _, c := range slices.Backward(p.server.Log[model.Pods]) {
		if object := c.Object(); client.ObjectKeyFromObject(object) == r.At {
			p.deleted[object.GetUID()] = true
			return
		}
	}
}
