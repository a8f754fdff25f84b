// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/model"
)

// protector releases a deleted claim once no scheduled Pod uses it, as kube-controller-manager does.
type protector struct{ *Simulation }

func (p protector) observe(c *model.Commit) {
	switch object := c.Object().(type) {
	case *corev1.PersistentVolumeClaim:
		if c.New != nil && object.DeletionTimestamp != nil {
			p.look(client.ObjectKeyFromObject(object))
		}
	case *corev1.Pod:
		if c.New == nil {
			for _, name := range claimsOf(object) {
				p.look(key(object.Namespace, name))
			}
		}
	}
}

func (p protector) look(at types.NamespacedName) {
	p.World.after(p.World.between(time.Millisecond, 100*time.Millisecond), func() {
		if usedBy(p.Server, at.Name, scheduled) != nil {
			return
		}
		model.Change(p.Server, "protection", at, "", func(claim *corev1.PersistentVolumeClaim) {
			if claim.DeletionTimestamp != nil {
				claim.Finalizers = nil
			}
		})
	})
}

func scheduled(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" }

// usedBy finds a Pod that mounts a claim and satisfies has; nil if there is none.
func usedBy(s *model.Server, claim string, has func(*corev1.Pod) bool) *corev1.Pod {
	for _, pod := range model.List[*corev1.Pod](s.Objects) {
		if has(pod) && slices.Contains(claimsOf(pod), claim) {
			return pod
		}
	}
	return nil
}

// inUse reports whether a claim that is deleted stays until a Pod ends.
func (s *Simulation) inUse(claim *corev1.PersistentVolumeClaim) bool {
	return usedBy(s.Server, claim.Name, scheduled) != nil
}

// dropped reports whether a claim is terminating and should not be. Without reuse it may be terminating
// while its Pod runs.
func (s *Simulation) dropped(claim *corev1.PersistentVolumeClaim) bool {
	return claim.DeletionTimestamp != nil && (!s.reuseDisabled || !s.inUse(claim))
}

// claimsOf names the claims that a Pod mounts.
func claimsOf(pod *corev1.Pod) (names []string) {
	for i := range pod.Spec.Volumes {
		if source := pod.Spec.Volumes[i].PersistentVolumeClaim; source != nil {
			names = append(names, source.ClaimName)
		}
	}
	return names
}

// mountable reports whether all claims of a Pod exist and are not being deleted: the
// scheduler assigns no node before that.
func mountable(s *model.Server, pod *corev1.Pod) bool {
	return !slices.ContainsFunc(claimsOf(pod), func(name string) bool {
		claim, err := s.Get(model.Claims, key(pod.Namespace, name))
		return err != nil || claim.GetDeletionTimestamp() != nil
	})
}

// Claims lists the set's claims on the server, by name.
func (s *Simulation) Claims() []*corev1.PersistentVolumeClaim {
	return owned[*corev1.PersistentVolumeClaim](s)
}

func templateNames(set *apps.CloneSet) []string {
	return list.Map(set.Spec.VolumeClaimTemplates, func(t apps.ClaimTemplate) string { return t.Metadata.Name })
}

// strangers creates claims with names of the set's claims that do not belong to the set: one has
// another owner, and the other one has none, because somebody keeps it.
func (s *Simulation) strangers() {
	for _, claim := range load[[]*corev1.PersistentVolumeClaim]("strangers.yaml") {
		must(s.Server.Create("user", claim, false))
	}
}

// claimActions are the user's actions in a set with claims.
var claimActions = []func(*Simulation){
	deleteByHand,
	deleteByHand,
	func(s *Simulation) { s.eachOf(1, s.nodes.evict) },
	func(s *Simulation) { s.change(fmt.Sprint("reuseOff ", !s.Set().Spec.ScaleStrategy.DisablePVCReuse)) },
	draws("claims", "data", "data log", "log"),
	(*Simulation).loseClaim,
	(*Simulation).freeClaim,
}

// loseClaim deletes a claim that no scheduled Pod uses.
func (s *Simulation) loseClaim() {
	for _, claim := range s.Claims() {
		if !s.inUse(claim) {
			_ = s.Server.Delete("user", claim)
			return
		}
	}
}

// freeClaim removes a claim from the set; the set takes it back if a Pod uses it.
func (s *Simulation) freeClaim() {
	if claims := s.Claims(); len(claims) > 0 {
		at := client.ObjectKeyFromObject(pick(s.World, claims...))
		model.Change(s.Server, "user", at, "", func(claim *corev1.PersistentVolumeClaim) { claim.OwnerReferences = nil })
	}
}

// randomClaims gives some of the sets claims. It has its own random source, so that the
// other seeds stay unchanged.
func randomClaims(seed uint64, set *apps.CloneSet) {
	w := newWorld(seed ^ 0xc1a135)
	if !w.roll(0.35) {
		return
	}
	to("claims " + pick(w, "data", "data log"))(set)
	set.Spec.ScaleStrategy.DisablePVCReuse = w.roll(0.3)
}

// giveUpPods deletes the Pods that wait for a claim that will not be created: the user has removed its
// template, or the Pod has been released.
func (s *Simulation) giveUpPods() {
	set := s.Set()
	for _, pod := range model.List[*corev1.Pod](s.Server.Objects) {
		if scheduled(pod) {
			continue
		}
		waits := slices.ContainsFunc(claimsOf(pod), func(name string) bool {
			_, err := s.Server.Get(model.Claims, key(pod.Namespace, name))
			template := strings.TrimSuffix(name, "-"+pod.Name)
			return err != nil && (set == nil || stray(pod, set) || !slices.Contains(templateNames(set), template))
		})
		if waits {
			s.World.say("user", "gives Pod %s up", pod.Name)
			_ = s.Server.Delete("user", pod)
		}
	}
}

// claimWrite is one write of a controller process to a claim.
type claimWrite struct {
	*model.Commit
	set      *apps.CloneSet
	old, new *corev1.PersistentVolumeClaim
	id       string
}

func (s *Simulation) judgeClaim(p *Process, c *model.Commit) {
	w := &claimWrite{Commit: c, set: p.pass.set, id: c.Object().GetLabels()[apps.LabelInstanceID]}
	w.old, _ = c.Old.(*corev1.PersistentVolumeClaim)
	w.new, _ = c.New.(*corev1.PersistentVolumeClaim)
	if w.old == nil {
		return
	}
	foreignClaim(p, w)
	if w.Deletes() {
		claimFirst(s, p, w)
		claimLost(s, p, w)
	}
}

// foreignClaim: no claim of another owner is touched.
func foreignClaim(p *Process, w *claimWrite) {
	if model.OwnerOf(w.old) == string(w.set.UID) {
		return
	}
	used := p.knows(w.set).count(func(pod *corev1.Pod) bool { return pod.Name == w.set.Name+"-"+w.id }) > 0
	if model.OwnerOf(w.old) == model.Orphan && w.new != nil && model.OwnerOf(w.new) == string(w.set.UID) && used {
		return // it is adopted together with its Pod
	}
	p.World.fail("no claim of another owner is touched", "claim %s belongs to %s", w.old.Name, model.OwnerOf(w.old))
}

// claimFirst also applies if another process has created the Pod in the meantime. A process that
// deletes a Pod and then its claims cannot know of the next Pod, but finds its mark on the claims.
// Without reuse, a claim is deleted with its Pod in any case: if a process sees a rival's new claim,
// and not yet its Pod, no data is lost.
func claimFirst(s *Simulation, p *Process, w *claimWrite) {
	if pod := usedBy(s.Server, w.old.Name, model.Active); pod != nil && (!w.set.Spec.ScaleStrategy.DisablePVCReuse || !p.rivals(model.Pods)) {
		s.World.fail("no claim goes while its Pod stays", "claim %s is deleted, and Pod %s stays", w.old.Name, pod.Name)
	}
}

// claimLost: a Pod keeps its claims unless the controller wanted the Pod deleted or the
// user disabled reuse.
func claimLost(s *Simulation, p *Process, w *claimWrite) {
	if s.reuseDisabled || p.rivals(model.Pods, model.Claims) {
		return
	}
	end := s.endOf(w.set.Name + "-" + w.id)
	if end == nil {
		return // there was no Pod: its name was taken
	}
	history := s.Server.History(model.Pods, end.Old.GetUID())
	pod, _ := history[len(history)-1].Object().(*corev1.Pod) // its last version
	asked := slices.ContainsFunc(s.processes, func(p *Process) bool { return p.deleted[pod.UID] })
	// The controller may have acted before it saw that the user removed the name.
	named := slices.ContainsFunc(history, func(c *model.Commit) bool {
		return c.Version >= end.Version && c.Object().GetLabels()[apps.LabelSpecifiedDelete] == "true"
	})
	wanted := named || slices.Contains(s.listed, pod.Name)
	if ended := pod.Status.Phase == corev1.PodFailed; !ended {
		wanted = wanted || asked || model.State(pod) == apps.StatePreparingDelete
	}
	if !wanted {
		s.World.fail("claims outlive a Pod that others deleted", "claim %s is deleted, and Pod %s was deleted by %s in phase %s",
			w.old.Name, pod.Name, end.Actor, pod.Status.Phase)
	}
}

// endOf finds the commit that deleted the latest Pod of a name.
func (s *Simulation) endOf(name string) *model.Commit {
	for _, c := range slices.Backward(s.Server.Log[model.Pods]) {
		if c.Object().GetName() == name && c.Deletes() {
			return c
		}
	}
	return nil
}

// withoutClaims: a Pod is created after its claims, and mounts them.
func withoutClaims(w *podWrite) {
	if w.old != nil || w.process.rivals(model.Pods, model.Claims) {
		return
	}
	id := strings.TrimPrefix(w.new.Name, w.set.Name+"-")
	for _, template := range templateNames(w.set) {
		name := template + "-" + w.set.Name + "-" + id
		if !slices.Contains(claimsOf(w.new), name) {
			w.fail("does not mount %s", name)
		}
		object, err := w.process.Server.Get(model.Claims, key(w.new.Namespace, name))
		his := func(c *model.Commit) bool { return c.Actor == "user" && c.Object().GetName() == name }
		if (err != nil || model.OwnerOf(object) != string(w.set.UID)) && !slices.ContainsFunc(w.process.Server.Log[model.Claims], his) {
			w.fail("is created without its claim %s", name)
		}
	}
}

// claimsLeft: new claims are created only if none wait for a Pod.
func claimsLeft(w *podWrite) {
	s := w.process.pass.snapshot
	if w.old != nil || s == nil || s.Spec.DisableClaimReuse || len(s.Spec.ClaimTemplates) == 0 {
		return
	}
	actions := w.process.pass.plan.Actions
	fresh := slices.ContainsFunc(actions, func(a plan.Action) bool { return a.Verb == plan.Create && a.Instance == "" })
	for _, claim := range s.Claims {
		id := claim.Labels[apps.LabelInstanceID]
		used := slices.ContainsFunc(actions, func(a plan.Action) bool { return a.Verb == plan.Create && a.Instance == id })
		if fresh && !used && waits(s, claim, id) {
			w.fail("is created with new claims while %s waits for a Pod", claim.Name)
		}
	}
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

// rivals reports whether another process has written objects of some kinds that this one
// cannot know yet.
func (p *Process) rivals(of ...model.Kind) bool {
	others := func(c *model.Commit) bool { return c.Actor != p.name && isProcess(c.Actor) }
	return slices.ContainsFunc(of, func(kind model.Kind) bool {
		return slices.ContainsFunc(p.Server.Log[kind][p.pass.upTo[kind]:], others)
	})
}

// missingClaims describes what is wrong with the claims once the cluster has settled.
func (s *Simulation) missingClaims(set *apps.CloneSet) string {
	for _, pod := range s.Pods() {
		for _, name := range claimsOf(pod) {
			claim := model.Get[*corev1.PersistentVolumeClaim](s.Server.Objects, key(pod.Namespace, name))
			if claim == nil || s.dropped(claim) || model.OwnerOf(claim) != string(set.UID) {
				return fmt.Sprintf("Pod %s lacks its claim %s", pod.Name, name)
			}
		}
	}
	for _, claim := range s.Claims() {
		id := claim.Labels[apps.LabelInstanceID]
		// A Pod that was released keeps its claims until it is gone.
		_, err := s.Server.Get(model.Pods, key(set.Namespace, set.Name+"-"+id))
		switch {
		case s.dropped(claim):
			return fmt.Sprintf("claim %s is still going", claim.Name)
		case err != nil && set.Spec.ScaleStrategy.DisablePVCReuse:
			return fmt.Sprintf("claim %s belongs to no Pod and waits for none", claim.Name)
		}
	}
	return ""
}

// remember records the user's wishes, by which later actions are judged.
func (s *Simulation) remember(object client.Object) {
	if set, ok := object.(*apps.CloneSet); ok {
		s.reuseDisabled = s.reuseDisabled || set.Spec.ScaleStrategy.DisablePVCReuse
		s.listed = append(s.listed, set.Spec.ScaleStrategy.PodsToDelete...)
	}
}

// asked records that a process asked to delete a Pod, even if the Pod is already gone: if the answer is
// lost, it is unknown who deleted the Pod.
func (p *Process) asked(r *model.Request) {
	if r.Kind != model.Pods {
		return
	}
	for _, c := range slices.Backward(p.Server.Log[model.Pods]) {
		if object := c.Object(); client.ObjectKeyFromObject(object) == r.At {
			p.deleted[object.GetUID()] = true
			return
		}
	}
}
