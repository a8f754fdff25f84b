// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
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
