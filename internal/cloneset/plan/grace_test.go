// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// TestGraceIsWhole: a condition records the second in which a drain began, and the grace
// period counts from the end of that second.
func TestGraceIsWhole(t *testing.T) {
	for _, test := range []struct {
		begun       time.Time
		grace, want time.Duration
	}{
		{now, 5 * time.Second, 6 * time.Second},
		{now.Add(time.Millisecond), 5 * time.Second, 6 * time.Second},
		{now.Add(999 * time.Millisecond), 5 * time.Second, 6 * time.Second},
		{now.Add(time.Second), 5 * time.Second, 7 * time.Second},
		{now, 0, 0},
	} {
		if got := graceEnd(test.begun, test.grace); !got.Equal(now.Add(test.want)) {
			t.Errorf("graceEnd(%v, %v) = %v, want %v", test.begun, test.grace, got, now.Add(test.want))
		}
	}
	slow := snap(1, method(InPlaceIfPossible), toRevision(rev(2)), grace(5*time.Second), with(pod("a", 1, out(2, 9*time.Second))))
	slow.Drained = map[types.UID]time.Time{slow.Pods[0].UID: now.Add(-2 * time.Second)}
	expectRequeue(t, expect(t, slow), 3*time.Second)
	s := snap(1, method(InPlaceIfPossible), toRevision(rev(2)), grace(5*time.Second), with(pod("a", 1)))
	s.Now = now.Add(700 * time.Millisecond)
	expectRequeue(t, Make(s), 6*time.Second)
}

// leftInGrace is how OpenKruise leaves a Pod of r1 in its grace period before r2.
func leftInGrace(p *corev1.Pod) {
	also(
		label(apps.LabelRevision, rev(2).Name), label(apps.LabelTemplateHash, "r2"), state(apps.StateUpdating), out(0, time.Second),
		annotation(apps.AnnotationInPlaceUpdateState, `{"revision":"web-r2","updateTimestamp":"2026-01-02T03:04:00Z","lastContainerStatuses":null,"updateImages":true}`),
		annotation(apps.AnnotationInPlaceUpdateGrace, `{"revision":"web-r2","containerImages":{"main":"app:2"},"graceSeconds":30}`),
	)(p)
}
