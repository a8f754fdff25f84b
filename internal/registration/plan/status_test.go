// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
)

func statusOf(f *fixture) usherv1alpha1.RegistrationStatus {
	p := Make(f.Snapshot)
	return Status(p.Outcomes[0], p, f.Registries, f.Now)
}

func TestStatusCounts(t *testing.T) {
	f := newFixture()
	f.add("a", appsv1alpha1.StateNormal).registered("discovery")
	f.add("b", appsv1alpha1.StateNormal).finalizers(ours)
	f.add("c", appsv1alpha1.StateNormal).ready(false)
	f.add("d", appsv1alpha1.StatePreparingUpdate).finalizers(ours)
	f.add("e", appsv1alpha1.StateNormal).registered().terminating(0)
	f.add("f", appsv1alpha1.StateNormal).label("app", "other")
	have := statusOf(f)
	if have.Pods != 5 || have.Registered != 1 || have.Draining != 2 {
		t.Errorf("counts are %d pods, %d registered, %d draining; want 5, 1 and 2", have.Pods, have.Registered, have.Draining)
	}
}

type conditionCase struct {
	name     string
	given    func(*fixture)
	kind     string
	status   metav1.ConditionStatus
	reason   string
	mentions []string
}

func TestReadyAndWaiting(t *testing.T) {
	checkConditions(t, []conditionCase{
		{"all is well", func(*fixture) {}, usherv1alpha1.ConditionReady, "True", "Ready", nil},
		{"a registry is down", func(f *fixture) {
			f.Registries["discovery"] = RegistryState{Err: registry.Transient(errors.New("refused"))}
		}, usherv1alpha1.ConditionReady, "False", "RegistryUnavailable", []string{"discovery", "refused"}},
		{"a registry refuses", func(f *fixture) {
			f.Registries["discovery"] = RegistryState{Err: registry.Permanent(errors.New("wrong password"))}
		}, usherv1alpha1.ConditionReady, "False", "RegistryRefuses", []string{"discovery", "wrong password"}},
		{"no such registry", func(f *fixture) { delete(f.Registries, "discovery") },
			usherv1alpha1.ConditionReady, "False", "RegistryNotFound", []string{`"discovery"`, "create it"}},
		{"not for this namespace", func(f *fixture) { f.Registries["discovery"] = RegistryState{Denied: true} },
			usherv1alpha1.ConditionReady, "False", "RegistryNotAllowed", []string{"discovery", namespace}},
		{"a selector that cannot be read", func(f *fixture) {
			f.Registrations[0].Spec.Selector.MatchLabels["app"] = "no label!"
		}, usherv1alpha1.ConditionReady, "False", "InvalidSelector", []string{"spec.selector"}},
		{"nobody waits", func(f *fixture) { f.add("a", appsv1alpha1.StateNormal).registered("discovery") },
			usherv1alpha1.ConditionWaiting, "False", "NothingWaits", nil},
		{"a Pod that gets ready does not wait for a registry", func(f *fixture) {
			f.add("a", appsv1alpha1.StateNormal).label(keyCreated, "true").ready(false)
		}, usherv1alpha1.ConditionWaiting, "False", "NothingWaits", nil},
		{"a drain waits", func(f *fixture) {
			f.down("discovery")
			f.add("a", appsv1alpha1.StatePreparingUpdate).finalizers(ours)
		}, usherv1alpha1.ConditionWaiting, "True", "PodsWait",
			[]string{"a at inPlaceUpdate", keyInPlace, "since 2026-03-01T12:00:00Z", "discovery", "connection refused"}},
		{"a drain is late", func(f *fixture) {
			f.down("discovery")
			f.add("a", appsv1alpha1.StatePreparingUpdate).finalizers(ours).drained(GateInPlaceUpdate, time.Hour, nil)
		}, usherv1alpha1.ConditionWaiting, "True", "DeadlineExceeded", []string{"since 2026-03-01T11:00:00Z", "past its deadline"}},
	})
}

func TestHooksMatched(t *testing.T) {
	checkConditions(t, []conditionCase{
		{"hooks match", func(*fixture) {}, usherv1alpha1.ConditionHooksMatched, "True", "Matched", nil},
		{"there is no CloneSet", func(f *fixture) { f.CloneSets = nil },
			usherv1alpha1.ConditionHooksMatched, "Unknown", "NoCloneSet", nil},
		{"a hook that the CloneSet does not use", func(f *fixture) { f.lifecycle().PreDelete = nil },
			usherv1alpha1.ConditionHooksMatched, "False", "HookUnused",
			[]string{keyDelete, "CloneSet nginx", "spec.lifecycle.preDelete"}},
		{"a created hook that the template does not have", func(f *fixture) {
			delete(f.CloneSets[0].Spec.Template.Metadata.Labels, keyCreated)
		}, usherv1alpha1.ConditionHooksMatched, "False", "HookUnused", []string{keyCreated, "hooks.created", "Pod template"}},
		{"a hook that nobody answers", func(f *fixture) { f.Registrations[0].Spec.Hooks.PreDelete = "" },
			usherv1alpha1.ConditionHooksMatched, "False", "HookUnanswered",
			[]string{keyDelete, "CloneSet nginx", "hooks.preDelete"}},
		{"keys with the Registration's name match", func(f *fixture) {
			unnamed(f)
			delete(f.lifecycle().InPlaceUpdate.LabelsHandler, othersKey)
		}, usherv1alpha1.ConditionHooksMatched, "True", "Matched", nil},
		{"keys with another name do not", unnamed, usherv1alpha1.ConditionHooksMatched, "False", "HookUnanswered",
			[]string{othersKey, "hooks.inPlaceUpdate", "nginx.usher.dev/inPlaceUpdate"}},
		{"a finalizer that nobody answers", func(f *fixture) {
			f.lifecycle().PreDelete.FinalizersHandler = []string{hookFin}
		}, usherv1alpha1.ConditionHooksMatched, "False", "HookUnanswered", []string{hookFin}},
		{"another Registration answers", func(f *fixture) {
			f.Registrations[0].Spec.Hooks.PreDelete = ""
			f.registration("second", "discovery").Spec.Hooks = usherv1alpha1.Hooks{PreDelete: keyDelete}
		}, usherv1alpha1.ConditionHooksMatched, "True", "Matched", nil},
	})
}

func checkConditions(t *testing.T, cases []conditionCase) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture()
			c.given(f)
			have := meta.FindStatusCondition(statusOf(f).Conditions, c.kind)
			if have.Status != c.status || have.Reason != c.reason {
				t.Errorf("%s is %s %s: %s; want %s %s", c.kind, have.Status, have.Reason, have.Message, c.status, c.reason)
			}
			for _, word := range c.mentions {
				if !strings.Contains(have.Message, word) {
					t.Errorf("message %q does not mention %q", have.Message, word)
				}
			}
		})
	}
}

func TestStatusIsTheSameWhenNothingChanged(t *testing.T) {
	f := newFixture()
	f.down("discovery")
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		f.add(name, appsv1alpha1.StatePreparingUpdate).finalizers(ours).drained(GateInPlaceUpdate, time.Second, nil)
	}
	f.Registrations[0].Status = statusOf(f)
	f.Now = f.Now.Add(10 * time.Second)
	if diff := cmp.Diff(f.Registrations[0].Status, statusOf(f)); diff != "" {
		t.Errorf("ten seconds later the status differs:\n%s", diff)
	}
	if message := f.Registrations[0].Status.Conditions[1].Message; !strings.Contains(message, "and 2 more") {
		t.Errorf("the message %q does not sum up", message)
	}
}

func TestPatchesTouchOnlyTheirOwn(t *testing.T) {
	f := newFixture()
	b := f.add("a", appsv1alpha1.StatePreparingDelete).finalizers("example.com/theirs", ours, "example.com/more").
		drained(GatePreDelete, time.Minute-time.Second, map[string]time.Duration{"discovery": 6 * time.Second})
	b.pod.ResourceVersion = "42"
	p := Make(f.Snapshot)
	if len(p.Patches) != 1 {
		t.Fatalf("the plan is %v, want one patch", render(p))
	}
	have, err := metadata(&p.Patches[0])
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"uid": "uid-a-0000", "resourceVersion": "42",
		"labels":      map[string]any{keyDelete: "false"},
		"annotations": map[string]any{usherv1alpha1.AnnotationDrain: nil},
		"finalizers":  []any{"example.com/theirs", "example.com/more"},
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("the patch differs (-want +have):\n%s", diff)
	}
}

func TestRecordsKeepTheirTimesExactly(t *testing.T) {
	at := epoch.Add(123456789 * time.Nanosecond)
	record := Record{Gate: GatePreDelete, Began: at, Gone: map[string]time.Time{"x": at}}
	text, err := record.encode()
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{usherv1alpha1.AnnotationDrain: text}}}
	if have := ReadRecord(pod); !record.equal(have) {
		t.Errorf("%+v came back as %+v: a wait that is cut short loses requests", record, have)
	}
}
