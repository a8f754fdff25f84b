// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
)

// five Pods of r1, in a set that rolls out r2 one at a time.
func five(options ...option) *Snapshot {
	all := []option{toRevision(rev(2)), maxUnavailable(1), with(pods(1, "a", "b", "c", "d", "e")...)}
	return snap(5, append(all, options...)...)
}

// TestChangeIsWorkedOutOnce for all Pods of a revision.
func TestChangeIsWorkedOutOnce(t *testing.T) {
	p := newPass(five(method(InPlaceIfPossible)))
	first, err := p.change(p.pods[0])
	second, _ := p.change(p.pods[1])
	if err != nil || first != second {
		t.Errorf("two changes for one revision: %p %p %v", first, second, err)
	}
	p = newPass(five(method(InPlaceIfPossible), toRevision(rev(2, newEnv))))
	var refusal *inplace.Refusal
	if _, err := p.change(p.pods[0]); !errors.As(err, &refusal) {
		t.Errorf("err = %v, want a refusal", err)
	}
}

// TestRemovedCondition: a condition that is put back names the revision of the update.
func TestRemovedCondition(t *testing.T) {
	s := snap(1, toRevision(rev(2)), with(pod("a", 1, updating(2), withoutInPlaceCondition)))
	if c := Make(s).Actions[0].Conditions[0]; c.Message != "web-r2" {
		t.Errorf("the condition names %q", c.Message)
	}
}

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

// TestUpdateOrder: it does not depend on the order in which the Pods are known.
func TestUpdateOrder(t *testing.T) {
	s := snap(4, toRevision(rev(2)), with(pods(1, "a", "b", "c", "d")...))
	for _, p := range s.Pods[2:] {
		label("app", "db")(p)
	}
	setWords["scatter"](s, "app=db")
	for range 2 {
		var order []string
		for _, v := range s.orderForUpdate(newPass(s).pods) {
			order = append(order, v.pod.Name)
		}
		if want := []string{"c", "a", "b", "d"}; !slices.Equal(order, want) {
			t.Errorf("the order is %v, want %v", order, want)
		}
		slices.Reverse(s.Pods)
	}
}
