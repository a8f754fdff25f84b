// SPDX-License-Identifier: Apache-2.0

package stories

import (
	"time"

	"github.com/usher-dev/usher/test/cluster/images"
	"github.com/usher-dev/usher/test/demo/manifests"
	"github.com/usher-dev/usher/test/e2e"
)

// seedPropagation is the manifests' value.
const seedPropagation = 4 * time.Second

// seed plays a CloneSet as its author published it, except for its name, its image,
// which is pulled from an image registry, and a readiness probe: without one, a Pod is
// ready as soon as its container has started, even if it does not listen yet.
func seed(s *e2e.Scene, name string) {
	registration, err := manifests.Read(name + "-registration.yaml")
	s.Check(err)
	set, err := manifests.Read(name + ".yaml")
	s.Check(err)
	s.OpenManifest(set, registration, `spec: {template: {spec: {containers: [{name: main, image: `+images.PulledWeb+":"+"v1"+`,
		readinessProbe: {httpGet: {path: /readyz, port: 8080}, periodSeconds: 1}}]}}}`)
}

func seedImage(s *e2e.Scene, version string) {
	s.Step("image %s", version)
	s.Change(`spec: {template: {spec: {containers: [{name: main, image: ` + images.PulledWeb + ":" + version + `}]}}}`)
}

var seeds = []e2e.Story{
	{
		Name:  "seed-hooks",
		About: "the CloneSet of OpenKruise's article “CloneSet Lifecycle”: created, scaled out, updated in place, scaled in",
		Takes: 45 * time.Second,
		Play: func(s *e2e.Scene) {
			seed(s, "seed1")
			s.Scale(4)
			before := s.Settle()
			seedImage(s, "v2")
			after := s.Settle()
			wantVersion(s, after, "v2")
			wantSamePods(s, before, after, 1)
			settleAt(s, 2)
		},
		Propagation: seedPropagation,
	},
	{
		Name:        "seed-prenormal",
		About:       "the CloneSet of OpenKruise's proposal “PreNormal Hook”: recreated, scaled out and in; it asks for no hook before a Pod goes",
		MayLose:     true,
		Unguarded:   true,
		Propagation: seedPropagation,
		Play:        func(s *e2e.Scene) { preNormal(s, "seed3") },
	},
	{
		Name:        "seed-prenormal-drain",
		About:       "the same with a preDelete hook beside it",
		Takes:       30 * time.Second,
		Propagation: seedPropagation,
		Play:        func(s *e2e.Scene) { preNormal(s, "seed3-predelete") },
	},
}

// preNormal plays the life of a set whose Pods join behind a hook.
func preNormal(s *e2e.Scene, name string) {
	seed(s, name)
	seedImage(s, "v2")
	wantVersion(s, s.Settle(), "v2")
	settleAt(s, 5, 3)
}
