// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/launch"
	setplan "github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/podread"
	regplan "github.com/usher-dev/usher/internal/registration/plan"
)

// waiter finds the waits of one Pod.
type waiter struct {
	*Objects
	pod   *corev1.Pod
	holds []regplan.Hold
	out   []Wait
	// trouble means that one of the waits does not end by itself.
	trouble bool
	// opens means that the first wait is for Usher to open the gate, which it does when registries have answered.
	opens bool
}

// waits returns the Pod's waits: those that the CloneSet's planner finds, hooks that only Usher's
// operator knows, and why the Pod is not ready.
func (w *waiter) waits(blocked []setplan.Blocked) ([]Wait, bool) {
	for i := range blocked {
		w.blocked(&blocked[i])
	}
	for i := range w.holds {
		if !w.has(w.holds[i].Key) {
			w.held(&w.holds[i])
		}
	}
	w.foreignFinalizers()
	w.ends()
	if request := drainedFor(w.pod); request != nil && len(w.out) == 0 {
		w.out = append(w.out, Wait{What: drainedBut(request), Since: drainedSince(request)})
	}
	if len(w.out) == 0 && w.pod.DeletionTimestamp == nil && !w.pull() {
		w.updateRefused()
		w.lacksImage()
		w.notReady()
	}
	w.registered(w.unscheduled())
	return w.out, w.trouble
}

// registered adds the hook operator's report on a wait, which has the registry's answer. For a Pod
// without a node, a report that the Pod is not ready adds nothing.
func (w *waiter) registered(unscheduled bool) {
	c := podread.Condition(w.pod, usherv1alpha1.ConditionRegistered)
	switch {
	case c == nil || c.Message == "" || c.Reason == regplan.ReasonRegistered || c.Reason == regplan.ReasonDeregistered:
	case c.Reason == regplan.ReasonNodeGoes, c.Reason == regplan.ReasonEvictionRequested:
		_, why, _ := strings.Cut(c.Message, ": ")
		w.out = slices.Insert(w.out, 0, Wait{What: "leaves its registries, since " + why, Since: c.LastTransitionTime.Time})
	case c.Reason == string(regplan.ReasonUnderWay) && len(w.out) > 0: // the hold has the number
	case unscheduled && c.Reason == string(regplan.ReasonPodNotReady):
	default:
		w.condition(c)
	}
}

// drainedBut returns what a drained Pod waits for. Usher itself deletes the Pod for a controller, and
// for an eviction that was allowed.
func drainedBut(request *usherv1alpha1.DeletionRequest) string {
	if request.Controller || request.Eviction {
		return "is drained, and is deleted next, as " + userOf(request.By) + " asked"
	}
	return "is drained, and waits for " + userOf(request.By) + " to delete it"
}

// drainedSince returns when the drain ended that a request has asked for.
func drainedSince(request *usherv1alpha1.DeletionRequest) time.Time {
	if request.Drained != nil {
		return request.Drained.Time
	}
	return request.At.Time
}

func (w *waiter) has(key string) bool {
	return slices.ContainsFunc(w.out, func(one Wait) bool { return one.Key == key })
}

// blocked adds a wait that the CloneSet's planner has found.
func (w *waiter) blocked(b *setplan.Blocked) {
	switch {
	case b.Batch != nil:
		w.out = append(w.out, Wait{Since: b.Batch.Since, What: b.Batch.Wait()})
		return
	case b.Stuck != nil:
		w.trouble = true
		one := Wait{What: "is not ready: " + b.Stuck.Fault(), Gate: b.Gate, Since: b.Since, Next: w.command("usher undo clone/%s", w.Set.Name)}
		if b.Stuck.Crashes() {
			one.Next = w.command("logs %s -c %s --previous", w.pod.Name, b.Stuck.Container)
		}
		w.out = append(w.out, one)
		return
	}
	if b.Idle != nil { // notReady reports it, or ends
		return
	}
	if b.Failed != nil {
		w.trouble = true
		w.out = append(w.out, Wait{What: b.Failed.Fault(), Gate: b.Gate, Since: b.Since, Next: w.command("describe pod %s", w.pod.Name)})
		return
	}
	for _, key := range b.Keys {
		if hold := list.Find(w.holds, func(h *regplan.Hold) bool { return h.Key == key }); hold != nil {
			w.held(hold)
			continue
		}
		// Only Usher can answer a key of its domain.
		w.trouble = w.trouble || strings.Contains(key, usherv1alpha1.HookDomain)
		w.unanswered(fmt.Sprintf("waits at %s for somebody to answer the hook %s", b.Gate, key), b.Gate, key, b.Since)
	}
}

// unanswered adds a key that holds the Pod and that no known hook operator answers.
func (w *waiter) unanswered(what, gate, key string, since time.Time) {
	next := w.command("usher release pod/%s --hook=%s --reason=…", w.pod.Name, key)
	w.trouble = w.trouble || lasts(w.Now, since)
	w.out = append(w.out, Wait{What: what, Gate: gate, Key: key, Since: since, Next: next, Unanswered: true})
}

// held adds a hook that Registrations answer.
func (w *waiter) held(h *regplan.Hold) {
	one := Wait{
		What: what(h), Gate: string(h.Gate), Key: h.Key, Registrations: h.Registrations, Registries: h.Registries,
		Since: h.Since, Until: h.Until, Deadline: h.Deadline, OnDeadline: string(h.Policy),
	}
	if !h.Free.IsZero() {
		one.Since, one.Registries = h.Free, nil // they have confirmed
		one.Instead = w.command("annotate pod %s %s=true", w.pod.Name, usherv1alpha1.AnnotationSkipDrain) +
			", and delete it again: what is under way is lost"
	}
	switch {
	case !h.LetGo.IsZero() && w.Now.After(h.LetGo):
		one.Next = w.command("delete pod %s", w.pod.Name)
	case !h.Deadline.IsZero() && w.Now.After(h.Deadline):
		w.trouble = true
		one.Next = w.command("describe registration %s", strings.Join(h.Registrations, " "))
	}
	if away, _ := w.usherAway(); away || drainOverdue(w.Now, w.pod) {
		w.trouble = true
		one.What, one.Next = strings.TrimSuffix(one.What, mayUse)+"; Usher does not answer", askDoctor
	}
	w.out = append(w.out, one)
}

// mayUse is added for a Pod whose callers may not know yet that it has left its registries.
const mayUse = "; callers may still use it"

// underWay is what is known of the requests of a Pod that callers no longer choose; empty while it is not asked.
func underWay(h *regplan.Hold) string {
	switch {
	case h.Free.IsZero():
		return ""
	case h.UnderWay == nil:
		return "; requests may be under way"
	case *h.UnderWay == 0:
		return "; nothing is under way any more"
	}
	return "; " + regplan.Requests(*h.UnderWay) + " under way"
}

func what(h *regplan.Hold) string {
	from := cmp.Or(strings.Join(h.Registries, ", "), "its registries")
	switch h.Gate {
	case regplan.GateCreated, regplan.GatePreNormal, regplan.GateUpdated, regplan.GateJoining:
		return "waits to be listed by " + from
	case regplan.GateRequested:
		by := ", as " + userOf(h.By) + " asked"
		if !h.LetGo.IsZero() {
			by += ", and goes by " + h.LetGo.UTC().Format(time.RFC3339) + " at the latest"
		}
		if !h.Until.IsZero() {
			return "has left " + from + by + mayUse
		}
		if !h.Free.IsZero() {
			return "has left " + from + by + underWay(h)
		}
		return "leaves " + from + " before it is deleted" + by
	case regplan.GateDeletion:
		return "is deleted, and stays until " + from + " no longer lists it"
	}
	if !h.Until.IsZero() {
		return "has left " + from + mayUse
	}
	if !h.Free.IsZero() {
		return "has left " + from + underWay(h)
	}
	return "leaves " + from
}

// userOf returns a user's name for people.
func userOf(name string) string { return strings.TrimPrefix(name, "system:serviceaccount:") }

// foreignFinalizers adds the finalizers of a terminating Pod that belong to no controller known here.
func (w *waiter) foreignFinalizers() {
	if w.pod.DeletionTimestamp == nil {
		return
	}
	for _, key := range w.pod.Finalizers {
		if !w.has(key) {
			w.unanswered("is deleted, and stays until somebody removes the finalizer "+key, "", key, w.pod.DeletionTimestamp.Time)
		}
	}
}

// pull reports whether the Pod is a pull Pod, and adds how far it is.
func (w *waiter) pull() bool {
	if w.pod.Labels[apps.LabelPullsFor] == "" {
		return false
	}
	by := setplan.PulledBy(w.pod)
	state, reason, message := setplan.PullOf(w.pod)
	one := Wait{Since: w.pod.CreationTimestamp.Time, Next: w.command("describe pod %s", w.pod.Name)}
	switch state {
	case setplan.Pulling:
		one.What = fmt.Sprintf("waits for node %s to pull image %s, so that Pods there can be updated", by.Node, by.Image)
	case setplan.PullFails:
		w.trouble = true
		one.What = fmt.Sprintf("waits for node %s, which cannot pull image %s: %s: %s", by.Node, by.Image, reason, message)
	case setplan.PullRejected:
		one.What = fmt.Sprintf("was rejected by node %s, so no Pod waits for image %s there: %s: %s", by.Node, by.Image, reason, message)
	case setplan.PullExpired:
		one.What = fmt.Sprintf("did not get image %s onto node %s in its time; another one follows", by.Image, by.Node)
	case setplan.Pulled:
		one.What, one.Next = fmt.Sprintf("stays until no Pod on node %s waits for image %s", by.Node, by.Image), ""
	}
	w.out = append(w.out, one)
	return true
}

// lacksImage adds the wait of an old Pod that stays in service while its node pulls an image.
func (w *waiter) lacksImage() {
	if w.Set == nil || revision.Same(setplan.RevisionOf(w.pod), w.Set.Status.UpdateRevision) {
		return
	}
	for _, pull := range w.Pulls {
		by := setplan.PulledBy(pull)
		state, reason, message := setplan.PullOf(pull)
		if by.Node != w.pod.Spec.NodeName || state != setplan.Pulling && state != setplan.PullFails {
			continue
		}
		one := Wait{
			What: fmt.Sprintf("stays in service until node %s has image %s", by.Node, by.Image), Gate: setplan.GateImage,
			Since: pull.CreationTimestamp.Time, Next: w.command("describe pod %s", pull.Name),
		}
		if state == setplan.PullFails {
			w.trouble = true
			one.What = fmt.Sprintf("stays in service: node %s cannot pull image %s: %s: %s", by.Node, by.Image, reason, message)
		}
		w.out = append(w.out, one)
	}
}

// nodeComes is how long a Pod may wait for a node, which an autoscaler may have to add, before that
// counts as trouble.
const nodeComes = 2 * time.Minute

// overdue is how much longer than its grace period a Pod may take to end before its node counts as
// down.
const overdue = 30 * time.Second

// ends adds the wait of a terminating Pod that no finalizer holds.
func (w *waiter) ends() {
	if w.pod.DeletionTimestamp == nil || len(w.out) > 0 {
		return
	}
	node, until := w.pod.Spec.NodeName, w.pod.DeletionTimestamp.Time
	one := Wait{What: fmt.Sprintf("is terminating on node %s", node), Since: podread.DeletedSince(w.pod), Until: until}
	if w.Now.After(until.Add(overdue)) {
		w.trouble, one.Until, one.Deadline = true, time.Time{}, until
		one.What = fmt.Sprintf("is terminating, and node %s may be silent", node)
		one.Next = "kubectl describe node " + node
	}
	w.out = append(w.out, one)
}

// updateRefused adds the wait of a Pod whose update the controller has tried, and the API server
// refuses.
func (w *waiter) updateRefused() {
	if w.Set == nil {
		return
	}
	c := w.Set.Status.Condition(apps.ConditionFailedUpdate)
	if c == nil || c.Status != corev1.ConditionTrue || c.Reason != setplan.ProblemUpdateRefused || !strings.Contains(c.Message, " Pod "+w.pod.Name+" ") {
		return
	}
	w.trouble = true
	w.out = append(w.out, Wait{
		What: "is not updated: " + c.Message, Gate: setplan.GateUpdate, Since: c.LastTransitionTime.Time, Next: w.command("usher undo clone/%s", w.Set.Name),
	})
}

// notReady adds why a Pod without other waits is not ready.
func (w *waiter) notReady() {
	if podread.IsTrue(w.pod, corev1.PodReady) || w.pod.Status.Phase == corev1.PodSucceeded {
		return
	}
	one := Wait{What: "is not ready yet", Next: w.command("describe pod %s", w.pod.Name), Since: podread.Since(w.pod, corev1.PodReady)}
	container := list.Find(containerStatuses(w.pod), func(c *corev1.ContainerStatus) bool { return c.State.Waiting != nil })
	switch {
	case w.pod.Status.Phase == corev1.PodFailed:
		one.What = strings.TrimSpace("has failed: " + w.pod.Status.Reason + " " + w.pod.Status.Message)
		w.trouble = true
	case noNode(w.pod) != nil: // unscheduled reports it
		return
	case launch.Of(w.pod) != nil:
		one.What = launch.Of(w.pod).String()
	case container != nil:
		one.What = fmt.Sprintf("waits for its container %s: %s", container.Name, container.State.Waiting.Reason)
		w.trouble = setplan.Persistent(container.State.Waiting)
	default:
		if _, why := regplan.Ready(w.pod); why != "" {
			one.What = "is not ready: " + why
		} else if regplan.HasGate(w.pod) && !podread.IsTrue(w.pod, usherv1alpha1.ConditionRegistered) {
			w.closedGate(&one)
		}
	}
	w.out = append(w.out, one)
}

// unscheduled reports whether the Pod has no node, and adds why, before the hooks that hold the Pod:
// none of them can be answered before it runs.
func (w *waiter) unscheduled() bool {
	c := noNode(w.pod)
	if c == nil || w.pod.DeletionTimestamp != nil || w.pod.Status.Phase == corev1.PodFailed {
		return false
	}
	w.trouble = w.trouble || noNodeComes(w.Now, w.pod)
	w.out = slices.Insert(w.out, 0, Wait{
		What: hasNoNode + ": " + c.Message, Since: c.LastTransitionTime.Time, Next: w.command("describe pod %s", w.pod.Name)})
	return true
}

const hasNoNode = "has no node"

// noNode returns the condition that says why a Pod has no node; nil if it has one.
func noNode(pod *corev1.Pod) *corev1.PodCondition {
	if c := podread.Condition(pod, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
		return c
	}
	return nil
}

// noNodeComes reports whether the scheduler has found no node for a Pod for long.
func noNodeComes(now time.Time, pod *corev1.Pod) bool {
	c := noNode(pod)
	return c != nil && c.Reason == corev1.PodReasonUnschedulable && now.Sub(c.LastTransitionTime.Time) >= nodeComes
}

// condition adds the wait of a Pod's condition to the Pod's first wait.
func (w *waiter) condition(c *corev1.PodCondition) {
	_, detail, found := strings.Cut(c.Message, ": ")
	if !found {
		detail = c.Message
	}
	if regplan.SaysUnlisted(c) {
		w.unlisted(c)
		return
	}
	if regplan.Reason(c.Reason) == regplan.ReasonGateMissing {
		w.gateMissing(c, detail)
		return
	}
	switch {
	case len(w.out) == 0:
		w.out = append(w.out, joins(c))
	case w.opens:
		w.out[0].What = cmp.Or(joins(c).What, w.out[0].What) // the gate is not the reason
	}
	first, reason := &w.out[0], regplan.Reason(c.Reason)
	if slices.Contains(refusedKeys, reason) { // it no longer waits for a registry
		first.What, w.trouble = detail, true
		return
	}
	first.What = strings.TrimPrefix(first.What+": "+detail, ": ")
	w.trouble = w.trouble || slices.Contains(needSomebody, reason)
	first.Next = cmp.Or(first.Next, w.remedy(c))
	if first.Gate == string(regplan.GateRequested) && first.Until.IsZero() && first.Instead == "" {
		first.Instead = w.command("annotate pod %s %s=true", w.pod.Name, usherv1alpha1.AnnotationSkipDrain) +
			", and delete it again: callers are still sent to it, and requests are lost"
	}
}

var (
	// refusedKeys are the reasons of a hook that Usher cannot answer.
	refusedKeys = []regplan.Reason{regplan.ReasonKeyRefused, regplan.ReasonKeyNotAllowed}
	// needSomebody are the reasons of waits that do not end by themselves.
	needSomebody = []regplan.Reason{
		regplan.ReasonRegistryRefuses, regplan.ReasonClusterCopied, regplan.ReasonRegistryNotFound, regplan.ReasonRegistryNotAllowed,
		regplan.ReasonServiceTaken, regplan.ReasonServiceNotAllowed, regplan.ReasonRegistryFull,
		regplan.ReasonForeignEntry, regplan.ReasonPortNotFound, regplan.ReasonAddressNotFound,
		regplan.ReasonLabelUnusable, regplan.ReasonUnderWayUnknown, regplan.ReasonDuplicate,
		regplan.ReasonAddressShared, regplan.ReasonRegistryUnsuited,
	}
)

// remedy returns the command that shows why a registry does not answer, as the Pod's condition says, or
// that opens what has to be corrected; empty if there is nothing to correct.
func (w *waiter) remedy(c *corev1.PodCondition) string {
	name, _, _ := regplan.Reported(c)
	switch regplan.Reason(c.Reason) {
	case regplan.ReasonRegistryNotFound:
		return "kubectl get registries"
	case regplan.ReasonRegistryUnavailable, regplan.ReasonRegistryRefuses, regplan.ReasonClusterCopied,
		regplan.ReasonRegistryNotAllowed, regplan.ReasonRegistryFull:
		if name == "" {
			return "kubectl get registries"
		}
		return fmt.Sprintf("kubectl get registry %s -o yaml", name)
	case regplan.ReasonNotRegistered, regplan.ReasonNotInService:
		return w.command("logs %s", w.pod.Name)
	case regplan.ReasonForeignEntry, regplan.ReasonServiceTaken, regplan.ReasonServiceNotAllowed, regplan.ReasonPortNotFound,
		regplan.ReasonAddressNotFound, regplan.ReasonDuplicate:
		for _, r := range w.Registrations {
			if r.Selects(w.pod.Labels) && (name == "" || slices.Contains(r.Spec.Registries, name)) {
				return w.command("edit registration %s", r.Name)
			}
		}
	}
	return ""
}

// joins returns the wait of a Pod for a registry without a hook, as the operator reports it.
func joins(c *corev1.PodCondition) Wait {
	registry, since, _ := regplan.Reported(c)
	one := Wait{Since: cmp.Or(since, c.LastTransitionTime.Time)}
	if registry != "" {
		one.What, one.Registries = "waits for "+registry, []string{registry}
	}
	return one
}

// gateMissing adds that nothing takes the Pod out of its Service before it is deleted: its template
// lacks the gate.
func (w *waiter) gateMissing(c *corev1.PodCondition, detail string) {
	w.trouble = true
	if len(w.out) > 0 {
		w.out[0].What += ": " + detail
		return
	}
	w.out = append(w.out, Wait{What: strings.TrimPrefix(detail, "it "), Since: c.LastTransitionTime.Time})
}

// unlisted adds that a Service does not list the Pod although the Pod is Ready: it looks healthy, and
// no caller finds it.
func (w *waiter) unlisted(c *corev1.PodCondition) {
	registry, since, detail := regplan.Reported(c)
	one := Wait{What: "is ready, and callers do not find it: " + detail, Since: since, Registries: []string{registry}}
	for _, r := range w.Registrations {
		if r.Selects(w.pod.Labels) && slices.Contains(r.Spec.Registries, registry) {
			one.Registrations = append(one.Registrations, r.Name)
			one.Next = w.command("describe service %s", r.Spec.Instance.Service)
		}
	}
	w.trouble = true
	w.out = slices.Insert(w.out, 0, one)
}

// command returns a kubectl command in the workload's namespace. The flag comes last: kubectl accepts
// none before the name of a plugin.
func (w *waiter) command(format string, args ...any) string {
	return "kubectl " + fmt.Sprintf(format, args...) + " -n " + w.pod.Namespace
}
