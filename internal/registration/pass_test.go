// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/plan"
)

// TestNext: when the pass after another one is due. The first reason counts, an error more than all of them.
func TestNext(t *testing.T) {
	about, later := &usherv1alpha1.Registration{}, epoch.Add(2*time.Second)
	what := corev1.Resource("pods")
	failed := func(err error) results { return results{failures: []failure{{about, err, epoch}}} }
	met := func(c cause) results { return results{setbacks: []setback{{c, epoch}}} }
	heldUntil := func(at time.Time) results { return results{setbacks: []setback{{held, at}}} }
	broken := errors.New("broken")
	for name, test := range map[string]struct {
		decided plan.Plan
		seen    observation
		done    results
		want    time.Duration
		err     error
	}{
		"nothing to do":                       {},
		"the plan asks for one":               {decided: plan.Plan{RequeueAt: later}, want: 2 * time.Second},
		"a sweep is due":                      {seen: observation{sweepAt: later}, want: 2 * time.Second},
		"a registry is away":                  {seen: observation{backAt: later}, want: 2 * time.Second},
		"the first of them":                   {decided: plan.Plan{RequeueAt: later}, seen: observation{sweepAt: later.Add(-time.Second)}, want: time.Second},
		"at once":                             {decided: plan.Plan{RequeueAt: epoch.Add(-time.Hour)}, want: batchDelay},
		"patches were postponed":              {done: met(postponed), want: batchDelay},
		"a drained Pod has changed":           {done: met(raced), want: batchDelay},
		"the caches are behind":               {done: met(overtaken), want: soon},
		"a registry refuses":                  {done: met(refused), want: refusedRetry},
		"a registry is held":                  {done: heldUntil(later), want: 2 * time.Second},
		"two setbacks":                        {done: met(refused).and(met(overtaken)), want: soon},
		"a setback before what the plan asks": {decided: plan.Plan{RequeueAt: later}, done: met(overtaken), want: soon},
		"an object has changed":               {done: failed(apierrors.NewConflict(what, "a", broken)), want: soon},
		"a write is refused":                  {done: failed(apierrors.NewForbidden(what, "a", broken)), want: refusedRetry},
		"a write fails":                       {done: failed(broken).and(met(postponed)), err: broken},
		"a read is refused":                   {done: results{failures: []failure{{nil, apierrors.NewForbidden(what, "a", broken), epoch}}}, err: apierrors.NewForbidden(what, "a", broken)},
		"the pass has ended early":            {done: results{stopped: true, failures: []failure{{nil, broken, epoch}}}, err: broken},
	} {
		t.Run(name, func(t *testing.T) {
			result, err := next(stage{seen: &test.seen, decided: test.decided, results: test.done}, epoch)
			checktest.Same(t, "the next pass", ctrl.Result{RequeueAfter: test.want}, result)
			if (err == nil) != (test.err == nil) || err != nil && err.Error() != test.err.Error() {
				t.Errorf("the error is %v, want %v", err, test.err)
			}
		})
	}
}

// TestRetries: each cause says how soon the next pass follows.
func TestRetries(t *testing.T) {
	for c := postponed; c <= held; c++ {
		if _, known := retries[c]; !known {
			t.Errorf("cause %d has no time", c)
		}
	}
}

// TestResultsAreMerged: no result of a step is lost, whichever step it is of, and results of the same kind stay in their
// order.
func TestResultsAreMerged(t *testing.T) {
	full := results{
		stopped: true, failures: make([]failure, 2), setbacks: make([]setback, 2), due: make([]plan.Target, 2),
		batches: make([]batch, 2), made: make([]madeChanges, 2), patches: make([]patchResult, 2), firstPatch: "a",
		deletions: make([]deletion, 2), troubles: make([]trouble, 2), spent: time.Second, said: map[types.UID]plan.Response{"e": {Message: "waits"}},
	}
	value := reflect.ValueOf(full)
	for i := range value.NumField() {
		if value.Field(i).IsZero() {
			t.Errorf("the test lacks the field %s", value.Type().Field(i).Name)
		}
	}
	checktest.Same(t, "as the first step", true, reflect.DeepEqual(full, full.and(results{})))
	checktest.Same(t, "as the second step", true, reflect.DeepEqual(full, results{}.and(full)))
	of := func(registry string) results {
		return results{due: []plan.Target{{Registry: registry}}, firstPatch: registry}
	}
	all := merge(of("a"), of("b"), of("c"))
	checktest.Same(t, "their order", []plan.Target{{Registry: "a"}, {Registry: "b"}, {Registry: "c"}}, all.due)
	checktest.Same(t, "where the next pass begins", "c", all.firstPatch)
}

// TestAPassThatPanicsIsForgotten: nobody knows what it has written by then. So the next one trusts nothing that an
// earlier one has found: it lists and confirms everything again, as a new process does.
func TestAPassThatPanicsIsForgotten(t *testing.T) {
	a := attack(t, podOf("calm", "nobody", ""))
	sweeps := func() int { return len(a.stateOf(namespace).pass.sweeps.swept) }
	_, _, err := a.pass()
	checktest.NoError(t, err)
	checktest.Same(t, "targets that the first pass has swept", 2, sweeps())
	listPods := a.listPods
	a.listPods = func(context.Context, string) ([]*corev1.Pod, error) { panic("broken") }
	func() {
		defer func() { checktest.Same[any](t, "the panic", "broken", recover()) }()
		_, _, _ = a.pass()
	}()
	checktest.Same(t, "targets that are known as swept", 0, sweeps())
	a.listPods = listPods
	_, _, err = a.pass()
	checktest.NoError(t, err)
	checktest.Same(t, "targets that the next pass has swept", 2, sweeps())
}
