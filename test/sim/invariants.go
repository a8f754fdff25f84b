// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/test/model"
)

// Violation is a broken invariant.
type Violation struct {
	// Rule names the invariant.
	Rule string
	// What describes what happened.
	What string
	At   time.Time
}

// Error describes the violation.
func (v *Violation) Error() string {
	return fmt.Sprintf("%s at %.3fs: %s", v.Rule, v.At.Sub(epoch).Seconds(), v.What)
}

// podWrite is one write of a controller process to a Pod, with the facts to judge it by.
type podWrite struct {
	*model.Commit
	process *Process
	// rule is the name of the rule that is checked.
	rule string
	// set is the CloneSet as the pass read it, and hooks are its hooks.
	set   *apps.CloneSet
	hooks lifecycle.Hooks
	// update names the revision of the set's template.
	update string
	// old and new are the Pod on the server before and after; nil if it did not exist.
	old, new *corev1.Pod
	// before and after are the knowledge of the process before and after the write.
	before, after knowledge
	// now is the time that the pass decided at.
	now time.Time
}

// rules must hold whenever the controller writes to a Pod.
var rules = []struct {
	name  string
	check func(*podWrite)
	// lasts reports whether the rule also holds if the set is gone or deleted and the process does not
	// know.
	lasts bool
}{
	{"no Pod is updated while its hook holds it", heldUpdate, true},
	{"no Pod is deleted while its hook holds it", heldDelete, true},
	{"no drain is skipped", drainSkipped, false},
	{"containers are updated by their priority", orderBroken, false},
	{"containers start by their priority", startsEarly, true},
	{"no Pod of another owner is touched", foreignTouched, true},
	{"a Pod that is not the set's any more is let go as it is", strayTouched, false},
	{"no Pod in PreparingDelete or on its way out is updated", leavingUpdated, false},
	{"a Pod comes back with its hooks", hooksLost, false},
	{"nothing of others is wiped from a Pod", othersWiped, true},
	{"states follow the table", illegalMove, false},
	{"a gate opens only when its hook says so", gateForced, false},
	{"an update is done when the kubelet says so", doneTooEarly, false},
	{"no more unavailable by our doing than allowed", tooManyUnavailable, false},
	{"unavailable Pods are not all updated or deleted at once", tooManyTouched, false},
	{"never more Pods than replicas and surge", tooManyPods, false},
	{"the partition is never overrun", partitionOverrun, false},
	{"new Pods keep to the partition", wrongRevision, false},
	{"nothing is updated that the strategy leaves alone", updatedAgainstWill, false},
	{"Pods go back only for the partition", wentBack, false},
	{"a Pod that counts as updated stays at its gate", gateLeft, false},
	{"a Pod of other claims is not updated in place", ofOtherClaims, false},
	{"no Pod is named for deletion for nothing", namedForNothing, false},
	{"a Pod is made after its claims", withoutClaims, false},
	{"claims that wait are used first", claimsLeft, false},
	{"no Pod is made while nothing holds a set with a preDelete hook", withoutFinalizer, false},
	{"a deleted set only removes its Pods, and no orphans", afterDeletion, false},
	{"no Pod in service leaves for an image that its node lacks", withoutImage, false},
	{"a condition says nothing that is over", saysOver, true},
	{ruleRefusedLeaves, leavesForRefused, false},
}

// judge checks a commit of a controller process.
func (s *Simulation) judge(p *Process, c *model.Commit) {
	set := p.pass.set
	if set == nil {
		return
	}
	switch c.Kind {
	case model.CloneSets:
		s.judgeStatus(p, c)
		return
	case model.Claims:
		s.judgeClaim(p, c)
		return
	case model.Revisions:
		s.judgeRevision(c)
		return
	}
	w := &podWrite{Commit: c, process: p, set: set, hooks: lifecycle.FromSpec(set.Spec.Lifecycle), update: s.updateRevision(set), now: p.pass.now}
	if w.old, w.new = c.Pods(); pulls(c.Object()) {
		return
	}
	w.before, w.after = p.decided(set, c), p.decided(set, nil)
	for _, r := range rules {
		if w.rule = r.name; r.lasts || !s.overtaken(set) {
			r.check(w)
		}
	}
}

// fail records what is wrong with the write.
func (w *podWrite) fail(format string, args ...any) {
	w.process.World.fail(w.rule, "Pod %s %s", w.name(), fmt.Sprintf(format, args...))
}

// fail records the first violation and ends the run.
func (w *World) fail(rule, format string, args ...any) {
	if w.failure == nil {
		w.failure = &Violation{Rule: rule, What: fmt.Sprintf(format, args...), At: w.now()}
	}
}

// updateRevision names the revision of a set's template.
func (s *Simulation) updateRevision(set *apps.CloneSet) string {
	raw := set.Spec.Template.Raw()
	if name, ok := s.revisions[string(raw)]; ok {
		return name
	}
	template := must(revision.Decode(raw))
	for _, r := range owned[*appsv1.ControllerRevision](s) {
		if found, err := revision.Template(r.Data.Raw); err == nil && revision.Equal(found, template) {
			s.revisions[string(raw)] = r.Name
			return r.Name
		}
	}
	return ""
}

// judgeStatus checks a status that the controller wrote.
func (s *Simulation) judgeStatus(p *Process, c *model.Commit) {
	old, okOld := c.Old.(*apps.CloneSet)
	set, okNew := c.New.(*apps.CloneSet)
	if !okOld || !okNew || old.Status.CurrentRevision == set.Status.CurrentRevision || old.Status.CurrentRevision == "" {
		return
	}
	// The pass may have created Pods since it counted; none of them has another revision if all Pods
	// had this one. The process knows of a Pod that was gone already when it was to be deleted.
	k := p.knows(p.pass.set)
	behind := k.count(func(pod *corev1.Pod) bool { return model.Active(pod) && !of(pod, set.Status.CurrentRevision) })
	if behind > 0 && !p.rivals(model.Pods) {
		s.World.fail("the current revision does not advance early", "%s becomes current while %d Pods are not of it",
			set.Status.CurrentRevision, behind)
	}
}

// judgeRevision checks a new revision: no two hold the same template, and there are
// never more revisions than generations of the spec.
func (s *Simulation) judgeRevision(c *model.Commit) {
	set := s.Set()
	if c.Old != nil || c.New == nil || set == nil {
		return
	}
	fresh, _ := c.New.(*appsv1.ControllerRevision)
	made, err := revision.Template(fresh.Data.Raw)
	if err != nil {
		s.World.fail(ruleRevisions, "%s cannot be read: %v", fresh.Name, err)
		return
	}
	count := int64(1)
	for _, r := range owned[*appsv1.ControllerRevision](s) {
		if r.Name == c.New.GetName() {
			continue
		}
		count++
		if template, err := revision.Template(r.Data.Raw); err == nil && revision.Equal(template, made) {
			s.World.fail(ruleRevisions, "%s and %s hold one template", r.Name, c.New.GetName())
		}
	}
	if generations := max(set.Generation, s.edited); count > generations {
		s.World.fail(ruleRevisions, "%d revisions in %d generations", count, generations)
	}
}

// ruleRevisions names what judgeRevision checks.
const ruleRevisions = "a generation gets one revision at most"

func (w *podWrite) name() string { return cmp.Or(w.new, w.old).Name }

// updates reports whether the write changes a Pod to another revision.
func (w *podWrite) updates() bool {
	return w.old != nil && w.new != nil &&
		(w.old.Labels[apps.LabelRevision] != w.new.Labels[apps.LabelRevision] || w.changesContainers())
}

// goesOn reports whether the write continues an update that has begun.
func (w *podWrite) goesOn() bool {
	return w.updates() && model.State(w.old) == apps.StateUpdating && w.old.Labels[apps.LabelRevision] == w.new.Labels[apps.LabelRevision]
}

// changesContainers reports whether the write changes containers that the kubelet runs.
func (w *podWrite) changesContainers() bool {
	return w.old != nil && w.new != nil && (imagesOf(&w.old.Spec) != imagesOf(&w.new.Spec) || resourcesOf(&w.old.Spec) != resourcesOf(&w.new.Spec))
}

// moves reports whether the write changes the state of a Pod.
func (w *podWrite) moves() bool {
	return w.old != nil && w.new != nil && model.State(w.old) != model.State(w.new)
}

// heldUpdate: a Pod in Updating has passed its gate, or there was no gate then.
func heldUpdate(w *podWrite) {
	if w.updates() && model.State(w.old) != apps.StateUpdating && w.hooks.InPlaceUpdate.Holds(w.old.Labels, w.old.Finalizers) {
		w.fail("is updated, and the inPlaceUpdate hook holds it")
	}
}

func heldDelete(w *podWrite) {
	if w.Deletes() && w.hooks.PreDelete.Holds(w.old.Labels, w.old.Finalizers) {
		w.fail("is deleted, and the preDelete hook holds it")
	}
}

// drainSkipped: before a container changes, the Pod is out of its endpoints for the whole grace period.
// Some Pods serve nobody and need no grace period: one without a node, one in which nothing runs, and
// one in which nothing ran when it left its endpoints, since a container that starts later does not
// bring it back.
func drainSkipped(w *podWrite) {
	if !w.changesContainers() || w.old.Spec.NodeName == "" {
		return // nothing runs yet that could restart
	}
	drained := model.Condition(w.old, apps.ConditionInPlaceUpdateReady)
	if drained.Status != corev1.ConditionFalse {
		w.fail("gets other containers while InPlaceUpdateReady is %q", drained.Status)
		return
	}
	strategy := w.set.Spec.UpdateStrategy.InPlaceUpdateStrategy
	if strategy == nil || model.State(w.old) == apps.StateUpdating || !anyRunning(w.old) {
		return
	}
	grace := time.Duration(strategy.GracePeriodSeconds) * time.Second
	at, ran := drainedAt(w.process.Server, w.old)
	if gone := w.process.World.now().Sub(at); ran && gone < grace {
		w.fail("gets other containers %s after the drain began, and the grace period is %s", gone, grace)
	}
}

// drainedAt returns the exact time at which a Pod last left its endpoints for an update (its condition
// has whole seconds only), and whether one of its containers ran then.
func drainedAt(s *model.Server, pod *corev1.Pod) (at time.Time, ran bool) {
	out := func(pod *corev1.Pod) bool {
		return model.Condition(pod, apps.ConditionInPlaceUpdateReady).Status == corev1.ConditionFalse
	}
	for _, c := range s.History(model.Pods, pod.UID) {
		if old, next := c.Pods(); old != nil && next != nil && out(next) && !out(old) {
			at, ran = c.At, anyRunning(old)
		}
	}
	return at, ran
}

// anyRunning reports whether there is a container to drain.
func anyRunning(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.State.Running != nil })
}

func foreignTouched(w *podWrite) {
	switch {
	case w.old == nil || model.OwnerOf(w.old) == string(w.set.UID):
	case model.OwnerOf(w.old) == model.Orphan && w.new != nil && (model.OwnerOf(w.new) == string(w.set.UID) || w.onlyOpens()):
		// an adoption, or its own new Pod, just released
	default:
		w.fail("belongs to %s", model.OwnerOf(w.old))
	}
}

// onlyOpens reports whether the write only opens the Pod's readiness gates.
func (w *podWrite) onlyOpens() bool {
	const closed = corev1.ConditionFalse
	if w.new == nil || model.Condition(w.new, apps.ConditionInPlaceUpdateReady).Status == closed || model.Condition(w.new, apps.ConditionPodReady).Status == closed {
		return false
	}
	before := w.old.DeepCopy()
	before.ResourceVersion, before.Status.Conditions = w.new.ResourceVersion, w.new.Status.Conditions
	return model.Same(before, w.new)
}

// saysOver: the message of the condition names the revision for which a Pod has left service, so it
// must not stay when the Pod is back.
func saysOver(w *podWrite) {
	pod := cmp.Or(w.new, &corev1.Pod{})
	if c := model.Condition(pod, apps.ConditionInPlaceUpdateReady); c.Status == corev1.ConditionTrue && c.Message != "" {
		w.fail("is in service, and its condition says %q", c.Message)
	}
}

func leavingUpdated(w *podWrite) {
	switch {
	case !w.updates():
	case w.old.DeletionTimestamp != nil:
		w.fail("is updated on its way out")
	case model.State(w.old) == apps.StatePreparingDelete:
		w.fail("is updated in PreparingDelete")
	}
}

// hooksLost: on the way back, and before an update that follows another one whose hook
// had not closed, the labels and finalizers are restored together with the state.
func hooksLost(w *podWrite) {
	if !w.moves() {
		return
	}
	missing := func(h lifecycle.Hook) []string { return h.Missing(w.new.Labels, w.new.Finalizers) }
	switch from, to := model.State(w.old), model.State(w.new); {
	case from == apps.StatePreparingDelete && to == apps.StatePreparingNormal:
		lost := append(missing(w.hooks.InPlaceUpdate), missing(w.hooks.PreDelete)...)
		// Keys of preNormal come back with its confirmation.
		lost = slices.DeleteFunc(lost, func(key string) bool {
			_, label := w.hooks.PreNormal.LabelsHandler[key]
			return label || slices.Contains(w.hooks.PreNormal.FinalizersHandler, key)
		})
		if len(lost) > 0 {
			w.fail("comes back without %s", strings.Join(lost, ", "))
		}
		if n := w.hooks.PreNormal; !n.Empty() && len(missing(n)) == 0 {
			w.fail("comes back as if its preNormal hook had said yes")
		}
	case from == apps.StateUpdated && to == apps.StatePreparingUpdate:
		if lost := missing(w.hooks.InPlaceUpdate); len(lost) > 0 {
			w.fail("goes to the gate without %s, so the gate stands open", strings.Join(lost, ", "))
		}
	}
}
