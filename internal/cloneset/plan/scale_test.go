// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// pods makes serving Pods of one revision.
func pods(n int, names ...string) []*corev1.Pod {
	var out []*corev1.Pod
	for _, name := range names {
		out = append(out, pod(name, n))
	}
	return out
}

// TestDeleteBudget: ready Pods are removed only as far as maxUnavailable and the surplus
// allow, with other unavailable Pods counted.
func TestDeleteBudget(t *testing.T) {
	for _, test := range []struct {
		replicas, maxUnavailable, ready, broken, want int
	}{
		{5, 1, 5, 0, 1},
		{5, 2, 5, 0, 2},
		{5, 0, 6, 0, 1}, // the surplus is free
		{5, 1, 4, 1, 0},
		{5, 2, 4, 1, 1},
		{3, 1, 5, 0, 3},
		{3, 1, 4, 1, 2},
		{5, 5, 5, 0, 5},
	} {
		t.Run(fmt.Sprintf("%+v", test), func(t *testing.T) {
			s := snap(test.replicas, maxUnavailable(test.maxUnavailable))
			for i := range test.ready {
				with(pod(fmt.Sprintf("r%d", i), 1, label(apps.LabelSpecifiedDelete, "true")))(s)
			}
			for i := range test.broken {
				with(pod(fmt.Sprintf("x%d", i), 1, unready))(s)
			}
			if got := count(decide(t, s), func(a Action) bool { return a.Reason == ReasonSpecified }); got != test.want {
				t.Errorf("%d named Pods go, want %d", got, test.want)
			}
		})
	}
}
