// SPDX-License-Identifier: Apache-2.0

package stories

import (
	"slices"
	"time"

	"github.com/usher-dev/usher/test/cluster/images"
	"github.com/usher-dev/usher/test/e2e"
)

var containers = []e2e.Story{
	{
		Name:  "in-place-one-of-several",
		About: "a new image of one container of three in place, and of another one: each time the others run on",
		Takes: 40 * time.Second,
		Play: func(s *e2e.Scene) {
			s.Open(`{spec: {template: {spec: {
				initContainers: [{name: side, image: "usher.test/web:v1", restartPolicy: Always, env: [{name: PORT, value: "8081"}]}],
				containers: [{name: main}, {name: helper, image: "usher.test/web:v1", env: [{name: PORT, value: "8082"}]}]}}}}`)
			before := s.State()
			s.Image("v2")
			onlyRestarted(s, before, "main")
			s.Step("a new image of the helper")
			s.Change(`spec: {template: {spec: {containers: [{name: helper, image: "usher.test/web:v2"}]}}}`)
			onlyRestarted(s, before, "main", "helper")
		},
	},
}

// onlyRestarted waits until everything is settled, and checks that the Pods are the
// same, that these containers run v2 after one restart, and that all others run v1
// without a restart.
func onlyRestarted(s *e2e.Scene, before e2e.State, containers ...string) {
	after := s.Settle()
	wantSame(s, before, after)
	for _, pod := range after.Pods {
		for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
			restarts, image := int32(0), images.Web+":v1"
			if slices.Contains(containers, c.Name) {
				restarts, image = 1, images.Web+":v2"
			}
			want(s, c.State.Running != nil && c.RestartCount == restarts && c.Image == image,
				"%s of %s to run %s after %d restarts, not %s after %d", c.Name, pod.Name, image, restarts, c.Image, c.RestartCount)
		}
	}
}
