// SPDX-License-Identifier: Apache-2.0

package stories

import (
	"fmt"
	"time"

	"github.com/usher-dev/usher/devcluster/e2e"
)

// outage is how long a registry or an API server is away.
const outage = 5 * time.Second

func usherKilled() e2e.Story {
	return e2e.Story{
		Name:  "usher-killed",
		About: "all of Usher is killed in the middle of an update in place; nobody leads for 15 s",
		Alone: true,
		Play: func(s *e2e.Scene) {
			s.Open()
			s.Image("v2")
			awaitMidway(s)
			killed := time.Now()
			s.KillUsher()
			s.AwaitUsher(killed)
			wantVersion(s, s.Settle(), "v2")
		},
	}
}

func usherUpgraded() e2e.Story {
	return e2e.Story{
		Name:  "usher-upgraded",
		About: "Usher's replicas are replaced in the middle of an update in place and of scaling in",
		Alone: true,
		Play: func(s *e2e.Scene) {
			s.Open()
			s.Image("v2")
			awaitMidway(s)
			asked := time.Now()
			s.RestartUsher()
			s.Scale(2)
			s.AwaitUsher(asked)
			wantVersion(s, s.Settle(), "v2")
		},
	}
}

func registryDown() e2e.Story {
	return e2e.Story{
		Name:  "registry-down",
		About: "etcd is killed in the middle of an update in place: no Pod is touched while nobody can know what it lists",
		Alone: true,
		Play: func(s *e2e.Scene) {
			s.Open()
			s.Image("v2")
			awaitMidway(s)
			s.Step("the registry is down")
			s.KillEtcd()
			n := serving(s.State(), "v2")
			s.Hold("no more Pods are updated", outage, func(now e2e.State) string {
				// One may have been released already.
				if more := serving(now, "v2") - n; more > 1 {
					return fmt.Sprintf("%d more serve v2", more)
				}
				return ""
			})
			s.StartEtcd()
			wantVersion(s, s.Settle(), "v2")
		},
	}
}

func apiServerDown() e2e.Story {
	return e2e.Story{
		Name:  "apiserver-down",
		About: "the API server is killed in the middle of an update in place and is back after 5 s",
		Alone: true,
		Play: func(s *e2e.Scene) {
			s.Open()
			s.Image("v2")
			awaitMidway(s)
			s.Step("the API server is down")
			plane := s.Node().Plane()
			s.Check(plane.KillAPIServer())
			s.Pause(outage)
			s.Check(plane.StartAPIServer(s.Context()))
			s.Step("the API server is back")
			wantVersion(s, s.Settle(), "v2")
		},
	}
}

func nodeLost() e2e.Story {
	return e2e.Story{
		Name:  "node-lost",
		About: "the kubelet is gone until the node is taken for lost, and comes back; its containers run on",
		Alone: true,
		Loss:  e2e.LossMeasured,
		Play: func(s *e2e.Scene) {
			s.Open()
			before := s.State()
			s.Step("the node is lost")
			s.Check(s.Node().StopKubelet(s.Context()))
			s.Await("Pods that are not ready", func(now e2e.State) string {
				if n := serving(now, "v1"); n > 0 {
					return fmt.Sprintf("%d are", n)
				}
				return ""
			})
			s.Pause(outage)
			s.Step("the node is back")
			s.Check(s.Node().StartKubelet(s.Context()))
			wantSamePods(s, before, s.Settle(), 0)
		},
	}
}
