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
	expectRequeue(t, expect(t, slow), 3*time.Second)
	s := snap(1, method(InPlaceIfPossible), toRevision(rev(2)), grace(5*time.Second), with(pod("a", 1)))
	s.Now = now.Add(700 * time.Millisecond)
	expectRequeue(t, Make(s), 6*time.Second)
}

// TestGraceOfOpenKruise: it labels the Pod first and changes its containers after the
// grace period; a controller that takes over the set in between does the rest.
func TestGraceOfOpenKruise(t *testing.T) {
	on2 := []option{method(InPlaceIfPossible), grace(30 * time.Second), toRevision(rev(2))}
	p := expect(t, snap(1, append(on2, with(leftInGrace(out(0, 10*time.Second))))...))
	expectRequeue(t, p, 21*time.Second)
	p = expect(t, snap(1, append(on2, with(leftInGrace(out(0, 31*time.Second))))...), "update a (InPlaceUpdate) to Updating revision web-r2")
	if got := p.Actions[0].Change.Images["main"]; got != "app:2" {
		t.Errorf("image = %q", got)
	}
	// Rolled back meanwhile: no container has to change.
	p = expect(t, snap(1, method(InPlaceIfPossible), toRevision(rev(2)), toRevision(rev(1)), with(leftInGrace())), "update a (InPlaceUpdate) revision web-r1")
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

// leftInGrace is how OpenKruise leaves a Pod of r1 in its grace period before r2.
func leftInGrace(options ...podOption) *corev1.Pod {
	return pod("a", 1, append([]podOption{
		label(apps.LabelRevision, rev(2).Name), label(apps.LabelTemplateHash, "r2"), state(apps.StateUpdating), out(0, time.Second),
		annotation(apps.AnnotationInPlaceUpdateState, `{"revision":"web-r2","updateTimestamp":"2026-01-02T03:04:00Z","lastContainerStatuses":null,"updateImages":true}`),
		annotation(apps.AnnotationInPlaceUpdateGrace, `{"revision":"web-r2","containerImages":{"main":"app:2"},"graceSeconds":30}`),
	}, options...)...)
}

// TestGraceOfOpenKruiseTurnedBack: a Pod that is not to be updated after all gets back
// the label of the revision that it runs, and serves again.
func TestGraceOfOpenKruiseTurnedBack(t *testing.T) {
	base := []option{method(InPlaceIfPossible), grace(30 * time.Second), toRevision(rev(2))}
	dropped := "update a (UpdateDropped) revision web-r1"
	for name, test := range map[string]struct {
		options []option
		want    []string
	}{
		"paused":             {[]option{paused, with(leftInGrace())}, []string{dropped}},
		"kept by partition":  {[]option{partition(1), with(leftInGrace())}, []string{dropped}},
		"on delete":          {[]option{method(OnDelete), with(leftInGrace())}, []string{dropped}},
		"template refused":   {[]option{refused, with(leftInGrace())}, []string{dropped}},
		"to be updated":      {[]option{with(leftInGrace(out(2, time.Second)))}, nil},
		"to be deleted":      {[]option{paused, with(leftInGrace(label(apps.LabelSpecifiedDelete, "true")))}, []string{"delete a (SpecifiedDelete)"}},
		"no revision fits":   {[]option{paused, with(leftInGrace(func(p *corev1.Pod) { p.Spec.Containers[0].Image = "app:0" }))}, nil},
		"of the newer of us": {[]option{paused, func(s *Snapshot) { s.Current = s.Update }, with(leftInGrace())}, []string{dropped}},
	} {
		t.Run(name, func(t *testing.T) { expect(t, snap(1, append(base, test.options...)...), test.want...) })
	}
	t.Run("and serves again", func(t *testing.T) {
		s := snap(1, append(base, paused, with(leftInGrace()))...)
		p := expect(t, s, dropped)
		apply(s.Pods[0], p.Actions[0], now)
		delete(s.Pods[0].Annotations, apps.AnnotationInPlaceUpdateGrace) // as every update does
		expect(t, s, "move a (UpdateDone) to Normal InPlaceUpdateReady=True")
	})
}
