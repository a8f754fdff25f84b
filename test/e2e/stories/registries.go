// SPDX-License-Identifier: Apache-2.0

package stories

import (
	"time"

	"github.com/usher-dev/usher/test/e2e"
)

// updateAndScale updates Pods in place, adds some and removes some.
func updateAndScale(s *e2e.Scene) {
	s.Open()
	update(s, "v2")
	settleAt(s, 5, 2)
}

var registries = []e2e.Story{
	{
		Name:       "registry-consul",
		About:      "callers that ask Consul: an update in place, out and in",
		Takes:      30 * time.Second,
		Registries: []e2e.Registry{e2e.Consul},
		Play:       updateAndScale,
	},
	{
		Name:       "registry-haproxy",
		About:      "callers behind HAProxy: an update in place, out and in",
		Takes:      25 * time.Second,
		Registries: []e2e.Registry{e2e.HAProxy},
		// HAProxy itself knows when the last request is over.
		Propagation: -1,
		Play:        updateAndScale,
	},
}
