// SPDX-License-Identifier: Apache-2.0

package stories

import (
	"fmt"

	"github.com/usher-dev/usher/devcluster/e2e"
)

func forced() e2e.Story {
	return e2e.Story{
		Name:  "delete-forced",
		About: "three Pods deleted by force, one after the other: Usher hears of it when the kubelet does",
		Loss:  e2e.LossMeasured,
		Play:  deleteByForce(""),
	}
}

func forcedSleep() e2e.Story {
	return e2e.Story{
		Name:  "delete-forced-sleep",
		About: "the same with a preStop sleep, which the kubelet cuts short",
		Loss:  e2e.LossMeasured,
		Play:  deleteByForce(`spec: {template: {spec: {containers: [{name: main, lifecycle: {preStop: {sleep: {seconds: 4}}}}]}}}`),
	}
}

func deleteByForce(document string) func(*e2e.Scene) {
	return func(s *e2e.Scene) {
		s.Open(document)
		for _, pod := range s.State().Pods {
			s.ForceDeletePod(pod.Name)
			s.Await("another Pod for "+pod.Name, func(now e2e.State) string {
				if left := now.Pod(pod.Name); left != nil && left.UID == pod.UID {
					return "it is still there"
				}
				if len(now.Pods) < 3 {
					return fmt.Sprintf("there are %d", len(now.Pods))
				}
				return ""
			})
			s.Settle()
		}
		for _, loss := range s.Stats().Reasons {
			want(s, loss.Reason != "the caller knew no instance", "two Pods that callers know at any time, %d requests met none", loss.Count)
		}
	}
}
