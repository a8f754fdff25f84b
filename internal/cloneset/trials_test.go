// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"errors"
	"maps"
	"net/http"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clocktesting "k8s.io/utils/clock/testing"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/kube"
)

// invalidWith returns an answer 422 with such causes.
func invalidWith(message string, causes ...metav1.StatusCause) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid, Message: message,
		Details: &metav1.StatusDetails{Causes: causes},
	}}
}

// TestImpossible: which answers mean that only a new Pod can have the change, which are other refusals
// of it, and which are neither.
func TestImpossible(t *testing.T) {
	pods := corev1.Resource("pods")
	for name, test := range map[string]struct {
		err                            error
		impossible, refuses, conflicts bool
	}{
		"the API server's rules": {apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Pod").GroupKind(), "a",
			field.ErrorList{field.TooLong(field.NewPath("metadata", "annotations"), "", 262144)}), true, true, false},
		"an admission policy":                  {invalidWith(`pods "a" is forbidden: ValidatingAdmissionPolicy 'x' denied request: no`, metav1.StatusCause{Message: "no"}), false, true, false},
		"a webhook that answers as the server": {invalidWith(`admission webhook "x" denied the request: no`, metav1.StatusCause{Field: "spec"}), false, true, false},
		"a webhook that answers 422 alone":     {invalidWith(`admission webhook "x" denied the request: no`), false, true, false},
		"a quota":                              {apierrors.NewForbidden(pods, "a", errors.New("exceeded quota")), false, true, false},
		"no such subresource":                  {&noResize{apierrors.NewForbidden(pods, "a", errors.New("no resize"))}, true, true, false},
		"too large":                            {apierrors.NewRequestEntityTooLargeError("no"), false, true, false},
		"a webhook that is down":               {apierrors.NewInternalError(errors.New(`failed calling webhook "x"`)), false, true, false},
		"a test that does not hold":            {invalidWith("the server rejected our request"), false, false, true},
		"a newer version":                      {apierrors.NewConflict(pods, "a", errors.New("newer")), false, false, true},
		"a server that is busy":                {apierrors.NewTooManyRequests("later", 1), false, false, false},
		"a server in trouble":                  {apierrors.NewInternalError(errors.New("etcd leader changed")), false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			checktest.Same(t, "impossible", test.impossible, impossible(test.err))
			checktest.Same(t, "refuses", test.refuses, refusesUpdate(test.err))
			checktest.Same(t, "conflicts", test.conflicts, kube.Conflicts(test.err))
		})
	}
}

// TestRefusalsForgetWhatWasAccepted: a write that is refused shows that the API server no longer takes what it took in a
// trial. What it refused stands.
func TestRefusalsForgetWhatWasAccepted(t *testing.T) {
	set, pod, r := &apps.CloneSet{}, &corev1.Pod{}, &Reconciler{Clock: clocktesting.NewFakePassiveClock(now)}
	set.Namespace, set.Name = "demo", "web"
	shared := r.shared(keyOf(set))
	shared.recordAccepted("accepted", now)
	shared.recordRefusal("refused", "a", errors.New("no"), now)
	rest := plan.Action{Verb: plan.Continue, Class: "rest", Pod: pod}
	r.learn(set, outcome{action: rest, pod: pod, err: apierrors.NewForbidden(corev1.Resource("pods"), "a", errors.New("no"))})
	checktest.Same(t, "what is known", []string{"refused", "rest"}, slices.Sorted(maps.Keys(shared.trialsAt(now))))
}

// TestRefusalsBackOff: each refusal in a row stands twice as long, up to a bound, until an update
// succeeds.
func TestRefusalsBackOff(t *testing.T) {
	shared := &sharedState{trials: map[string]plan.Trial{}}
	at, no := now, errors.New("no")
	for _, want := range []time.Duration{5, 10, 20, 40, 80, 120, 120} {
		shared.recordRefusal("class", "a", no, at)
		trial := shared.trialsAt(at)["class"]
		checktest.Same(t, "how long it stands", want*time.Second, trial.Until.Sub(at))
		checktest.Same(t, "since when", now, trial.Since)
		at = trial.Until
	}
	shared.recordAccepted("class", at)
	shared.recordRefusal("class", "a", no, at)
	checktest.Same(t, "how long it stands at first", firstRetry, shared.trialsAt(at)["class"].Until.Sub(at))
	checktest.Same(t, "trials that nobody needs", 0, len(shared.trialsAt(at.Add(time.Hour))))
	checktest.Same(t, "those that a query has not forgotten", 1, len(shared.trials))
	shared.forgetTrials(at.Add(time.Hour))
	checktest.Same(t, "those that are kept", 0, len(shared.trials))
}
