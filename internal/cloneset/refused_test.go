// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/list"
)

// TestOneRefusedPodHoldsUpNoOther: a policy refuses all writes to one Pod or claim, which the set would
// adopt or release. The set still has its other Pods, an event names the refused object, and the write
// is tried again, but not at once.
func TestOneRefusedPodHoldsUpNoOther(t *testing.T) {
	set := web()
	set.Generation, set.Spec.Replicas = 1, new(int32(2))
	for name, test := range map[string]struct {
		refused *corev1.Pod
		adopts  string
	}{
		"adoption": {podOf(nil, "web-a"), "web-b"},
		"release":  {podOf(set, "web-a", func(pod *corev1.Pod) { pod.Labels = map[string]string{"app": "taken out"} }), ""},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			c := server(t, set.DeepCopy(), test.refused, podOf(nil, "web-b"))
			r, events := reconcilerOn(interceptor.NewClient(c, interceptor.Funcs{
				Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
					if object.GetName() == test.refused.Name {
						asked++
						return apierrors.NewForbidden(corev1.Resource("pods"), test.refused.Name, errors.New("policy says no"))
					}
					return c.Patch(ctx, object, patch, options...)
				},
			}))
			clock := r.Clock.(*testclock.FakePassiveClock)
			var result reconcile.Result
			for range 3 {
				clock.SetTime(clock.Now().Add(time.Second))
				result = checktest.Must(r.Reconcile(t.Context(), reconcile.Request{NamespacedName: keyOf(set)}))(t)
			}
			pods := &corev1.PodList{}
			checktest.NoError(t, c.List(t.Context(), pods))
			owned := list.Only(pods.Items, func(pod corev1.Pod) bool { return pod.Name != "web-a" && metav1.IsControlledBy(&pod, set) })
			checktest.Same(t, "other Pods of the set", 2, len(owned))
			checktest.Same(t, "requests about it", 1, asked)
			if at := slices.Index(events.reasons, "Warning FailedUpdatePod"); at < 0 || !strings.Contains(events.notes[at], "policy says no") {
				t.Errorf("events %q", events.reasons)
			}
			if result.RequeueAfter <= 0 || result.RequeueAfter > refusedFor {
				t.Errorf("it is asked again after %s", result.RequeueAfter)
			}
			clock.SetTime(clock.Now().Add(refusedFor))
			checktest.Must(r.Reconcile(t.Context(), reconcile.Request{NamespacedName: keyOf(set)}))(t)
			checktest.Same(t, "requests about it later", 2, asked)
		})
	}
}

// TestOnlyOtherFailuresDelayASet: refusals of Pods are no error of the pass, in whatever words; other
// failures are.
func TestOnlyOtherFailuresDelayASet(t *testing.T) {
	refusals := []error{
		apierrors.NewBadRequest("no"), apierrors.NewRequestEntityTooLargeError("no"), apierrors.NewForbidden(corev1.Resource("pods"), "a", errors.New("no")),
	}
	for _, refusal := range refusals {
		after := &observation{snapshot: &plan.Snapshot{Now: now}}
		end := func(outcomes ...outcome) (reconcile.Result, error) {
			return next(&plan.Plan{}, after, &results{outcomes: outcomes}, reported{}, finished{})
		}
		result, err := end(outcome{err: refusal})
		checktest.NoError(t, err)
		checktest.Same(t, "when it is tried again", refusedFor, result.RequeueAfter)
		broken := errors.New("broken")
		if _, err := end(outcome{err: refusal}, outcome{err: broken}); !errors.Is(err, broken) {
			t.Errorf("with another failure the pass ends with %v", err)
		}
	}
}
