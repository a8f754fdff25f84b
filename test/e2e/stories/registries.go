// SPDX-License-Identifier: Apache-2.0

package stories

import (
	"time"

	"github.com/usher-dev/usher/test/e2e"
)

// update is what the stories of registries play: Pods are updated in place, added and
// removed.
func update(s *e2e.Scene) {
	s.Open()
	s.Image("v2")
	wantVersion(s, s.Settle(), "v2")
	s.Scale(5)
	s.Settle()
	s.Scale(2)
	s.Settle()
}

var registries = []e2e.Story{
	{
		Name:     "registry-consul",
		About:    "callers that ask Consul: an update in place, out and in",
		Takes:    30 * time.Second,
		Registry: e2e.Consul,
		Play:     update,
	},
	{
		Name:     "registry-haproxy",
		About:    "callers behind HAProxy: an update in place, out and in",
		Takes:    25 * time.Second,
		Registry: e2e.HAProxy,
		// HAProxy itself knows when the last request is over.
		Propagation: -1,
		Play:        update,
	},
}
