// SPDX-License-Identifier: Apache-2.0

package stories

import (
	"github.com/usher-dev/usher/devcluster/e2e"
)

func inPlaceImage() e2e.Story {
	return e2e.Story{
		Name:  "in-place-image",
		About: "a new image in place, one of three Pods at a time",
		Play: func(s *e2e.Scene) {
			s.Open()
			before := s.State()
			s.Image("v2")
			after := s.Settle()
			allRun(s, after, "v2")
			want(s, names(after) == names(before), "the same Pods %s, not %s", names(before), names(after))
			for _, pod := range after.Pods {
				old := before.Pod(pod.Name)
				want(s, pod.UID == old.UID && pod.Status.PodIP == old.Status.PodIP, "%s with the same UID and address", pod.Name)
				want(s, e2e.Restarts(&pod) == 1, "one restart of %s, not %d", pod.Name, e2e.Restarts(&pod))
			}
		},
	}
}

func recreate() e2e.Story {
	return e2e.Story{
		Name:  "recreate-surge",
		About: "new Pods in place of three old ones, with one more than wanted meanwhile",
		Play: func(s *e2e.Scene) {
			s.Open(`spec: {updateStrategy: {type: ReCreate, maxSurge: 1, maxUnavailable: 0}}`)
			before := s.State()
			s.Image("v2")
			after := s.Settle()
			allRun(s, after, "v2")
			for _, pod := range after.Pods {
				want(s, before.Pod(pod.Name) == nil, "%s gone", pod.Name)
			}
		},
	}
}
