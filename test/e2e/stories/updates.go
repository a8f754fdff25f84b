// SPDX-License-Identifier: Apache-2.0

package stories

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/usher-dev/usher/test/cluster/images"
	"github.com/usher-dev/usher/test/e2e"
	"github.com/usher-dev/usher/test/stage"
)

var updates = []e2e.Story{
	{
		Name:  "in-place-image",
		About: "a new image in place, one of three Pods at a time",
		Play: func(s *e2e.Scene) {
			s.Open()
			updateInPlace(s)
		},
	},
	{
		Name:  "in-place-metadata",
		About: "a new label and annotation in place: no container restarts",
		Play: func(s *e2e.Scene) {
			s.Open()
			before := s.State()
			s.Step("a new label and annotation")
			s.Change(`spec: {template: {metadata: {labels: {example.com/tier: gold}, annotations: {example.com/note: changed}}}}`)
			after := s.Settle()
			wantSamePods(s, before, after, 0)
			for _, pod := range after.Pods {
				want(s, pod.Labels["example.com/tier"] == "gold" && pod.Annotations["example.com/note"] == "changed",
					"the new label and annotation on %s", pod.Name)
			}
		},
	},
	{
		Name:  "in-place-resources",
		About: "more cpu and memory in place: no container restarts",
		Play: func(s *e2e.Scene) {
			s.Open()
			before := s.State()
			s.Step("more cpu and memory")
			s.Change(`spec: {template: {spec: {containers: [{name: main,
				resources: {requests: {cpu: 20m, memory: 24Mi}, limits: {memory: 96Mi}}}]}}}`)
			after := s.Settle()
			wantSamePods(s, before, after, 0)
			for _, pod := range after.Pods {
				given := pod.Status.ContainerStatuses[0].Resources
				want(s, given != nil && given.Limits.Memory().String() == "96Mi" && given.Requests.Cpu().String() == "20m",
					"%s to be given 20m and 96Mi, not %+v", pod.Name, given)
			}
		},
	},
	{
		Name:  "in-place-sidecar",
		About: "a new image of a native sidecar in place: the container that serves runs on",
		Play: func(s *e2e.Scene) {
			const sidecar = `spec: {template: {spec: {initContainers: [{name: side, restartPolicy: Always,
				image: %s:%s, env: [{name: PORT, value: "8081"}]}]}}}`
			s.Open(fmt.Sprintf(sidecar, images.Web, "v1"))
			before := s.State()
			s.Step("a new image of the sidecar")
			s.Change(fmt.Sprintf(sidecar, images.Web, "v2"))
			onlyRestarted(s, before, "side")
		},
	},
	{
		Name:  "recreate-surge",
		About: "new Pods in place of three old ones, with one more than wanted meanwhile",
		Play: func(s *e2e.Scene) {
			s.Open(`spec: {updateStrategy: {type: ReCreate, maxSurge: 1, maxUnavailable: 0}}`)
			before := s.State()
			s.Image("v2")
			after := s.Settle()
			wantVersion(s, after, "v2")
			wantOthers(s, before, after)
		},
	},
	{
		Name:  "rollback",
		About: "the old image again in the middle of a rollout: Pods not updated yet do not restart",
		Play: func(s *e2e.Scene) {
			before := midway(s, `spec: {replicas: 4}`)
			during := s.State()
			s.Image("v1")
			after := s.Settle()
			wantVersion(s, after, "v1")
			wantSame(s, before, after)
			restarted := 0
			for _, pod := range during.Pods {
				if pod.Spec.Containers[0].Image == images.Web+":v1" && stage.Restarts(after.Pod(pod.Name)) > 0 {
					restarted++
				}
			}
			want(s, restarted <= 1, "no restart of Pods that were not updated")
		},
	},
	{
		Name:  "scale",
		About: "out and in through the scale subresource, as autoscalers do",
		Play: func(s *e2e.Scene) {
			s.Open()
			settleAt(s, 5, 2, 4)
		},
	},
	{
		Name:  "ignores-sigterm",
		About: "containers that ignore SIGTERM and end by SIGKILL after their grace period of 3 s",
		Takes: 40 * time.Second,
		Play: func(s *e2e.Scene) {
			s.Open(`spec: {template: {spec: {terminationGracePeriodSeconds: 3,
				containers: [{name: main, env: [{name: IGNORE_TERM, value: "1"}]}]}}}`)
			update(s, "v2")
			settleAt(s, 2)
		},
	},
	{
		Name:  "slow-prestop",
		About: "a preStop hook of 5 s before each restart and end",
		Takes: 45 * time.Second,
		Play: func(s *e2e.Scene) {
			s.Open(preStop(5))
			updateInPlace(s)
			settleAt(s, 2)
		},
	},
}

// preStop is a hook that sleeps in the container.
func preStop(seconds int) string {
	return fmt.Sprintf(`spec: {template: {spec: {containers: [{name: main,
		lifecycle: {preStop: {exec: {command: [%s, sleep, "%d"]}}}}]}}}`, images.WebProgram, seconds)
}

// waitingFor is why a Pod's container main waits; empty if it does not.
func waitingFor(pod *corev1.Pod) string {
	for _, c := range pod.Status.ContainerStatuses {
		if c.Name == "main" && c.State.Waiting != nil {
			return c.State.Waiting.Reason
		}
	}
	return ""
}
