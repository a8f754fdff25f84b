// SPDX-License-Identifier: Apache-2.0

package sim

import (
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

// deed is one write of a controller process to a Pod, with the facts to judge it by.
type deed struct {
	process *Process
	// set is the CloneSet as the pass read it, and hooks are its hooks.
	set   *apps.CloneSet
	hooks lifecycle.Hooks
	// update names the revision of the set's template.
	update string
	// old and new are the Pod on the server before and after; nil if it did not exist.
	old, new *corev1.Pod
	// before and after are what the process knew.
	before, after knowledge
	// now is the time that the pass decided at.
	now time.Time
}

// rule returns what is wrong with a deed, or "".
type rule struct {
	name string
	find func(*deed) string
}

// rules must hold whenever the controller writes to a Pod.
var rules = []rule{
	{"no Pod is updated while its hook holds it", heldUpdate},
	{"no Pod is deleted while its hook holds it", heldDelete},
	{"no drain is skipped", drainSkipped},
	{"containers are updated by their priority", orderBroken},
	{"no Pod of another owner is touched", foreignTouched},
	{"a Pod that is not the set's any more is let go as it is", strayTouched},
	{"no Pod in PreparingDelete or on its way out is updated", leavingUpdated},
	{"a Pod comes back with its hooks", hooksLost},
	{"nothing of others is wiped from a Pod", othersWiped},
	{"states follow the table", illegalMove},
	{"a gate opens only when its hook says so", gateForced},
	{"an update is done when the kubelet says so", doneTooEarly},
	{"no more unavailable by our doing than allowed", tooManyUnavailable},
	{"unavailable Pods are not all updated or deleted at once", tooManyTouched},
	{"never more Pods than replicas and surge", tooManyPods},
	{"the partition is never overrun", partitionOverrun},
	{"new Pods keep to the partition", wrongRevision},
	{"nothing is updated that the strategy leaves alone", updatedAgainstWill},
	{"a Pod is made after its claims", withoutClaims},
	{"claims that wait are used first", claimsLeft},
}

// judge checks a commit of a controller process.
func (s *Simulation) judge(p *Process, c *model.Commit) {
	set := p.pass.set
	if set == nil {
		return
	}
	if c.Kind == model.CloneSets {
		s.judgeStatus(p, c)
		return
	}
	switch c.Kind {
	case model.Claims:
		s.judgeClaim(p, c)
		return
	case model.Revisions:
		s.judgeRevision(c)
		return
	}
	d := &deed{process: p, set: set, hooks: lifecycle.FromSpec(set.Spec.Lifecycle), update: s.updateRevision(set), now: p.pass.now}
	d.old, d.new = c.Pods()
	d.before, d.after = p.decided(set, c), p.decided(set, nil)
	for _, r := range rules {
		if what := r.find(d); what != "" {
			s.World.fail(r.name, "%s", what)
			return
		}
	}
}

// fail records the first violation and ends the run.
func (w *World) fail(rule, format string, args ...any) {
	if w.failure == nil {
		w.failure = &Violation{Rule: rule, What: fmt.Sprintf(format, args...), At: w.now()}
	}
}

// updateRevision names the revision of a set's template.
func (s *Simulation) updateRevision(set *apps.CloneSet) string {
	if name, ok := s.revisionNames[set.Generation]; ok {
		return name
	}
	template, err := templateOf(set)
	if err != nil {
		return ""
	}
	for _, r := range owned[*appsv1.ControllerRevision](s) {
		if found, err := revision.Template(r.Data.Raw); err == nil && revision.Equal(found, template) {
			s.revisionNames[set.Generation] = r.Name
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
	// The pass may have created Pods since it counted; none of them has another
	// revision if all Pods had this one. A Pod that was already gone when it was to be
	// deleted is known by now.
	k := p.knownByNow(p.pass.set)
	behind := k.count(func(pod *corev1.Pod) bool { return model.Active(pod) && !of(pod, set.Status.CurrentRevision) })
	if behind > 0 && !(&deed{process: p}).rivals() {
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
	made, err := revision.Template(revisionData(c.New))
	if err != nil {
		s.World.fail(ruleRevisions, "%s cannot be read: %v", c.New.GetName(), err)
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
	if generations := max(set.Generation, s.wished); count > generations {
		s.World.fail(ruleRevisions, "%d revisions in %d generations", count, generations)
	}
}

// ruleRevisions names what judgeRevision checks.
const ruleRevisions = "a generation gets one revision at most"

func (d *deed) name() string {
	if d.new != nil {
		return d.new.Name
	}
	return d.old.Name
}

// updates reports whether the deed changes a Pod to another revision.
func (d *deed) updates() bool {
	return d.old != nil && d.new != nil &&
		(d.old.Labels[apps.LabelRevision] != d.new.Labels[apps.LabelRevision] || d.changesContainers())
}

// goesOn reports whether the deed is a later part of an update that has begun.
func (d *deed) goesOn() bool {
	return d.updates() && model.State(d.old) == apps.StateUpdating && d.old.Labels[apps.LabelRevision] == d.new.Labels[apps.LabelRevision]
}

func (d *deed) deletes() bool {
	return d.old != nil && d.old.DeletionTimestamp == nil && (d.new == nil || d.new.DeletionTimestamp != nil)
}

// changesContainers reports whether the deed changes what the kubelet has to run.
func (d *deed) changesContainers() bool {
	return d.old != nil && d.new != nil && (imagesOf(d.old) != imagesOf(d.new) || resourcesOf(d.old) != resourcesOf(d.new))
}

// moves reports whether the deed changes the state of a Pod.
func (d *deed) moves() bool {
	return d.old != nil && d.new != nil && model.State(d.old) != model.State(d.new)
}

// heldUpdate: a Pod in Updating has passed its gate, or there was no gate then.
func heldUpdate(d *deed) string {
	if d.updates() && model.State(d.old) != apps.StateUpdating && d.hooks.InPlaceUpdate.Holds(d.old.Labels, d.old.Finalizers) {
		return fmt.Sprintf("Pod %s is updated, and the inPlaceUpdate hook holds it", d.name())
	}
	return ""
}

func heldDelete(d *deed) string {
	if d.deletes() && d.hooks.PreDelete.Holds(d.old.Labels, d.old.Finalizers) {
		return fmt.Sprintf("Pod %s is deleted, and the preDelete hook holds it", d.name())
	}
	return ""
}

// drainSkipped: before a container changes, the Pod is out of its endpoints for the
// whole grace period. A Pod without a node serves nobody, and neither does one in which
// nothing runs, or in which nothing ran when it left its endpoints: what starts later
// never joins them.
func drainSkipped(d *deed) string {
	if !d.changesContainers() || d.old.Spec.NodeName == "" {
		return "" // nothing runs yet that could restart
	}
	drained := model.Condition(d.old, apps.ConditionInPlaceUpdateReady)
	if drained.Status != corev1.ConditionFalse {
		return fmt.Sprintf("the containers of Pod %s change while InPlaceUpdateReady is %q", d.name(), drained.Status)
	}
	strategy := d.set.Spec.UpdateStrategy.InPlaceUpdateStrategy
	if strategy == nil || model.State(d.old) == apps.StateUpdating || !anyRunning(d.old) {
		return ""
	}
	grace := time.Duration(strategy.GracePeriodSeconds) * time.Second
	at, ran := drainedAt(d.process.server, d.old)
	if gone := d.process.world.now().Sub(at); ran && gone < grace {
		return fmt.Sprintf("the containers of Pod %s change %s after the drain began, and the grace period is %s", d.name(), gone, grace)
	}
	return ""
}

// drainedAt is exactly when a Pod last left its endpoints for an update (its condition
// has whole seconds only), and whether one of its containers ran then.
func drainedAt(s *model.Server, pod *corev1.Pod) (at time.Time, ran bool) {
	for _, c := range s.Log[model.Pods] {
		old, next := c.Pods()
		if old == nil || next == nil || next.UID != pod.UID {
			continue
		}
		out := func(pod *corev1.Pod) bool {
			return model.Condition(pod, apps.ConditionInPlaceUpdateReady).Status == corev1.ConditionFalse
		}
		if out(next) && !out(old) {
			at, ran = c.At, anyRunning(old)
		}
	}
	return at, ran
}

// anyRunning reports whether there is a container to drain.
func anyRunning(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.State.Running != nil })
}

func foreignTouched(d *deed) string {
	if d.old == nil || model.OwnerOf(d.old) == string(d.set.UID) {
		return ""
	}
	if model.OwnerOf(d.old) == model.Orphan && d.new != nil && model.OwnerOf(d.new) == string(d.set.UID) {
		return "" // an adoption
	}
	if model.OwnerOf(d.old) == model.Orphan && d.onlyOpens() {
		return "" // its own new Pod, just released
	}
	return fmt.Sprintf("Pod %s belongs to %s", d.name(), model.OwnerOf(d.old))
}

// onlyOpens reports whether the deed only opens the Pod's readiness gates.
func (d *deed) onlyOpens() bool {
	if d.new == nil {
		return false
	}
	before := d.old.DeepCopy()
	before.ResourceVersion = d.new.ResourceVersion
	for _, kind := range []corev1.PodConditionType{apps.ConditionInPlaceUpdateReady, apps.ConditionPodReady} {
		if model.Condition(d.new, kind).Status == corev1.ConditionFalse {
			return false
		}
	}
	before.Status.Conditions = d.new.Status.Conditions
	return model.Same(before, d.new)
}

func leavingUpdated(d *deed) string {
	switch {
	case !d.updates():
	case d.old.DeletionTimestamp != nil:
		return fmt.Sprintf("Pod %s is updated on its way out", d.name())
	case model.State(d.old) == apps.StatePreparingDelete:
		return fmt.Sprintf("Pod %s is updated in PreparingDelete", d.name())
	}
	return ""
}

// hooksLost: on the way back, and before an update that follows another one whose hook
// had not closed, the labels and finalizers are restored together with the state.
func hooksLost(d *deed) string {
	if !d.moves() {
		return ""
	}
	missing := func(h lifecycle.Hook) []string { return h.Missing(d.new.Labels, d.new.Finalizers) }
	switch from, to := model.State(d.old), model.State(d.new); {
	case from == apps.StatePreparingDelete && to == apps.StatePreparingNormal:
		lost := append(missing(d.hooks.InPlaceUpdate), missing(d.hooks.PreDelete)...)
		// What preNormal sets comes back with its confirmation.
		lost = slices.DeleteFunc(lost, func(key string) bool {
			_, label := d.hooks.PreNormal.Labels[key]
			return label || slices.Contains(d.hooks.PreNormal.Finalizers, key)
		})
		if len(lost) > 0 {
			return fmt.Sprintf("Pod %s comes back without %s", d.name(), strings.Join(lost, ", "))
		}
		if n := d.hooks.PreNormal; len(n.Labels)+len(n.Finalizers) > 0 && len(missing(n)) == 0 {
			return fmt.Sprintf("Pod %s comes back as if its preNormal hook had said yes", d.name())
		}
	case from == apps.StateUpdated && to == apps.StatePreparingUpdate:
		if lost := missing(d.hooks.InPlaceUpdate); len(lost) > 0 {
			return fmt.Sprintf("Pod %s goes to the gate without %s, so the gate stands open", d.name(), strings.Join(lost, ", "))
		}
	}
	return ""
}
