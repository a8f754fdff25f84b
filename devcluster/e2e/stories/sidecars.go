// SPDX-License-Identifier: Apache-2.0

package stories

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/usher-dev/usher/devcluster/e2e"
)

func sidecars() e2e.Story {
	return e2e.Story{
		Name:  "sidecars",
		About: "one of three containers in place: the main one, a sidecar among the init containers, a second one",
		Play: func(s *e2e.Scene) {
			s.Open(`
spec:
  template:
    spec:
      initContainers:
      - {name: proxy, image: "usher.test/web:v1", restartPolicy: Always, env: [{name: PORT, value: "8081"}]}
      containers:
      - {name: main, image: "usher.test/web:v1"}
      - {name: helper, image: "usher.test/web:v1", env: [{name: PORT, value: "8082"}]}
`)
			before := s.State()
			s.Image("v2")
			onlyRestarted(s, before, "main")
			s.Step("sidecar v2")
			s.Change(`spec: {template: {spec: {initContainers: [{name: proxy, image: "usher.test/web:v2"}]}}}`)
			onlyRestarted(s, before, "main", "proxy")
			s.Step("helper v2")
			s.Change(`spec: {template: {spec: {containers: [{name: helper, image: "usher.test/web:v2"}]}}}`)
			onlyRestarted(s, before, "main", "proxy", "helper")
		},
	}
}

// onlyRestarted waits until all is settled, and checks that of each Pod, which are
// the same, these containers were restarted once and run v2, and no other.
func onlyRestarted(s *e2e.Scene, before e2e.State, containers ...string) {
	after := s.Settle()
	want(s, names(after) == names(before), "the same Pods %s, not %s", names(before), names(after))
	for _, pod := range after.Pods {
		want(s, pod.UID == before.Pod(pod.Name).UID, "the same %s", pod.Name)
		for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
			restarts, image := int32(0), e2e.WebImage+":v1"
			if slices.Contains(containers, c.Name) {
				restarts, image = 1, e2e.WebImage+":v2"
			}
			want(s, running(c) && c.RestartCount == restarts && c.Image == image, "%s of %s with %s after %d restarts, it has %s after %d",
				c.Name, pod.Name, image, restarts, c.Image, c.RestartCount)
		}
	}
}

func running(c corev1.ContainerStatus) bool { return c.State.Running != nil }
