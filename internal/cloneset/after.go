// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/usher-dev/usher/internal/cloneset/plan"
)

// afterwards returns the snapshot as a pass left it: Pods as the API server answered,
// created Pods added, deleted Pods removed. The status describes this snapshot, so a step
// costs one status write, not a second one once the cache has caught up.
func afterwards(s *plan.Snapshot, outcomes []outcome) *plan.Snapshot {
	left := *s
	newest := map[*corev1.Pod]*corev1.Pod{} // keyed by the observed Pod; nil if it was deleted
	var made []*corev1.Pod
	for _, o := range outcomes {
		switch {
		case o.action.Verb == plan.Delete && o.err == nil:
			newest[o.action.Pod] = nil
		case o.pod == nil:
		case o.action.Verb == plan.Create:
			made = append(made, o.pod)
		default:
			newest[o.action.Pod] = o.pod
		}
	}
	left.Pods = make([]*corev1.Pod, 0, len(s.Pods)+len(made))
	for _, pod := range s.Pods {
		if answered, ok := newest[pod]; ok {
			pod = answered
		}
		if pod != nil {
			left.Pods = append(left.Pods, pod)
		}
	}
	left.Pods = append(left.Pods, made...)
	left.PodInfos = plan.ReadPods(left.Pods, s.PodInfos)
	return &left
}
