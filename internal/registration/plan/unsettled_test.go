// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"testing"
	"time"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

const inFlight = "it waits for 2 sessions on HAProxy 10.0.0.1:9999"

// unsettle marks the Pod's entry in Registry discovery.
func (b *podBuilder) unsettle(why string) *podBuilder {
	listing := b.f.Listings[target("discovery")]
	for i := range listing.Entries {
		if listing.Entries[i].ID == EntryID(b.pod) {
			listing.Entries[i].Unsettled = why
		}
	}
	return b
}

func TestUnsettledEntries(t *testing.T) {
	run(t, []planCase{
		{"a hook waits for requests in flight, and the entry is removed again soon", func(f *fixture) {
			f.add("a", appsv1alpha1.StatePreparingUpdate).registered("discovery").unsettle(inFlight).
				drained(GateInPlaceUpdate, 10*time.Second, nil)
		}, []string{"remove discovery a", "patch a: registered=True(Draining)",
			"wait a inPlaceUpdate discovery Draining", "again in 1s"}},
		{"when the last one is over the propagation begins", func(f *fixture) {
			f.add("a", appsv1alpha1.StatePreparingUpdate).registered().
				drained(GateInPlaceUpdate, 10*time.Second, nil)
		}, []string{"patch a: drain(inPlaceUpdate 10s: discovery 0s) registered=False(Propagation)",
			"wait a inPlaceUpdate discovery Propagation", "again in 5s"}},
		{"past the deadline it is let go where the policy says so", func(f *fixture) {
			f.Registrations[0].Spec.Drain.OnDeadline = usherv1alpha1.DeadlineProceed
			f.add("a", appsv1alpha1.StatePreparingUpdate).registered("discovery").unsettle(inFlight).
				drained(GateInPlaceUpdate, 2*time.Minute, nil)
		}, []string{
			"remove discovery a", "patch a: unready-blocker-inplace=false -drain forced(discovery)", "again in 1s",
		}},
		{"a Pod that comes back while it drains is put back", func(f *fixture) {
			f.add("a", appsv1alpha1.StateNormal).registered("discovery").unsettle(inFlight)
		}, []string{"put discovery a", "patch a: registered=False"}},
		{"a Pod that no hook holds is removed again as well", func(f *fixture) {
			f.add("a", appsv1alpha1.StateNormal).registered("discovery").unsettle(inFlight).ready(false)
		}, []string{"remove discovery a", "patch a: registered=True(Draining)",
			"wait a leaving discovery Draining", "again in 1s"}},
		{"a terminating Pod is held", func(f *fixture) {
			f.add("a", appsv1alpha1.StateNormal).registered("discovery").unsettle(inFlight).
				terminating(10 * time.Second)
		}, []string{"remove discovery a", "patch a: registered=True(Draining)",
			"wait a deletion discovery Draining", "again in 1s"}},
	})
}

func TestUnsettledMessages(t *testing.T) {
	f := newFixture()
	f.add("a", appsv1alpha1.StatePreparingUpdate).registered("discovery").unsettle(inFlight)
	f.add("b", appsv1alpha1.StatePreparingNormal).finalizers(usherv1alpha1.Finalizer).in("discovery").
		unsettle("HAProxy 10.0.0.2:9999 does not have it")
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
