// SPDX-License-Identifier: Apache-2.0

package stories

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/test/e2e"
)

const (
	// outage is how long an API server is away.
	outage = 5 * time.Second
	// registryOutage is how long a registry is away.
	registryOutage = 15 * time.Second
)

var outages = []e2e.Story{
	{
		Name:  "usher-killed",
		About: "all of Usher is killed in the middle of an update in place; nobody leads for 15 s",
		Alone: true,
		Play: func(s *e2e.Scene) {
			midway(s)
			killed := time.Now()
			s.KillUsher()
			s.AwaitUsher(killed)
			wantVersion(s, s.Settle(), "v2")
		},
	},
	{
		Name:  "usher-upgraded",
		About: "Usher's replicas are replaced in the middle of an update in place and of scaling in",
		Alone: true,
		Play: func(s *e2e.Scene) {
			midway(s)
			asked := time.Now()
			s.RestartUsher()
			s.Scale(2)
			s.AwaitUsher(asked)
			wantVersion(s, s.Settle(), "v2")
		},
	},
	{
		Name:  "registry-down",
		About: "etcd is killed in the middle of an update in place and back after 15 s: no Pod is touched while nobody can know what it lists",
		// Nobody else needs it.
		Registries: []e2e.Registry{e2e.OwnEtcd},
		Takes:      70 * time.Second,
		Play: func(s *e2e.Scene) {
			midway(s)
			s.Step("the registry is down")
			s.KillEtcd()
			n := serving(s.State(), "v2")
			end := time.Now().Add(registryOutage)
			s.Await("the Registration to say so", func(now e2e.State) string {
				c := meta.FindStatusCondition(now.Registration.Status.Conditions, usherv1alpha1.ConditionReady)
				if c == nil || c.Status != metav1.ConditionFalse {
					return fmt.Sprintf("its condition Ready is %+v", c)
				}
				return ""
			})
			s.Hold("no more Pods are updated", time.Until(end), func(now e2e.State) string {
				// One may have been released already.
				if more := serving(now, "v2") - n; more > 1 {
					return fmt.Sprintf("%d more serve v2", more)
				}
				return ""
			})
			s.StartEtcd()
			wantVersion(s, s.Settle(), "v2")
		},
	},
	{
		Name:  "apiserver-down",
		About: "the API server is killed in the middle of an update in place and is back after 5 s",
		Alone: true,
		Play: func(s *e2e.Scene) {
			midway(s)
			s.Step("the API server is down")
			plane := s.Node().Plane()
			s.Check(plane.KillAPIServer())
			s.Pause(outage)
			s.Check(plane.StartAPIServer(s.Context()))
			s.Step("the API server is back")
			wantVersion(s, s.Settle(), "v2")
		},
	},
	{
		Name:  "usher-leaderless",
		About: "Usher's leader loses its lease in the middle of an update in place, nobody leads for a while, and meanwhile a newer image is asked for",
		Alone: true,
		Play: func(s *e2e.Scene) {
			before := midway(s)
			s.DeposeUsher()
			s.Image("v3")
			s.Hold("the rollout without a leader", outage, func(now e2e.State) string {
				if seen := now.Set.Status.ObservedGeneration; seen >= s.Generation() {
					return fmt.Sprintf("somebody leads, and has seen generation %d", seen)
				}
				return ""
			})
			s.ElectUsher()
			after := s.Settle()
			wantVersion(s, after, "v3")
			wantSame(s, before, after)
		},
	},
}
