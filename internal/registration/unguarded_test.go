// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/event"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/podread"
	"github.com/usher-dev/usher/internal/registration/plan"
)

// deadline has somebody give a Pod that is being deleted less time than its own grace period, so that the guard lets
// it go so long after the deletion.
func deadline(after time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		letGo := podread.DeletedSince(p).Add(after).UTC().Format(metav1.RFC3339Micro)
		p.Annotations = map[string]string{usherv1alpha1.AnnotationDeletionRequest: fmt.Sprintf(`{"letGo":%q}`, letGo)}
	}
}

// TestUnguardedDeletionsAreTold: a Pod that is deleted while registries may list it, although there is
// a guard, counts once, by what let it pass. One that the guard was not asked about is also an event, and
// one that was deleted by force or with the annotation is not. One that has left its registries, or whose
// containers have ended, does not count.
func TestUnguardedDeletionsAreTold(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(*corev1.Pod)
		noGuard bool
		result  plan.DrainResult
	}{
		"deleted":          {func(*corev1.Pod) {}, false, plan.DrainUnguarded},
		"no guard":         {func(*corev1.Pod) {}, true, ""},
		"by force":         {func(p *corev1.Pod) { p.DeletionGracePeriodSeconds = new(int64(0)) }, false, plan.DrainForced},
		"as it says":       {func(p *corev1.Pod) { p.Annotations = map[string]string{usherv1alpha1.AnnotationSkipDrain: "true"} }, false, plan.DrainSkipped},
		"in a hurry":       {deadline(0), false, plan.DrainCutShort},
		"before its time":  {deadline(10 * time.Second), false, plan.DrainUnguarded},
		"hurried by force": {func(p *corev1.Pod) { deadline(0)(p); p.DeletionGracePeriodSeconds = new(int64(0)) }, false, plan.DrainForced},
		"has ended": {func(p *corev1.Pod) {
			p.DeletionGracePeriodSeconds, p.Status.Phase = new(int64(0)), corev1.PodSucceeded
		}, false, ""},
		"has left":                   {func(p *corev1.Pod) { p.Finalizers = []string{"example.com/other"} }, false, ""},
		"an update of one that goes": {nil, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			metrics := checktest.Must(newMetrics(prometheus.NewRegistry()))(t)
			recorder := events.NewFakeRecorder(8)
			r := &Reconciler{
				options: Options{Guarded: !test.noGuard}, clock: clock.RealClock{}, metrics: metrics, gathered: map[string]time.Time{},
				announcer: &announcer{recorder: recorder, sent: cache.NewExpiring()},
			}
			older := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart-1", UID: "1", Finalizers: []string{usherv1alpha1.Finalizer}}}
			newer := older.DeepCopy()
			newer.DeletionTimestamp, newer.DeletionGracePeriodSeconds = new(metav1.Now()), new(int64(30))
			if test.change != nil {
				test.change(newer)
			} else {
				older = newer.DeepCopy()
			}
			q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[ctrl.Request]())
			defer q.ShutDown()
			r.ofPods().Update(t.Context(), event.UpdateEvent{ObjectOld: older, ObjectNew: newer}, q)
			for _, result := range plan.DrainResults() {
				counted := testutil.ToFloat64(metrics.drains.WithLabelValues(string(result)))
				checktest.Same(t, "Pods counted as "+string(result), map[bool]float64{true: 1}[test.result == result], counted)
			}
			expected := test.result == plan.DrainUnguarded
			select {
			case told := <-recorder.Events:
				if !expected || !strings.Contains(told, "DeletedUnguarded") {
					t.Errorf("told %q", told)
				}
			default:
				if expected {
					t.Error("no event")
				}
			}
		})
	}
}
