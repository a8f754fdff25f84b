// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/plan"
)

// TestAbsences: a Pod that comes back was out from when its condition turned False, and counts once, for why it
// left. One that comes in for the first time, or that is gone, counts for nothing.
func TestAbsences(t *testing.T) {
	const yes, no, unknown = corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown
	updating := func(p *corev1.Pod) {
		p.Labels = map[string]string{appsv1alpha1.LabelLifecycleState: string(appsv1alpha1.StatePreparingUpdate)}
	}
	named := func(p *corev1.Pod) {
		p.Labels = map[string]string{appsv1alpha1.LabelLifecycleState: string(appsv1alpha1.StatePreparingDelete)}
	}
	requested := func(p *corev1.Pod) {
		p.Annotations = map[string]string{usherv1alpha1.AnnotationDeletionRequest: "{}"}
	}
	for name, test := range map[string]struct {
		edit  func(*corev1.Pod)
		turns []corev1.ConditionStatus // one every seven seconds
		want  []string
	}{
		"an update in place":        {updating, []corev1.ConditionStatus{yes, no, yes}, []string{"update 7"}},
		"a scale-in taken back":     {named, []corev1.ConditionStatus{yes, no, yes}, []string{"deletion 7"}},
		"a deletion taken back":     {requested, []corev1.ConditionStatus{yes, no, yes}, []string{"deletion 7"}},
		"not ready for a while":     {nil, []corev1.ConditionStatus{yes, no, yes}, []string{"other 7"}},
		"not known in between":      {nil, []corev1.ConditionStatus{yes, no, unknown, yes}, []string{"other 14"}},
		"the message changes":       {nil, []corev1.ConditionStatus{yes, yes, no, no, yes, yes}, []string{"other 14"}},
		"for the first time":        {nil, []corev1.ConditionStatus{unknown, no, yes}, nil},
		"gone, and another instead": {nil, []corev1.ConditionStatus{yes, no, "", no, yes}, nil},
		"does not come back":        {nil, []corev1.ConditionStatus{yes, no}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			scraped := prometheus.NewRegistry()
			m := checktest.Must(newMetrics(scraped))(t)
			condition := &corev1.PodCondition{Type: usherv1alpha1.ConditionRegistered, Status: unknown}
			for i, status := range test.turns {
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "1"}, Status: corev1.PodStatus{Conditions: []corev1.PodCondition{*condition}}}
				if test.edit != nil {
					test.edit(pod)
				}
				if status == "" {
					m.absences.forget(pod.UID)
					continue
				}
				next := &corev1.PodCondition{Type: condition.Type, Status: status, LastTransitionTime: condition.LastTransitionTime}
				if status != condition.Status {
					next.LastTransitionTime = metav1.NewTime(epoch.Add(time.Duration(i) * 7 * time.Second))
				}
				m.patched(&plan.PodPatch{Pod: pod, Condition: next})
				condition = next
			}
			if have := observed(t, scraped, "usher_out_of_registries_seconds"); !slices.Equal(have, test.want) {
				t.Errorf("counted %q, want %q", have, test.want)
			}
		})
	}
}

// observed are the sums of a histogram of single observations, after the value of its only label.
func observed(t *testing.T, scraped prometheus.Gatherer, name string) (all []string) {
	t.Helper()
	for _, family := range checktest.Must(scraped.Gather())(t) {
		for _, metric := range family.GetMetric() {
			if family.GetName() == name {
				checktest.Same(t, "observations", uint64(1), metric.GetHistogram().GetSampleCount())
				all = append(all, fmt.Sprint(metric.GetLabel()[0].GetValue(), " ", metric.GetHistogram().GetSampleSum()))
			}
		}
	}
	return all
}

// TestAbsencesOfPodsThatAreDeleted: a Pod that is being deleted may be gone before its patch is counted. Nothing is
// remembered of it, as nobody would forget that.
func TestAbsencesOfPodsThatAreDeleted(t *testing.T) {
	for _, deleted := range []bool{true, false} {
		m := checktest.Must(newMetrics(prometheus.NewRegistry()))(t)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "1"}, Status: corev1.PodStatus{
			Conditions: []corev1.PodCondition{{Type: usherv1alpha1.ConditionRegistered, Status: corev1.ConditionTrue}},
		}}
		if deleted {
			pod.DeletionTimestamp = &metav1.Time{Time: epoch}
		}
		m.patched(&plan.PodPatch{Pod: pod, Condition: &corev1.PodCondition{Status: corev1.ConditionFalse}})
		checktest.Same(t, "Pods that are remembered", map[bool]int{false: 1}[deleted], len(m.absences.left))
	}
}
