// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
)

// recordedEvents returns what a pass with these outcomes records.
func recordedEvents(t *testing.T, decided *plan.Plan, blocked []plan.Blocked, outcomes ...outcome) *recorder {
	r, events := reconcilerOn(server(t))
	r.recordEvents(web(), decided, blocked, outcomes, now)
	return events
}

// TestEventReasons: each kind of action is reported with OpenKruise's reason, for success
// or failure; an action that only met a change is not reported.
func TestEventReasons(t *testing.T) {
	broken := errors.New("no")
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "a", broken)
	for _, test := range []struct {
		action plan.Action
		err    error
		want   []string
	}{
		{plan.Action{Verb: plan.Create, Reason: plan.ReasonScaleOut}, nil, []string{"Normal SuccessfulCreate"}},
		{plan.Action{Verb: plan.Create, Reason: plan.ReasonScaleOut}, broken, []string{"Warning FailedCreate"}},
		{plan.Action{Verb: plan.Delete, Reason: plan.ReasonScaleIn}, nil, []string{"Normal SuccessfulDelete"}},
		{plan.Action{Verb: plan.Delete, Reason: plan.ReasonHookReleased}, broken, []string{"Warning FailedDelete"}},
		{plan.Action{Verb: plan.Update, Reason: plan.ReasonInPlace}, nil, []string{"Normal SuccessfulUpdatePodInPlace"}},
		{plan.Action{Verb: plan.Update, Reason: plan.ReasonInPlace}, broken, []string{"Warning FailedUpdatePodInPlace"}},
		{plan.Action{Verb: plan.Delete, Reason: plan.ReasonRecreate}, nil, []string{"Normal SuccessfulUpdatePodReCreate"}},
		{plan.Action{Verb: plan.Move, Reason: plan.ReasonRecreate}, nil, []string{"Normal SuccessfulUpdatePodReCreate"}},
		{plan.Action{Verb: plan.Delete, Reason: plan.ReasonRecreate}, broken, []string{"Warning FailedUpdatePodReCreate"}},
		{plan.Action{Verb: plan.Move, Reason: plan.ReasonNodeGoes, Because: "node n1 is cordoned"}, nil, []string{"Normal PodLeavesNode"}},
		{plan.Action{Verb: plan.Delete, Reason: plan.ReasonNodeGoes, Because: "node n1 is cordoned"}, nil, []string{"Normal SuccessfulDelete"}},
		{plan.Action{Verb: plan.Move, Reason: plan.ReasonConditions}, nil, nil},
		{plan.Action{Verb: plan.Move, Reason: plan.ReasonConditions}, broken, []string{"Warning FailedUpdatePod"}},
		{plan.Action{Verb: plan.Update, Reason: plan.ReasonInPlace}, conflict, nil},
	} {
		t.Run(fmt.Sprint(test.action.Verb, test.action.Reason, test.err), func(t *testing.T) {
			test.action.Pod = podWithSecret("web-a")
			events := recordedEvents(t, &plan.Plan{}, nil, outcome{action: test.action, pod: test.action.Pod, err: test.err})
			if because := test.action.Because; because != "" && !strings.Contains(strings.Join(events.notes, " "), "("+because+")") {
				t.Errorf("notes %q lack the cause", events.notes)
			}
			if !slices.Equal(events.reasons, test.want) {
				t.Errorf("events %q, want %q", events.reasons, test.want)
			}
			for _, note := range events.notes {
				if strings.Contains(note, secret) || !strings.Contains(note, "Pod web-a") {
					t.Errorf("note %q", note)
				}
			}
		})
	}
}

func atPreDelete(pod string, since time.Duration) []plan.Blocked {
	return []plan.Blocked{{Pod: pod, Gate: "preDelete", State: apps.StatePreparingDelete, Keys: []string{"k"}, Since: now.Add(-since)}}
}

// stuckPod is a Pod with a container that cannot start.
func stuckPod(reason string, since time.Duration) plan.Blocked {
	return plan.Blocked{
		Pod: "web-a", Gate: plan.GateContainer, State: apps.StateUpdating, Keys: []string{reason}, Since: now.Add(-since),
		Stuck: &plan.Stuck{Container: "main", Image: "web:v2", Reason: reason},
	}
}

// TestEventsOfAPlan: what the plan itself reports.
func TestEventsOfAPlan(t *testing.T) {
	for name, test := range map[string]struct {
		plan    plan.Plan
		blocked []plan.Blocked
		want    []string
	}{
		"nothing":           {},
		"bounded":           {plan: plan.Plan{ScaleUpLimited: 3}, want: []string{"Warning ScaleUpLimited"}},
		"a problem":         {plan: plan.Plan{Problems: []plan.Problem{{Reason: plan.ProblemNoSuchPod, Message: "m"}}}, want: []string{"Warning PodsToDeleteUnknown"}},
		"a short wait":      {blocked: atPreDelete("web-a", longWait-time.Second)},
		"a long wait":       {blocked: atPreDelete("web-a", longWait), want: []string{"Normal Blocked"}},
		"a stuck container": {blocked: []plan.Blocked{stuckPod("ImagePullBackOff", longWait)}, want: []string{"Warning Blocked"}},
	} {
		if events := recordedEvents(t, &test.plan, test.blocked); !slices.Equal(events.reasons, test.want) {
			t.Errorf("%s: events %q, want %q", name, events.reasons, test.want)
		}
	}
}

// TestBlockedIsReportedOnce: each wait causes one event, however many passes it lasts; for
// a stuck container, whatever reason the kubelet gives, until there is another image.
func TestBlockedIsReportedOnce(t *testing.T) {
	stuck := func(reason string, since time.Duration) []plan.Blocked {
		return []plan.Blocked{stuckPod(reason, since)}
	}
	other := stuck("ImagePullBackOff", longWait)
	other[0].Stuck.Image = "web:v3"
	r, events := reconcilerOn(server(t))
	for i, step := range []struct {
		blocked []plan.Blocked
		want    int // events so far
	}{
		{atPreDelete("a", longWait-time.Second), 0}, {atPreDelete("a", longWait), 1}, {atPreDelete("a", longWait), 1},
		{nil, 1}, {atPreDelete("b", longWait), 2}, {atPreDelete("b", longWait), 2}, {atPreDelete("b", longWait+time.Minute), 3},
		{stuck("ImagePullBackOff", longWait-time.Second), 3}, {stuck("ImagePullBackOff", longWait), 4}, {stuck("CrashLoopBackOff", longWait), 4}, {other, 5},
	} {
		if r.recordBlocked(web(), step.blocked, now); len(events.reasons) != step.want {
			t.Errorf("after pass %d: %d events, want %d", i+1, len(events.reasons), step.want)
		}
	}
}

// TestManyPodsAreOneEvent: an event names only a few Pods, however many there are.
func TestManyPodsAreOneEvent(t *testing.T) {
	var outcomes []outcome
	for i := range 1000 {
		pod := podWithSecret(fmt.Sprintf("web-%04d", i))
		outcomes = append(outcomes, outcome{action: plan.Action{Verb: plan.Create, Reason: plan.ReasonScaleOut}, pod: pod})
	}
	events := recordedEvents(t, &plan.Plan{}, nil, outcomes...)
	if !slices.Equal(events.reasons, []string{"Normal SuccessfulCreate"}) {
		t.Fatalf("events %q", events.reasons)
	}
	if !strings.Contains(events.notes[0], "1000 Pods: web-0000, ") || !strings.HasSuffix(events.notes[0], "and 992 more (ScaleOut)") {
		t.Errorf("note %q", events.notes[0])
	}
}

// TestStuckFinding: the condition has its own reason, and counts the others.
func TestStuckFinding(t *testing.T) {
	hook := plan.Blocked{Pod: "web-b", Gate: "preDelete", Keys: []string{"k"}, Since: now}
	got := findBlocked([]plan.Blocked{stuckPod("CrashLoopBackOff", time.Minute), hook})
	if got.reason != ReasonContainerStuck || !strings.Contains(got.message, "Pod web-a") || !strings.HasSuffix(got.message, "; 1 other Pod waits too") {
		t.Errorf("found %+v", got)
	}
	for message, blocked := range map[string][]plan.Blocked{"; 1 other Pod waits at a gate": {hook, hook}, "; 2 other Pods wait at a gate": {hook, hook, hook}} {
		if got := findBlocked(blocked); got.reason != ReasonWaitingForHook || !strings.HasSuffix(got.message, message) {
			t.Errorf("found %+v", got)
		}
	}
}
