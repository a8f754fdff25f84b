// SPDX-License-Identifier: Apache-2.0

package stories

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/devcluster/e2e"
)

// registryAway is how long the registry is away.
const registryAway = 15 * time.Second

func registryDown() e2e.Story {
	return e2e.Story{
		Name:  "registry-down",
		About: "the registry is killed in mid-rollout and away for 15 s: the rollout waits, and goes on",
		Alone: true,
		Play: func(s *e2e.Scene) {
			before, middle := rolling(s)
			s.KillRegistry()
			end := time.Now().Add(registryAway)
			s.Await("the Registration to say that it waits for the registry", notReady)
			s.Hold("the rollout without a registry", time.Until(end), atMost(middle, 1))
			s.StartRegistry()
			finish(s, before)
		},
	}
}

func apiServerDown() e2e.Story {
	return e2e.Story{
		Name:  "api-server-restart",
		About: "the API server is killed in mid-rollout and started again",
		Alone: true,
		Play: func(s *e2e.Scene) {
			before, _ := rolling(s)
			s.KillAPIServer()
			sent := s.Stats().Sent
			s.Await("requests without an API server", func(e2e.State) string {
				if more := s.Stats().Sent - sent; more < 100 {
					return fmt.Sprintf("%d were sent", more)
				}
				return ""
			})
			s.StartAPIServer()
			finish(s, before)
		},
	}
}

func usherUpgraded() e2e.Story {
	return e2e.Story{
		Name:  "usher-upgraded",
		About: "new replicas take over from Usher's old ones in mid-rollout",
		Alone: true,
		Play: func(s *e2e.Scene) {
			before, _ := rolling(s)
			began := time.Now()
			s.RestartUsher()
			s.AwaitUsher(began)
			finish(s, before)
		},
	}
}

func usherLeaderless() e2e.Story {
	return e2e.Story{
		Name:  "usher-leaderless",
		About: "Usher's leader loses its lease in mid-rollout, and nobody leads for a while",
		Alone: true,
		Play: func(s *e2e.Scene) {
			before, _ := rolling(s)
			s.DeposeUsher()
			// What the kubelet was asked to do it still does.
			s.Hold("the rollout without a leader", 5*time.Second, atMost(s.State(), 1))
			s.ElectUsher()
			finish(s, before)
		},
	}
}

// rolling opens with five Pods and returns in mid-rollout to v2: one Pod is
// through at least, another one is on its way.
func rolling(s *e2e.Scene) (before, middle e2e.State) {
	s.Open(`spec: {replicas: 5}`)
	before = s.State()
	s.Image("v2")
	return before, s.Await("the middle of the rollout", func(now e2e.State) string {
		if now.Set.Status.UpdatedAvailableReplicas == 0 {
			return "no Pod is through"
		}
		if now.In(appsv1alpha1.StatePreparingUpdate)+now.In(appsv1alpha1.StateUpdating) == 0 {
			return "none is on its way"
		}
		return ""
	})
}

// finish waits for the end of a rollout that began from a state: in place.
func finish(s *e2e.Scene, before e2e.State) {
	after := s.Settle()
	allRun(s, after, "v2")
	sameAfterRestarts(s, before, after, 1)
	answered(s, "v1", "v2")
}

// atMost finds fault with more restarts since a state than so many, and with more
// than one Pod that is not ready.
func atMost(since e2e.State, restarts int32) func(e2e.State) string {
	return func(now e2e.State) string {
		var more int32
		away := 0
		for _, pod := range now.Pods {
			more += e2e.Restarts(&pod)
			if !e2e.PodReady(&pod) {
				away++
			}
		}
		for _, pod := range since.Pods {
			more -= e2e.Restarts(&pod)
		}
		if more > restarts || away > 1 {
			return fmt.Sprintf("%d containers were restarted and %d Pods are not ready", more, away)
		}
		return ""
	}
}

// notReady looks for what the Registration says of a registry that is away.
func notReady(now e2e.State) string {
	c := meta.FindStatusCondition(now.Registration.Status.Conditions, usherv1alpha1.ConditionReady)
	if c == nil || c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, string(e2e.Etcd)) {
		return fmt.Sprintf("the condition Ready is %+v", c)
	}
	return ""
}
