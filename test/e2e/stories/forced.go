// SPDX-License-Identifier: Apache-2.0

package stories

import (
	"fmt"

	"github.com/usher-dev/usher/test/e2e"
)

var forced = []e2e.Story{
	{
		Name:    "forced-pods",
		About:   "kubectl delete pod --force, three times: the container ends at once",
		MayLose: true,
		Play: func(s *e2e.Scene) {
			s.Open()
			deleteByForce(s)
		},
	},
	{
		Name:    "forced-pods-prestop",
		About:   "the same with a preStop sleep of 4 s, of which the kubelet grants 1 s",
		MayLose: true,
		Play: func(s *e2e.Scene) {
			s.Open(preStop(4))
			deleteByForce(s)
		},
	},
}

// deleteByForce force-deletes every Pod, each after the previous one has been replaced.
func deleteByForce(s *e2e.Scene) {
	for _, pod := range s.State().Pods {
		s.ForceDeletePod(pod.Name)
		s.Await("another Pod for "+pod.Name, func(now e2e.State) string {
			if now.Pod(pod.Name) != nil || len(now.Pods) != 3 {
				return fmt.Sprintf("there are %s", names(now))
			}
			return ""
		})
		s.Settle()
	}
	for _, lost := range s.Callers().Report().Reasons {
		want(s, lost.Reason != noInstance, "callers to know two Pods at any time, %d requests met none", lost.Count)
	}
}
