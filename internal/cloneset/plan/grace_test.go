// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
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
	if p := expect(t, slow); !p.RequeueAt.Equal(now.Add(3 * time.Second)) {
		t.Errorf("RequeueAt = %v, want the grace period from when the drain was known of", p.RequeueAt)
	}
	s := snap(1, method(InPlaceIfPossible), toRevision(rev(2)), grace(5*time.Second), with(pod("a", 1)))
	s.Now = now.Add(700 * time.Millisecond)
	if p := Make(s); !p.RequeueAt.Equal(now.Add(6 * time.Second)) {
		t.Errorf("RequeueAt = %v, want the whole grace period and the rest of the second", p.RequeueAt)
	}
}

// TestGraceOfOpenKruise: it labels the Pod first and changes its containers after the
// grace period; a controller that takes over the set in between does the rest.
func TestGraceOfOpenKruise(t *testing.T) {
	inGrace := func(n int, ago time.Duration) *corev1.Pod {
		return pod("a", 1, label(apps.LabelRevision, rev(n).Name), state(apps.StateUpdating), out(0, ago),
			annotation(apps.AnnotationInPlaceUpdateState, `{"revision":"web-r2","updateTimestamp":"2026-01-02T03:04:00Z","lastContainerStatuses":null,"updateImages":true}`),
			annotation(apps.AnnotationInPlaceUpdateGrace, `{"revision":"web-r2","containerImages":{"main":"app:2"},"graceSeconds":30}`))
	}
	on2 := []option{method(InPlaceIfPossible), grace(30 * time.Second), toRevision(rev(2))}
	p := expect(t, snap(1, append(on2, with(inGrace(2, 10*time.Second)))...))
	if !p.RequeueAt.Equal(now.Add(21 * time.Second)) {
		t.Errorf("RequeueAt = %v, want the end of the grace period", p.RequeueAt)
	}
	p = expect(t, snap(1, append(on2, with(inGrace(2, 31*time.Second)))...), "update a (InPlaceUpdate) to Updating revision web-r2")
	if got := p.Actions[0].Change.Images["main"]; got != "app:2" {
		t.Errorf("image = %q", got)
	}
	// Rolled back meanwhile: no container has to change.
	p = expect(t, snap(1, method(InPlaceIfPossible), toRevision(rev(2)), toRevision(rev(1)), with(inGrace(2, time.Second))), "update a (InPlaceUpdate) revision web-r1")
	if p.Actions[0].Change.Drains() {
		t.Error("the rollback restarts a container")
	}
}

// TestGraceOfNewerRevision: r3 arrives after the drain for r2 has begun. The grace period
// is skipped only if the containers are already changing. A Pod that was changed while it
// started, without being taken out of service, is not done with that change either, but
// has drained for nothing.
func TestGraceOfNewerRevision(t *testing.T) {
	began := func(ago time.Duration) podOption { // a change to r1, which the kubelet has not done
		return func(p *corev1.Pod) {
			change := &inplace.Change{Images: map[string]string{"main": "app:1"}}
			p.Annotations[apps.AnnotationInPlaceUpdateState] = inplace.Begin(p, change, rev(1).Name, now.Add(-ago)).State.String()
			p.Generation++
		}
	}
	drains, updates := "move a (StartInPlaceUpdate) InPlaceUpdateReady=False", "update a (InPlaceUpdate) to Updating revision web-r3"
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"only drains":                   {pod("a", 1, out(2, time.Second)), drains},
		"changed before, and drains":    {pod("a", 1, began(time.Minute), out(2, time.Second)), drains},
		"changes":                       {pod("a", 1, updating(2)), updates},
		"changes, the state is gone":    {pod("a", 1, updating(2), state(apps.StateNormal)), updates},
		"changes since the same second": {pod("a", 1, began(time.Second), out(2, time.Second)), updates},
	} {
		t.Run(name, func(t *testing.T) {
			expect(t, snap(1, method(InPlaceIfPossible), toRevision(rev(2)), toRevision(rev(3)), grace(5*time.Second), with(test.pod)), test.want)
		})
	}
}
