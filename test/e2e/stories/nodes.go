// SPDX-License-Identifier: Apache-2.0

package stories

import (
	"fmt"

	"github.com/usher-dev/usher/test/e2e"
	"github.com/usher-dev/usher/test/stage"
)

var nodes = []e2e.Story{
	{
		Name:  "kubelet-restart",
		About: "the kubelet is away for 5 s in the middle of an update in place, too short for the node to be lost",
		Alone: true,
		Play: func(s *e2e.Scene) {
			before := midway(s, `spec: {replicas: 4}`)
			s.Step("the kubelet is away")
			s.Check(s.Node().StopKubelet(s.Context()))
			s.Hold("the rollout without a kubelet", outage, atMostOneMore(s.State()))
			s.Step("the kubelet is back")
			s.Check(s.Node().StartKubelet(s.Context()))
			after := s.Settle()
			wantVersion(s, after, "v2")
			wantSamePods(s, before, after, 1)
		},
	},
	{
		Name:  "node-lost",
		About: "the only node is lost in the middle of an update in place, scaled in meanwhile, and back: half of its Pods stay in the registry",
		Alone: true,
		Play: func(s *e2e.Scene) {
			const pods = 5
			s.OpenWith(`spec: {nodeFailure: {grace: 2s}}`, fmt.Sprintf(`spec: {replicas: %d}`, pods))
			s.Image("v2")
			awaitMidway(s)
			s.Step("the node is lost")
			s.Check(s.Node().StopKubelet(s.Context()))
			s.Await("Pods to leave the registry", func(now e2e.State) string { return tooMany(now, pods/2+1) })
			// What runs there is unknown: the node may only be unreachable.
			s.Hold("half of the Pods stay registered", outage, func(now e2e.State) string {
				if n := now.Registration.Status.Registered; n < pods/2 {
					return fmt.Sprintf("%d are", n)
				}
				return ""
			})
			s.Scale(pods - 1)
			s.Step("the node is back")
			s.Check(s.Node().StartKubelet(s.Context()))
			wantVersion(s, s.Settle(), "v2")
		},
	},
}

// noInstance is why a request is lost while nothing is registered.
const noInstance = "the caller knew no instance"

func tooMany(now e2e.State, registered int32) string {
	if n := now.Registration.Status.Registered; n > registered {
		return fmt.Sprintf("%d are registered", n)
	}
	return ""
}

// atMostOneMore reports more than one restart since a state, and more than one Pod that
// is not ready.
func atMostOneMore(since e2e.State) func(e2e.State) string {
	return func(now e2e.State) string {
		more := 0
		away := 0
		for _, pod := range now.Pods {
			more += stage.Restarts(&pod)
			if !stage.Ready(&pod) {
				away++
			}
		}
		for _, pod := range since.Pods {
			more -= stage.Restarts(&pod)
		}
		if more > 1 || away > 1 {
			return fmt.Sprintf("%d containers were restarted and %d Pods are not ready", more, away)
		}
		return ""
	}
}
