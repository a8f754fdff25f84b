// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// at is a time so many seconds after the epoch.
func at(seconds int) time.Time { return epoch.Add(time.Duration(seconds) * time.Second) }

func away(from, to int) plan.Outage { return plan.Outage{From: at(from), To: at(to)} }

// TestOutagesAreNoticed tells a pool what registries answer.
func TestOutagesAreNoticed(t *testing.T) {
	refused, broken := registry.Permanent(errors.New("refused")), registry.Transient(errors.New("down"))
	type call struct {
		at  int
		err error
	}
	for name, c := range map[string]struct {
		known usherv1alpha1.RegistryStatus
		calls []call
		want  plan.Outage
	}{
		"all is well":                           {calls: []call{{1, nil}, {2, nil}}},
		"it refuses us alone":                   {calls: []call{{1, nil}, {2, refused}, {9, nil}}},
		"from the last answer to the next":      {calls: []call{{1, nil}, {5, broken}, {6, broken}, {9, nil}, {12, nil}}, want: away(1, 9)},
		"it goes on":                            {calls: []call{{1, nil}, {5, broken}}, want: plan.Outage{From: at(1)}},
		"refusing is no answer":                 {calls: []call{{1, nil}, {5, broken}, {6, refused}}, want: plan.Outage{From: at(1)}},
		"no process has written when it went":   {calls: []call{{5, broken}, {9, nil}}, want: away(0, 9)},
		"another process saw it go":             {status(plan.Outage{From: at(1)}, 0), []call{{9, nil}}, away(1, 9)},
		"another process saw it all":            {status(away(1, 9), 9), []call{{20, nil}}, away(1, 9)},
		"another process saw it work, long ago": {status(plan.Outage{}, 3), []call{{20, broken}, {21, nil}}, away(3, 21)},
		"it is gone again soon":                 {status(away(1, 9), 9), []call{{10, nil}, {11, broken}, {12, nil}}, away(1, 12)},
	} {
		t.Run(name, func(t *testing.T) {
			clock := clocktesting.NewFakePassiveClock(epoch)
			p := newPool(nil, nil, clock)
			p.state("a").reachability = reachabilityOf(&usherv1alpha1.Registry{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(epoch)}, Status: c.known})
			for _, call := range c.calls {
				clock.SetTime(at(call.at))
				p.noteCall(t.Context(), "a", call.err)
			}
			if have := p.outage("a"); have != c.want {
				t.Errorf("noticed %+v, want %+v", have, c.want)
			}
		})
	}
}

// status is what a process leaves behind that saw the outage, and the registry
// work since so many seconds after the epoch, if that is not 0.
func status(o plan.Outage, since int) usherv1alpha1.RegistryStatus {
	s := usherv1alpha1.RegistryStatus{LastOutage: o.Status()}
	if since != 0 {
		s.Conditions = []metav1.Condition{{Type: usherv1alpha1.ConditionReachable, Status: metav1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(at(since))}}
	}
	return s
}

func TestACancelledCallIsNoOutage(t *testing.T) {
	p := newPool(nil, nil, clocktesting.NewFakePassiveClock(epoch))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p.noteCall(ctx, "a", registry.Transient(context.Canceled))
	if have := p.outage("a"); have != (plan.Outage{}) {
		t.Errorf("the end of a pass made %+v", have)
	}
}
