// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/list"
)

// recordEvents records the events of a pass, except those of its writes. An event holds only a
// Pod's name; the recorder folds repeated events into one.
func (r *Reconciler) recordEvents(set *apps.CloneSet, decided *plan.Plan, blocked []plan.Blocked, now time.Time) {
	last, refused := &r.passState(keyOf(set)).lastEvents, ""
	for _, problem := range decided.Problems {
		if problem.Reason == plan.ProblemUpdateRefused {
			if refused = problem.Message; refused == last.updateRefused {
				continue
			}
		}
		r.warn(set, problem.Reason, "Plan", "%s", problem.Message)
	}
	last.updateRefused = refused
	if decided.ScaleUpLimited > 0 {
		r.warn(set, "ScaleUpLimited", "Create",
			"scaleStrategy.maxUnavailable keeps %s from being created until others are available", list.Count(decided.ScaleUpLimited, "Pod"))
	}
	r.recordBlocked(set, blocked, now)
}

// recordProgress records once that a rollout has stalled for too long. The condition has
// OpenKruise's text, which programs compare.
func (r *Reconciler) recordProgress(set *apps.CloneSet, next *apps.CloneSetStatus) {
	if plan.LastProgress(next).Reason != plan.ProgressDeadlineExceeded || plan.LastProgress(&set.Status).Reason == plan.ProgressDeadlineExceeded {
		return
	}
	r.warn(set, plan.ProgressDeadlineExceeded, "Progress",
		"the rollout of revision %s has made no progress for %d s (progressDeadlineSeconds); it continues, and the conditions Blocked and FailedUpdate show what it waits for",
		next.UpdateRevision, *set.Spec.ProgressDeadlineSeconds)
}

// recordBlocked records one event per long wait, for the Pod that has waited longest.
func (r *Reconciler) recordBlocked(set *apps.CloneSet, blocked []plan.Blocked, now time.Time) {
	if len(blocked) == 0 || blocked[0].Trial != nil || blocked[0].Since.IsZero() || !longWaitAt(blocked, now).IsZero() {
		return
	}
	record := r.normal
	wait, trouble := identityOf(&blocked[0])
	if trouble {
		record = r.warn
	}
	if last := &r.passState(keyOf(set)).lastEvents; last.wait != wait {
		last.wait = wait
		record(set, string(apps.ConditionBlocked), "Wait", "%s", findBlocked(blocked).Message)
	}
}

// identityOf returns a text that distinguishes a wait from others and does not change over time.
// trouble means that the wait does not end by itself.
func identityOf(b *plan.Blocked) (identity string, trouble bool) {
	switch {
	case b.Stuck != nil: // a kubelet may alternate between reasons
		return fmt.Sprint(b.Pod, b.Stuck.Container, b.Stuck.Image, b.Since), true
	case b.Image != nil:
		return fmt.Sprint(b.Pod, *b.Image, b.Since), b.Image.Fails()
	case b.Failed != nil:
		return b.String(), true
	case b.Idle != nil, b.Deferral != nil: // the messages of the scheduler and of the API server
		return fmt.Sprint(b.Pod, b.Gate, b.Since), false
	}
	return b.String(), false
}

// longWait is how long a Pod waits before an event reports it. The condition reports it
// at once.
const longWait = 10 * time.Second

// longWaitAt returns when the longest wait becomes a long one; zero if no Pod waits, or if it is one
// already.
func longWaitAt(blocked []plan.Blocked, now time.Time) time.Time {
	if len(blocked) == 0 || blocked[0].Since.IsZero() || now.Sub(blocked[0].Since) >= longWait {
		return time.Time{}
	}
	return blocked[0].Since.Add(longWait)
}

// eventNames are the events of an action, for success and for failure. Success without an
// event is not reported.
type eventNames struct{ done, failed, verb string }

func eventOf(a plan.Action) eventNames {
	switch {
	case a.Verb == plan.Create:
		return eventNames{"SuccessfulCreate", "FailedCreate", "create"}
	case a.Reason == plan.ReasonNodeGoes && a.Verb == plan.Move:
		return eventNames{"PodLeavesNode", "FailedUpdatePod", "replace"}
	case a.Reason == plan.ReasonRecreate:
		return eventNames{"SuccessfulUpdatePodReCreate", "FailedUpdatePodReCreate", "recreate"}
	case a.Verb == plan.Discard:
		return eventNames{"", "FailedDelete", "delete"}
	case a.Verb == plan.Provide:
		return eventNames{"", "FailedCreate", "create"}
	case a.Verb == plan.Delete:
		return eventNames{"SuccessfulDelete", "FailedDelete", "delete"}
	case a.Verb == plan.Update || a.Verb == plan.Continue:
		return eventNames{"SuccessfulUpdatePodInPlace", "FailedUpdatePodInPlace", "update in place"}
	}
	return eventNames{"", "FailedUpdatePod", "change"}
}

// eventGroup groups the outcomes of one pass that share an event.
type eventGroup struct {
	eventNames
	verb   plan.Verb
	reason string
	pods   []*corev1.Pod
}

// recordOutcomes records the outcomes of the actions: one event per failure, and one for
// all Pods with the same action and reason, so that a set does not cost one event per Pod.
func (r *Reconciler) recordOutcomes(set *apps.CloneSet, outcomes []outcome) {
	var all []*eventGroup
	for _, o := range outcomes {
		event := eventOf(o.action)
		switch {
		case o.failed():
			r.warn(set, event.failed, string(o.action.Verb), "%s %s: %v", event.verb, nameOf(o), o.err)
		case o.err != nil || event.done == "" || o.pod == nil:
		default:
			why := cmp.Or(o.action.Because, o.action.Reason)
			i := slices.IndexFunc(all, func(n *eventGroup) bool { return n.eventNames == event && n.reason == why })
			if i < 0 {
				i = len(all)
				all = append(all, &eventGroup{eventNames: event, verb: o.action.Verb, reason: why})
			}
			all[i].pods = append(all[i].pods, o.pod)
		}
	}
	for _, n := range all {
		// A Pod is the related object, so that events of two passes do not fold into one.
		// The event holds a reference to it, not the Pod.
		r.Events.Eventf(set, n.pods[0], corev1.EventTypeNormal, n.done, string(n.verb), "%s %s (%s)", n.eventNames.verb, names(n.pods), n.reason)
	}
}

func nameOf(o outcome) string {
	switch {
	case o.action.Verb == plan.Discard || o.action.Verb == plan.Provide:
		return "the claims of instance " + o.action.Instance
	case o.pod == nil:
		return "a Pod"
	}
	return "Pod " + o.pod.Name
}

// maxNames is how many Pods an event names.
const maxNames = 8

// names lists Pods for people.
func names(pods []*corev1.Pod) string {
	if len(pods) == 1 {
		return "Pod " + pods[0].Name
	}
	return fmt.Sprintf("%d Pods: %s", len(pods), list.Some(list.Map(pods, (*corev1.Pod).GetName), maxNames))
}

func (r *Reconciler) normal(set *apps.CloneSet, reason, action, note string, args ...any) {
	r.Events.Eventf(set, nil, corev1.EventTypeNormal, reason, action, note, args...)
}

func (r *Reconciler) warn(set *apps.CloneSet, reason, action, note string, args ...any) {
	r.Events.Eventf(set, nil, corev1.EventTypeWarning, reason, action, note, args...)
}

// rolloutLog records what was logged about a set: the beginning and end of its rollout, and every wait
// of a Pod. So a pass without changes logs nothing.
type rolloutLog struct {
	// revision is that of the last rollout.
	revision string
	// begun is when it began; zero if this process did not see it begin.
	begun time.Time
	ended bool
	// waits are the open waits, by Pod.
	waits map[string]plan.Blocked
}

// logPass logs what a pass has changed.
func (r *Reconciler) logPass(ctx context.Context, set *apps.CloneSet, next *apps.CloneSetStatus, blocked []plan.Blocked, outcomes []outcome, now time.Time) {
	logger := log.FromContext(ctx)
	logOutcomes(logger, outcomes)
	l := &r.passState(keyOf(set)).rollout
	rollout := set.DeletionTimestamp == nil
	if rollout {
		l.begin(logger, &set.Status, next, now)
	}
	l.wait(logger, blocked, now)
	if rollout {
		l.end(logger, next, now)
	}
}

// logOutcomes logs each action with its reason, and each failure.
func logOutcomes(logger logr.Logger, outcomes []outcome) {
	for _, o := range outcomes {
		if o.err == nil && !logger.V(1).Enabled() {
			continue
		}
		about := logger.WithValues("action", strings.ToLower(string(o.action.Verb)), "reason", o.action.Reason)
		add := func(key, value string) {
			if value != "" {
				about = about.WithValues(key, value)
			}
		}
		add("pod", ptr.Deref(o.pod, corev1.Pod{}).Name)
		add("revision", ptr.Deref(o.action.Revision, revision.Revision{}).Name)
		add("because", o.action.Because)
		add("state", string(o.action.To))
		switch {
		case o.err == nil:
			about.V(1).Info("Action done")
		case o.conflicted():
			about.V(1).Info("Action dropped: the Pod has changed", "cause", o.err.Error())
		case o.deferred() != nil:
			about.V(1).Info("Action deferred", "cause", o.err.Error())
		default:
			about.Error(o.err, "Action failed")
		}
	}
}

// begin logs that a rollout begins or continues, according to the status.
func (l *rolloutLog) begin(logger logr.Logger, was, is *apps.CloneSetStatus, now time.Time) {
	about := aboutRollout(logger, is)
	switch {
	case is.UpdateRevision != was.UpdateRevision && is.UpdateRevision != l.revision:
		*l = rolloutLog{revision: is.UpdateRevision, begun: now, waits: l.waits}
		about.Info("Rollout begins", "from", was.UpdateRevision)
	case is.UpdateRevision != l.revision: // this process has not seen it begin
		*l = rolloutLog{revision: is.UpdateRevision, ended: rolledOut(is), waits: l.waits}
		if !l.ended {
			about.Info("Rollout continues")
		}
	case l.ended && is.UpdatedReplicas < is.ExpectedUpdatedReplicas: // the partition has moved
		l.begun, l.ended = now, false
		about.Info("Rollout continues")
	}
}

// end logs that a rollout ends.
func (l *rolloutLog) end(logger logr.Logger, is *apps.CloneSetStatus, now time.Time) {
	if l.ended || !rolledOut(is) {
		return
	}
	l.ended = true
	about := aboutRollout(logger, is)
	if !l.begun.IsZero() {
		about = about.WithValues("took", now.Sub(l.begun).Round(time.Millisecond).String())
	}
	about.Info("Rollout ends")
}

// rolledOut reports whether as many Pods as the partition allows have the update revision, and all Pods
// are available.
func rolledOut(is *apps.CloneSetStatus) bool {
	return is.UpdatedAvailableReplicas >= is.ExpectedUpdatedReplicas && is.AvailableReplicas == is.Replicas
}

func aboutRollout(logger logr.Logger, is *apps.CloneSetStatus) logr.Logger {
	return logger.WithValues("revision", is.UpdateRevision, "replicas", is.Replicas,
		"updated", is.UpdatedReplicas, "wanted", is.ExpectedUpdatedReplicas, "available", is.AvailableReplicas)
}

// wait logs each wait of a Pod that begins or ends.
func (l *rolloutLog) wait(logger logr.Logger, blocked []plan.Blocked, now time.Time) {
	waits := make(map[string]plan.Blocked, len(blocked))
	for _, b := range blocked {
		waits[b.Pod] = b
		if was, ok := l.waits[b.Pod]; !ok || !sameWait(&was, &b) {
			logger.Info("Wait begins", waitOf(&b)...)
		}
	}
	for _, pod := range slices.Sorted(maps.Keys(l.waits)) {
		was, is := l.waits[pod], waits[pod]
		if sameWait(&was, &is) {
			continue
		}
		about := waitOf(&was)
		if !was.Since.IsZero() {
			about = append(about, "waited", now.Sub(was.Since).Round(time.Second).String())
		}
		logger.Info("Wait ends", about...)
	}
	l.waits = waits
}

// sameWait reports whether two waits of a Pod are the same.
func sameWait(a, b *plan.Blocked) bool {
	return a.Pod == b.Pod && a.Gate == b.Gate && a.State == b.State && slices.Equal(a.Keys, b.Keys)
}

// waitOf describes what a Pod waits for.
func waitOf(b *plan.Blocked) []any {
	about := []any{"pod", b.Pod, "state", b.State}
	switch {
	case b.Batch != nil:
		return append(about, "containers", b.Batch.Containers)
	case b.Stuck != nil:
		return append(about, "container", b.Stuck.Container, "image", b.Stuck.Image, "reason", b.Stuck.Reason)
	case b.Deferral != nil:
		return append(about, "gate", b.Gate, "message", b.Deferral.Message)
	case b.Trial != nil:
		return append(about, "gate", b.Gate, "message", b.Trial.Refused)
	case b.Failed != nil:
		return append(about, "reason", b.Failed.Reason, "message", b.Failed.Message)
	case b.Image != nil:
		return append(about, "image", b.Image.Image, "node", b.Image.Node, "reason", b.Image.Reason, "message", b.Image.Message)
	}
	return append(about, "gate", b.Gate, "keys", b.Keys)
}
