// SPDX-License-Identifier: Apache-2.0

package stories

import (
	"fmt"
	"time"

	"github.com/usher-dev/usher/devcluster/e2e"
)

// kubeletAway is shorter than what makes a node lost.
const kubeletAway = 5 * time.Second

func kubeletRestart() e2e.Story {
	return e2e.Story{
		Name:  "kubelet-restart",
		About: "the kubelet is away in mid-rollout, too short for the node to be lost",
		Alone: true,
		Play: func(s *e2e.Scene) {
			before, middle := rolling(s)
			s.StopKubelet()
			s.Hold("the rollout without a kubelet", kubeletAway, atMost(middle, 1))
			s.StartKubelet()
			finish(s, before)
		},
	}
}

func nodeLost() e2e.Story {
	return e2e.Story{
		Name:  "node-lost",
		About: "the only node is lost in mid-rollout and comes back: its Pods leave the registry, and return",
		Alone: true,
		// A request that no Pod is registered for is lost; Usher cannot help it.
		Loss: e2e.LossMeasured,
		Play: func(s *e2e.Scene) {
			rolling(s)
			s.StopKubelet()
			s.AwaitNode(false)
			s.Await("all Pods to leave the registry", func(now e2e.State) string {
				if n := now.Registration.Status.Registered; n > 0 {
					return fmt.Sprintf("%d are registered", n)
				}
				return ""
			})
			s.Scale(4)
			s.StartKubelet()
			s.AwaitNode(true)
			after := s.Settle()
			allRun(s, after, "v2")
			for _, loss := range s.Stats().Reasons {
				want(s, loss.Reason == "the caller knew no instance", "no request sent to a Pod and lost, %d are: %s", loss.Count, loss.Reason)
			}
		},
	}
}
