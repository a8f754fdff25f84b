// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
)

// recordedEvents returns what a pass with these outcomes records, without the notes.
func recordedEvents(decided *plan.Plan, blocked []plan.Blocked, outcomes ...outcome) (reasons, notes []string) {
	recorder := events.NewFakeRecorder(100)
	r := &Reconciler{Events: recorder, reported: newReportedWaits()}
	r.recordEvents(&apps.CloneSet{}, decided, blocked, outcomes, now)
	close(recorder.Events)
	for line := range recorder.Events {
		kind, rest, _ := strings.Cut(line, " ")
		reason, note, _ := strings.Cut(rest, " ")
		reasons, notes = append(reasons, kind+" "+reason), append(notes, note)
	}
	return reasons, notes
}

// secret is what no event may carry.
const secret = "value-of-an-env-variable"

func podWithSecret(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Env: []corev1.EnvVar{{Name: "A", Value: secret}}}}},
	}
}

// TestEventReasons: each kind of action is reported with OpenKruise's reason, for success
// or failure; an action that only met a change is not reported.
func TestEventReasons(t *testing.T) {
	broken := errors.New("no")
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "a", broken)
	tests := []struct {
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
		{plan.Action{Verb: plan.Move, Reason: plan.ReasonConditions}, nil, nil},
		{plan.Action{Verb: plan.Move, Reason: plan.ReasonConditions}, broken, []string{"Warning FailedUpdatePod"}},
		{plan.Action{Verb: plan.Update, Reason: plan.ReasonInPlace}, conflict, nil},
	}
	for _, test := range tests {
		t.Run(fmt.Sprint(test.action.Verb, test.action.Reason, test.err), func(t *testing.T) {
			test.action.Pod = podWithSecret("web-a")
			reasons, notes := recordedEvents(&plan.Plan{}, nil, outcome{action: test.action, pod: test.action.Pod, err: test.err})
			if !slices.Equal(reasons, test.want) {
				t.Errorf("events %q, want %q", reasons, test.want)
			}
			for _, note := range notes {
				if strings.Contains(note, secret) || !strings.Contains(note, "Pod web-a") {
					t.Errorf("note %q", note)
				}
			}
		})
	}
}

// TestEventsOfAPlan: what the plan itself reports.
func TestEventsOfAPlan(t *testing.T) {
	waiting := func(since time.Duration) []plan.Blocked {
		return []plan.Blocked{{Pod: "web-a", Gate: "preDelete", State: apps.StatePreparingDelete, Keys: []string{"k"}, Since: now.Add(-since)}}
	}
	tests := []struct {
		name    string
		plan    plan.Plan
		blocked []plan.Blocked
		want    []string
	}{
		{"nothing", plan.Plan{}, nil, nil},
		{"bounded", plan.Plan{ScaleUpLimited: 3}, nil, []string{"Warning ScaleUpLimited"}},
		{"a problem", plan.Plan{Problems: []plan.Problem{{Reason: plan.ProblemNoSuchPod, Message: "m"}}}, nil, []string{"Warning PodsToDeleteUnknown"}},
		{"a short wait", plan.Plan{}, waiting(longWait - time.Second), nil},
		{"a long wait", plan.Plan{}, waiting(longWait), []string{"Normal Blocked"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if reasons, _ := recordedEvents(&test.plan, test.blocked); !slices.Equal(reasons, test.want) {
				t.Errorf("events %q, want %q", reasons, test.want)
			}
		})
	}
}

// TestManyPodsAreOneEvent: an event names only a few Pods, however many there are.
func TestManyPodsAreOneEvent(t *testing.T) {
	var outcomes []outcome
	for i := range 1000 {
		pod := podWithSecret(fmt.Sprintf("web-%04d", i))
		outcomes = append(outcomes, outcome{action: plan.Action{Verb: plan.Create, Reason: plan.ReasonScaleOut}, pod: pod})
	}
	reasons, notes := recordedEvents(&plan.Plan{}, nil, outcomes...)
	if !slices.Equal(reasons, []string{"Normal SuccessfulCreate"}) {
		t.Fatalf("events %q", reasons)
	}
	if !strings.Contains(notes[0], "1000 Pods: web-0000, ") || !strings.HasSuffix(notes[0], "and 992 more (ScaleOut)") {
		t.Errorf("note %q", notes[0])
	}
}
