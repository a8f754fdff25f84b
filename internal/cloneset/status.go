// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/printable"
)

// Reasons of conditions.
const (
	// ReasonSpecInvalid: a field that admission should have refused.
	ReasonSpecInvalid = "SpecInvalid"
	// ReasonRevisionUnusable: no ControllerRevision can hold the template.
	ReasonRevisionUnusable = "RevisionUnusable"
	// ReasonWriteFailed: the API server refused a write.
	ReasonWriteFailed = "WriteFailed"
	// ReasonWaitingForHook: Pods wait at a gate.
	ReasonWaitingForHook = "WaitingForHook"
	// ReasonWaitingForContainer: containers wait for others of a higher launch priority.
	ReasonWaitingForContainer = "WaitingForContainer"
	// ReasonContainerStuck: containers of the update revision cannot start, or exit again
	// and again.
	ReasonContainerStuck = "ContainerStuck"
	// ReasonWaitingForImage: Pods stay in service until their node has the new image.
	ReasonWaitingForImage = "WaitingForImage"
	// ReasonWaitingForNode: the scheduler finds no node for Pods.
	ReasonWaitingForNode = "WaitingForNode"
	// ReasonWaitingForGate: the containers of Pods are ready, and readiness gates of others are not set.
	ReasonWaitingForGate = "WaitingForReadinessGate"
	// ReasonWaitingForStart: Pods have a node, and are not ready after a minute.
	ReasonWaitingForStart = "WaitingForStart"
	// ReasonWaitingForEnd: Pods are still there a minute after they were deleted.
	ReasonWaitingForEnd = "WaitingForEnd"
	// ReasonDeletionDeferred: the API server asks to wait before Pods are deleted.
	ReasonDeletionDeferred = "DeletionDeferred"
)

// findings are the conditions that a pass found: those that are missing are False.
type findings map[apps.CloneSetConditionType]plan.Problem

// find derives the conditions from a plan, its outcomes, and the waiting Pods.
func find(p *plan.Plan, blocked []plan.Blocked, outcomes []outcome) findings {
	f := findings{apps.ConditionBlocked: findBlocked(blocked)}
	for _, problem := range p.Problems {
		if problem.Reason != plan.ProblemNoSuchPod && problem.Reason != plan.ProblemPodsFail {
			f[apps.ConditionFailedUpdate] = problem
		}
		if slices.Contains([]string{plan.ProblemTemplate, plan.ProblemClaims, plan.ProblemNoSuchPod, plan.ProblemPodsFail}, problem.Reason) {
			f[apps.ConditionFailedScale] = problem
		}
	}
	for _, o := range outcomes {
		if !o.failed() {
			continue
		}
		kind, failure := apps.ConditionFailedUpdate, plan.Problem{Reason: ReasonWriteFailed, Message: o.err.Error()}
		if resize, ok := errors.AsType[*resizeRefusal](o.err); ok {
			failure = plan.Problem{Reason: plan.ProblemResize, Message: resize.Error()}
		}
		if slices.Contains([]plan.Verb{plan.Create, plan.Delete, plan.Discard, plan.Provide}, o.action.Verb) {
			kind = apps.ConditionFailedScale
		}
		f[kind] = failure
	}
	return f
}

// findBlocked names what the set waits for: the Pod that has waited longest, and how many
// others wait too.
func findBlocked(blocked []plan.Blocked) plan.Problem {
	if len(blocked) == 0 {
		return plan.Problem{}
	}
	message := blocked[0].String()
	if others := len(blocked) - 1; others > 0 {
		who, where := "1 other Pod waits", "at a gate"
		if others > 1 {
			who = fmt.Sprintf("%d other Pods wait", others)
		}
		if slices.ContainsFunc(blocked, func(b plan.Blocked) bool {
			return b.Stuck != nil || b.Failed != nil || b.Idle != nil || b.Deferral != nil || b.Image != nil || b.Trial != nil
		}) {
			where = "too"
		}
		message += fmt.Sprintf("; %s %s", who, where)
	}
	return plan.Problem{Reason: blockedReason(&blocked[0]), Message: message}
}

// idleReasons are those of waits that neither the set nor a hook ends, by gate.
var idleReasons = map[string]string{
	plan.GateScheduler: ReasonWaitingForNode, plan.GateReadiness: ReasonWaitingForGate,
	plan.GateStart: ReasonWaitingForStart, plan.GateEnd: ReasonWaitingForEnd,
}

func blockedReason(b *plan.Blocked) string {
	switch {
	case b.Batch != nil:
		return ReasonWaitingForContainer
	case b.Stuck != nil:
		return ReasonContainerStuck
	case b.Failed != nil:
		return plan.ProblemPodsFail
	case b.Idle != nil:
		return idleReasons[b.Gate]
	case b.Deferral != nil:
		return ReasonDeletionDeferred
	case b.Image != nil && b.Image.Fails():
		return plan.ReasonImagePullFails
	case b.Image != nil:
		return ReasonWaitingForImage
	case b.Trial != nil:
		return plan.ReasonUpdateRefused
	}
	return ReasonWaitingForHook
}

// nextStatus returns the status that a pass found, and when time alone changes it; zero
// if it does not.
func nextStatus(set *apps.CloneSet, s *plan.Snapshot, counts plan.Counts, known *revisions, f findings) (apps.CloneSetStatus, time.Time) {
	next := *set.Status.DeepCopy()
	next.ObservedGeneration = set.Generation
	next.Replicas, next.ReadyReplicas, next.AvailableReplicas = int32(counts.Replicas), int32(counts.Ready), int32(counts.Available)
	next.UpdatedReplicas, next.UpdatedReadyReplicas = int32(counts.Updated), int32(counts.UpdatedReady)
	next.UpdatedAvailableReplicas, next.ExpectedUpdatedReplicas = int32(counts.UpdatedAvailable), int32(counts.ExpectedUpdated)
	next.UpdateRevision = known.update.Name
	next.CurrentRevision = known.current.Name
	if counts.RolledOut {
		next.CurrentRevision = known.update.Name
	}
	next.CollisionCount = &known.collisions
	next.ScaleReplicas, next.LabelSelector = int32(counts.Scaled), scaleSelector(set, counts.Uncounted)
	for _, kind := range []apps.CloneSetConditionType{apps.ConditionFailedScale, apps.ConditionFailedUpdate, apps.ConditionBlocked} {
		setCondition(&next, kind, f[kind], s.Now)
	}
	return next, setProgress(set, s, &next)
}

// scaleSelector selects the Pods that an autoscaler is to count: those of the set, except in these states.
// Of a selector that is not valid, it returns the last one.
func scaleSelector(set *apps.CloneSet, uncounted []apps.LifecycleState) string {
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector.AsMeta())
	if err != nil {
		return set.Status.LabelSelector
	}
	if len(uncounted) > 0 {
		states := list.Map(uncounted, func(state apps.LifecycleState) string { return string(state) })
		if except, err := labels.NewRequirement(apps.LabelLifecycleState, selection.NotIn, states); err == nil {
			selector = selector.Add(*except)
		}
	}
	return selector.String()
}

// setCondition is the one place where a condition changes. A condition that was never True is left out;
// one that was True becomes False.
func setCondition(status *apps.CloneSetStatus, kind apps.CloneSetConditionType, found plan.Problem, now time.Time) {
	value := corev1.ConditionTrue
	if found.Reason == "" {
		value = corev1.ConditionFalse
	}
	if status.Condition(kind) == nil && value == corev1.ConditionFalse {
		return
	}
	found, c := fit(found), conditionOf(status, kind)
	if c.Status == value && c.Reason == found.Reason && c.Message == found.Message {
		return
	}
	if c.Status != value {
		c.LastTransitionTime = metav1.NewTime(now)
	}
	c.Status, c.Reason, c.Message, c.LastUpdateTime = value, found.Reason, found.Message, metav1.NewTime(now)
}

// maxMessage bounds the message of a condition, in bytes. The API server takes 32 KiB.
const maxMessage = 4 << 10

// fit returns a finding whose message is safe and short enough for a status. Parts of some messages
// come from others, such as an admission webhook that refuses a Pod.
func fit(found plan.Problem) plan.Problem {
	found.Message = printable.Line(found.Message)
	if len(found.Message) > maxMessage {
		found.Message = strings.ToValidUTF8(found.Message[:maxMessage], "")
	}
	return found
}

// holdsFinding reports whether a condition already says this.
func holdsFinding(status *apps.CloneSetStatus, kind apps.CloneSetConditionType, found plan.Problem) bool {
	found, c := fit(found), status.Condition(kind)
	return c != nil && c.Reason == found.Reason && c.Message == found.Message
}

// conditionOf returns the condition to write to, new if there was none.
func conditionOf(status *apps.CloneSetStatus, kind apps.CloneSetConditionType) *apps.CloneSetCondition {
	if status.Condition(kind) == nil {
		status.Conditions = append(status.Conditions, apps.CloneSetCondition{Type: kind})
		slices.SortFunc(status.Conditions, func(a, b apps.CloneSetCondition) int { return strings.Compare(string(a.Type), string(b.Type)) })
	}
	return status.Condition(kind)
}

const (
	// countersPerWrite bounds by how much the counters may lag while a rollout is in motion, as a share
	// of the Pods. A status write costs the API server as much as three Pod writes.
	countersPerWrite = 50 // one in fifty
	// reportEvery bounds for how long they may lag. In a small set, where each Pod exceeds that share,
	// it is the only bound.
	reportEvery = 2 * time.Second
	// beginWithin is how late the beginning of a rollout is written at most, however many sets report.
	beginWithin = 10 * time.Second
	// progressPerSecond and progressBurst limit status writes that report only progress, over all sets:
	// many small sets would take the API server's time from their Pods.
	progressPerSecond, progressBurst = 2, 10
)

// status is the report of a pass on a set.
type status struct {
	next    apps.CloneSetStatus
	blocked []plan.Blocked
	// idle means that nothing was to be done and nothing is outstanding.
	idle bool
	// changesAt is when time alone changes what is to be reported; zero if it does not.
	changesAt time.Time
}

// settled means that nothing changes any more until an event.
func (s *status) settled() bool { return s.idle && s.next.AvailableReplicas == s.next.Replicas }

// statusOf describes a set as a pass left it.
func statusOf(after *observation, decided *plan.Plan, done *results) *status {
	counts, blocked := plan.Review(after.snapshot, decided.Waits...)
	found := find(decided, blocked, done.outcomes)
	next, deadline := nextStatus(after.set, after.snapshot, counts, after.revisions, found)
	return &status{
		next: next, blocked: blocked,
		// No Pod is terminating either.
		idle:      counts.RolledOut && len(done.actions) == 0 && counts.Replicas == len(after.snapshot.Pods),
		changesAt: list.Earliest(deadline, counts.ReportAt, longWaitAt(blocked, after.snapshot.Now)),
	}
}

// urgency is how soon a status has to be written.
type urgency int

const (
	// atOnce: in this pass.
	atOnce urgency = iota
	// asAllowed: in this pass, unless too many sets report their progress.
	asAllowed
	// later: in a later pass.
	later
)

// urgencyOf decides how soon a status is written in place of another one, and when the later pass is due that may
// write it; zero if an event causes that pass. settled means that nothing else is to be expected.
func urgencyOf(
	kept *statusState, was, next *apps.CloneSetStatus, outcomes []outcome, settled bool, now time.Time,
) (urgency, time.Time) {
	begins, due := beginsRollout(was, next), kept.lastStatus.Add(reportEvery)
	switch {
	case canWait(was, next, outcomes):
		return later, time.Time{}
	case settled, !onlyProgress(was, next), begins && !now.Before(kept.deadline):
		return atOnce, time.Time{}
	case now.Before(due) && !begins:
		return later, due
	}
	return asAllowed, now.Add(reportEvery)
}

// beginsRollout reports whether a status is the first one for a changed spec.
func beginsRollout(was, next *apps.CloneSetStatus) bool {
	return was.ObservedGeneration != next.ObservedGeneration
}

// canWait reports whether the status may be left to the next pass: only counters changed,
// by a few in a large set, and the events of this pass's writes trigger the next one. A
// pass that finds nothing more to do always writes.
func canWait(was, next *apps.CloneSetStatus, outcomes []outcome) bool {
	if !slices.ContainsFunc(outcomes, func(o outcome) bool { return o.err == nil && !o.async }) {
		return false
	}
	before, after := counters(was), counters(next)
	for i := range before {
		if change := *after[i] - *before[i]; max(change, -change) > next.Replicas/countersPerWrite {
			return false
		}
	}
	return equality.Semantic.DeepEqual(withCounters(*was, next), *next)
}

// onlyProgress reports whether a status changes only by the beginning of a rollout or by Pods that change
// their state: the revisions, the counters, the Pods that an autoscaler counts, and the time of the last progress.
func onlyProgress(was, next *apps.CloneSetStatus) bool {
	same := withCounters(*was.DeepCopy(), next)
	same.ObservedGeneration, same.ExpectedUpdatedReplicas = next.ObservedGeneration, next.ExpectedUpdatedReplicas
	same.CurrentRevision, same.UpdateRevision, same.LabelSelector = next.CurrentRevision, next.UpdateRevision, next.LabelSelector
	if before, after := same.Condition(apps.ConditionProgressing), next.Condition(apps.ConditionProgressing); before != nil && after != nil {
		before.LastUpdateTime = after.LastUpdateTime
	}
	return equality.Semantic.DeepEqual(same, *next)
}

// counters returns the numbers of a status that change with its Pods.
func counters(s *apps.CloneSetStatus) []*int32 {
	return []*int32{
		&s.Replicas, &s.ReadyReplicas, &s.AvailableReplicas,
		&s.UpdatedReplicas, &s.UpdatedReadyReplicas, &s.UpdatedAvailableReplicas, &s.ScaleReplicas,
	}
}

// withCounters returns a status with the counters of another one.
func withCounters(s apps.CloneSetStatus, of *apps.CloneSetStatus) apps.CloneSetStatus {
	for i, counter := range counters(of) {
		*counters(&s)[i] = *counter
	}
	return s
}

// setProgress sets the condition Progressing, and returns when time alone changes it. A
// set without a deadline has no such condition.
func setProgress(set *apps.CloneSet, s *plan.Snapshot, next *apps.CloneSetStatus) time.Time {
	progress := plan.Assess(s, &set.Status, next)
	if progress.Reason == "" {
		next.Conditions = slices.DeleteFunc(next.Conditions, func(c apps.CloneSetCondition) bool { return c.Type == apps.ConditionProgressing })
		return time.Time{}
	}
	value := corev1.ConditionTrue
	if progress.Reason == plan.ProgressDeadlineExceeded {
		value = corev1.ConditionFalse
	}
	c := conditionOf(next, apps.ConditionProgressing)
	if c.Status != value {
		c.LastTransitionTime = metav1.NewTime(s.Now)
	}
	c.Status, c.Reason, c.Message = value, progress.Reason, progressMessage(progress.Reason, next.UpdateRevision)
	if c.LastUpdateTime.Unix() != progress.Since.Unix() {
		c.LastUpdateTime = metav1.NewTime(progress.Since)
	}
	return progress.Deadline
}

// progressMessage returns OpenKruise's text, letter for letter: scripts and dashboards compare it.
func progressMessage(reason, revision string) string {
	switch reason {
	case plan.ProgressAvailable:
		return "CloneSet is available"
	case plan.ProgressPaused:
		return "CloneSet is paused"
	case plan.ProgressPartitionAvailable:
		return "CloneSet has been paused due to partition ready"
	case plan.ProgressDeadlineExceeded:
		return fmt.Sprintf("CloneSet revision %s has timed out progressing", revision)
	}
	return "CloneSet is progressing"
}
