// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

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
	f.add("b", appsv1alpha1.StateNormal).finalizers(usherv1alpha1.Finalizer)
	f.add("c", appsv1alpha1.StateNormal).ready(false)
	f.add("d", appsv1alpha1.StatePreparingUpdate).finalizers(usherv1alpha1.Finalizer)
	f.add("e", appsv1alpha1.StateNormal).registered().terminating(0)
	f.add("f", appsv1alpha1.StateNormal).label("app", "other")
	have := statusOf(f)
	if have.Pods != 5 || have.Registered != 1 || have.Draining != 2 {
		t.Errorf("counts are %d pods, %d registered, %d draining; want 5, 1 and 2", have.Pods, have.Registered, have.Draining)
	}
}

func TestStatusIsTheSameWhenNothingChanged(t *testing.T) {
	f := newFixture()
	f.down("discovery")
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		f.add(name, appsv1alpha1.StatePreparingUpdate).finalizers(usherv1alpha1.Finalizer).drained(GateInPlaceUpdate, time.Second, nil)
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

// report plans, and returns the condition that is written on the only Pod, which
// has it from then on; nil if none is.
func (f *fixture) report(t *testing.T) *corev1.PodCondition {
	t.Helper()
	p := Make(f.Snapshot)
	for i := range p.Patches {
		if c := p.Patches[i].Condition; c != nil {
			b := &podBuilder{f, f.Pods[0]}
			b.condition(c.Type, c.Status)
			b.pod.Status.Conditions[len(b.pod.Status.Conditions)-1] = *c
			return c
		}
	}
	return nil
}

// TestEveryGateTellsWhatItWaitsFor looks at the line of a Pod that waits for a
// registry that is down, at each gate.
func TestEveryGateTellsWhatItWaitsFor(t *testing.T) {
	long := map[string]time.Duration{}
	for gate, given := range map[Gate]func(*fixture) *podBuilder{
		GatePreNormal: func(f *fixture) *podBuilder {
			return f.add("a", appsv1alpha1.StatePreparingNormal).finalizers(usherv1alpha1.Finalizer)
		},
		GateCreated: func(f *fixture) *podBuilder {
			return f.add("a", appsv1alpha1.StateNormal).label(keyCreated, "true").finalizers(usherv1alpha1.Finalizer)
		},
		GateInPlaceUpdate: func(f *fixture) *podBuilder {
			return f.add("a", appsv1alpha1.StatePreparingUpdate).finalizers(usherv1alpha1.Finalizer).drained(GateInPlaceUpdate, time.Minute/2, long)
		},
		GateUpdated: func(f *fixture) *podBuilder {
			return f.add("a", appsv1alpha1.StateUpdated).label(keyInPlace, "false").finalizers(usherv1alpha1.Finalizer)
		},
		GatePreDelete: func(f *fixture) *podBuilder {
			return f.add("a", appsv1alpha1.StatePreparingDelete).finalizers(usherv1alpha1.Finalizer).drained(GatePreDelete, time.Minute/2, long)
		},
		GateJoining: func(f *fixture) *podBuilder {
			return f.add("a", appsv1alpha1.StateNormal).finalizers(usherv1alpha1.Finalizer)
		},
		GateLeaving: func(f *fixture) *podBuilder {
			return f.add("a", appsv1alpha1.StateNormal).finalizers(usherv1alpha1.Finalizer).ready(false)
		},
		GateDeletion: func(f *fixture) *podBuilder {
			b := f.add("a", appsv1alpha1.StateNormal).registered()
			b.terminating(30 * time.Second)
			return b
		},
	} {
		f := newFixture()
		b := given(f)
		if !gate.leaves() {
			b.since(30*time.Second, time.Hour)
		}
		f.down("discovery")
		c := f.report(t)
		if c == nil {
			t.Errorf("%s: nothing is reported", gate)
			continue
		}
		for _, part := range []string{"Waits at " + string(gate), "for Registry discovery", "connection refused"} {
			if !strings.Contains(c.Message, part) {
				t.Errorf("%s: %q does not say %q", gate, c.Message, part)
			}
		}
		if since := "since " + epoch.Add(-30*time.Second).Format(time.RFC3339); gate != GateLeaving && !strings.Contains(c.Message, since) {
			t.Errorf("%s: %q does not say %q", gate, c.Message, since)
		}
		if c.Reason != string(ReasonRegistryUnavailable) {
			t.Errorf("%s: the reason is %s", gate, c.Reason)
		}
		f.Listings[target("discovery")] = Listing{Err: registry.Transient(errors.New("connection reset, port 40123"))}
		if again := f.report(t); again != nil {
			t.Errorf("%s: it is reported again for another error: %q", gate, again.Message)
		}
	}
}

func TestLinesEnd(t *testing.T) {
	f := newFixture()
	f.registry("backup")
	f.Registrations[0].Spec.Registries = []string{"discovery", "backup"}
	f.down("backup")
	f.add("a", appsv1alpha1.StatePreparingUpdate).finalizers(usherv1alpha1.Finalizer).drained(GateInPlaceUpdate, time.Second, nil).
		condition(usherv1alpha1.ConditionRegistered, corev1.ConditionFalse)
	if c := f.report(t); c == nil || c.Reason != string(ReasonRegistryUnavailable) || c.Status != corev1.ConditionFalse {
		t.Fatalf("while a registry is down: %+v", c)
	}
	f.Listings[target("backup")] = Listing{Entries: []registry.Entry{}}
	if c := f.report(t); c == nil || c.Reason != ReasonDeregistered || strings.Contains(c.Message, "backup") {
		t.Errorf("when it is back: %+v", c)
	}
	if c := f.report(t); c != nil {
		t.Errorf("and once more: %+v", c)
	}
}

// TestLinesSumUp names one wait and counts the others.
func TestLinesSumUp(t *testing.T) {
	f := newFixture()
	f.registry("backup")
	f.Registrations[0].Spec.Registries = []string{"discovery", "backup"}
	f.down("backup")
	f.down("discovery")
	f.add("a", appsv1alpha1.StatePreparingUpdate).finalizers(usherv1alpha1.Finalizer).drained(GateInPlaceUpdate, 2*time.Minute, nil)
	c := f.report(t)
	if c == nil || c.Status != corev1.ConditionUnknown {
		t.Fatalf("reported %+v", c)
	}
	want := "Waits at inPlaceUpdate (" + keyInPlace + ") for Registry backup since 2026-03-01T11:58:00Z, past its deadline, " +
		"and for 1 more: Registry backup: connection refused"
	if diff := cmp.Diff(want, c.Message); diff != "" {
		t.Errorf("the line differs (-want +have):\n%s", diff)
	}
}

func TestWhatIsOnItsWayIsToldLate(t *testing.T) {
	f := newFixture()
	b := f.add("a", appsv1alpha1.StatePreparingUpdate).registered("discovery").drained(GateInPlaceUpdate, 9*time.Second, nil)
	if c := f.report(t); c != nil {
		t.Errorf("after nine seconds: %+v", c)
	}
	b.drained(GateInPlaceUpdate, 10*time.Second, nil)
	if c := f.report(t); c == nil || c.Reason != string(ReasonStillListed) || c.Status != corev1.ConditionUnknown && c.Status != corev1.ConditionTrue {
		t.Errorf("after ten seconds: %+v", c)
	}
}

func TestStatusPerRegistry(t *testing.T) {
	f := newFixture()
	f.registry("backup")
	f.registry("down")
	r := f.Registrations[0]
	r.Spec.Registries = []string{"discovery", "backup", "down", "nowhere"}
	f.add("a", appsv1alpha1.StateNormal).registered("discovery", "backup")
	f.add("b", appsv1alpha1.StateNormal).label(keyCreated, "true").finalizers(usherv1alpha1.Finalizer).in("discovery")
	f.add("c", appsv1alpha1.StatePreparingUpdate).finalizers(usherv1alpha1.Finalizer).in("backup")
	f.add("d", appsv1alpha1.StateNormal).ready(false)
	f.down("down")
	f.Registries["down"] = RegistryState{Prefix: "services", Err: registry.Transient(errors.New("connection refused"))}
	want := []usherv1alpha1.RegistryPods{
		{Name: "backup", Registered: 2, Draining: 1, Waiting: 2},
		{Name: "discovery", Registered: 2, Draining: 1, Waiting: 1},
		{Name: "down", Registered: 1, Draining: 1, Waiting: 2, Error: "connection refused"},
		{Name: "nowhere", Waiting: 1, Error: `there is no Registry "nowhere": create it, or take it out of spec.registries`},
	}
	if diff := cmp.Diff(want, statusOf(f).Registries); diff != "" {
		t.Errorf("the counts differ (-want +have):\n%s", diff)
	}
}

func TestUnsettledMessages(t *testing.T) {
	f := newFixture()
	f.add("a", appsv1alpha1.StatePreparingUpdate).registered("discovery")
	f.add("b", appsv1alpha1.StatePreparingNormal).finalizers(usherv1alpha1.Finalizer).in("discovery")
	f.pod("a").listed().Unsettled = inFlight
	f.pod("b").listed().Unsettled = "HAProxy 10.0.0.2:9999 does not have it"
	waiting := Make(f.Snapshot).Waiting
	want := []string{
		"Registry discovery: " + inFlight,
		"Registry discovery: HAProxy 10.0.0.2:9999 does not have it",
	}
	if len(waiting) != len(want) {
		t.Fatalf("%d Pods wait, want %d: %+v", len(waiting), len(want), waiting)
	}
	for i := range want {
		if !strings.HasPrefix(waiting[i].Message, want[i]) {
			t.Errorf("the message is %q, want %q", waiting[i].Message, want[i])
		}
	}
}
