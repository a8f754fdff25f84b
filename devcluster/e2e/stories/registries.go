// SPDX-License-Identifier: Apache-2.0

package stories

import (
	"github.com/usher-dev/usher/devcluster/e2e"
)

func consul() e2e.Story {
	return e2e.Story{
		Name:     "registry-consul", // A service "consul" is Consul itself.
		About:    "in place and in, before callers who follow Consul with blocking queries",
		Registry: e2e.Consul,
		Play:     updateAndScaleIn,
	}
}

func haproxy() e2e.Story {
	return e2e.Story{
		Name:     "registry-haproxy",
		About:    "in place and in, behind HAProxy, which is all that callers know",
		Registry: e2e.HAProxy,
		Play: func(s *e2e.Scene) {
			// HAProxy itself says when the last request is over.
			s.Registration(`spec: {drain: {propagation: 0s}}`)
			updateAndScaleIn(s)
		},
	}
}

// updateAndScaleIn is what every registry has to stand.
func updateAndScaleIn(s *e2e.Scene) {
	s.Open(`spec: {replicas: 4}`)
	before := s.State()
	s.Image("v2")
	after := s.Settle()
	allRun(s, after, "v2")
	sameAfterRestarts(s, before, after, 1)
	s.Scale(2)
	now := s.Settle()
	for _, pod := range now.Pods {
		want(s, before.Pod(pod.Name) != nil, "two of %s, not %s", names(before), names(now))
	}
	answered(s, "v1", "v2")
}
