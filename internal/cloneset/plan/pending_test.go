// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

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
