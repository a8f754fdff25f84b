// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/view"
	"github.com/usher-dev/usher/test/model"
)

// This file is about waits: a set short of its goal, on which nothing moves, reports what it waits for.

// ruleWaitsShown names the rule.
const ruleWaitsShown = "whoever looks at a set that stands still sees what it waits for"

// shownWithin is how long nothing may change before the set's status has to name the wait: the minute of a slow start, and
// time for the pass that notices it.
const shownWithin = time.Minute + 5*time.Second

// stillness is the observation of a set on which nothing moves.
type stillness struct {
	// since is when an object of the set last changed, but for the set's status.
	since time.Time
	// judged means that the wait since then has been checked.
	judged bool
}

// moved records a commit. A change of the set's status is no progress: it only reports progress.
func (s *Simulation) moved(c *model.Commit) {
	old, wasSet := c.Old.(*apps.CloneSet)
	set, isSet := c.New.(*apps.CloneSet)
	if !wasSet || !isSet || old.Generation != set.Generation {
		s.still = stillness{since: c.At}
	}
}

// judgeStillness checks a set on which nothing has moved for shownWithin, before the time jumps past
// that moment.
func (s *Simulation) judgeStillness(next time.Time) {
	due := s.still.since.Add(shownWithin)
	if s.still.judged || next.Before(due) || !s.watched() {
		return
	}
	s.still.judged = true
	if set := s.Set(); set != nil {
		if what := s.hiddenWait(set, due); what != "" {
			s.World.fail(ruleWaitsShown, "nothing has changed for %s, and %s; %s", shownWithin, s.missing(), what)
		}
	}
}

// watched reports whether exactly one process works on the set, whose caches are up to date and whose
// writes succeed.
func (s *Simulation) watched() bool {
	alive := slices.DeleteFunc(slices.Clone(s.processes), func(p *Process) bool { return p.dead })
	if len(alive) != 1 || s.trouble != "" {
		return false
	}
	p := alive[0]
	behind := func(kind model.Kind) bool {
		return p.caches[kind].Applied < len(s.Server.Log[kind]) || p.caches[kind].handlerDue.After(s.World.now())
	}
	return !slices.ContainsFunc(kinds, behind) && !p.queue.waiting && !p.queue.busy && p.queue.failures == 0
}

// hiddenWait finds a wait that users cannot see: the text says whether the set's conditions or the
// plugin lacks it. It is "" if both name the wait, or if the set waits for nothing. The controller
// writes no status of a deleted set whose Pods the garbage collector deletes.
func (s *Simulation) hiddenWait(set *apps.CloneSet, now time.Time) string {
	if s.missing() == "" || set.Spec.UpdateStrategy.Paused {
		return ""
	}
	if how, _ := plan.DeletionOf(set); how != plan.LetGo && !saysWait(set) {
		return fmt.Sprintf("no condition says why: %v", set.Status.Conditions)
	}
	var all []metav1.Object
	for _, kind := range kinds {
		for _, object := range s.Server.Objects[kind] {
			all = append(all, object)
		}
	}
	seen := view.Of(view.Gather(now, set, all))
	waits := slices.ContainsFunc(seen.Members, func(pod view.Pod) bool { return len(pod.Waits) > 0 })
	if !waits && len(seen.Problems) == 0 {
		return "the plugin shows no wait and no problem"
	}
	return ""
}

// saysWait reports whether a condition of the set says what it waits for.
func saysWait(set *apps.CloneSet) bool {
	reporting := []apps.CloneSetConditionType{apps.ConditionBlocked, apps.ConditionFailedScale, apps.ConditionFailedUpdate}
	return slices.ContainsFunc(reporting, func(kind apps.CloneSetConditionType) bool {
		c := set.Status.Condition(kind)
		return c != nil && c.Status == corev1.ConditionTrue && c.Message != ""
	})
}
