// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"maps"
	"math/rand/v2"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/test/model"
)

// mostPast is how many past states of the API server are remembered.
const mostPast = 100

// past are the states that API servers whose own caches lag still list.
type past struct {
	random *rand.Rand
	// states are the latest ones, of which the first has the number from. shown is the number of the state of each kind
	// that the operator's caches had last: it asks for nothing older.
	states []model.Objects
	from   int
	shown  map[model.Kind]int
}

// remember adds the present state.
func (p *past) remember(now model.Objects) {
	p.states = append(p.states, now.Clone())
	if gone := len(p.states) - mostPast; gone > 0 {
		p.states, p.from = p.states[gone:], p.from+gone
	}
}

// relist has the caches list anew, some kinds from an API server that lags, which shows what was at some time since the
// last list. An operator that trusts each list takes what is in it for the latest version.
func (s *simulation) relist() {
	p := &s.past
	if !s.features.lists || s.calm || len(p.states) == 0 || p.random.IntN(2) == 0 {
		s.refresh()
		return
	}
	s.cached = maps.Clone(s.cached)
	last := p.from + len(p.states) - 1
	for _, kind := range slices.Sorted(maps.Keys(s.server.Objects)) {
		first := min(max(p.shown[kind], p.from), last)
		at := first + p.random.IntN(last-first+1)
		p.shown[kind], s.cached[kind] = at, maps.Clone(p.states[at-p.from][kind])
		if s.defects.trusts {
			s.trust(kind)
		}
	}
}

// trust gives what the caches show the versions that the API server has.
func (s *simulation) trust(kind model.Kind) {
	for at, object := range s.cached[kind] {
		if live := s.server.Objects[kind][at]; live != nil && live.GetUID() == object.GetUID() {
			s.cached[kind][at] = versioned(object, live.GetResourceVersion())
		}
	}
}

func versioned(object client.Object, version string) client.Object {
	object = model.Clone(object)
	object.SetResourceVersion(version)
	return object
}

// caughtUp notes that the caches show the present.
func (p *past) caughtUp(objects model.Objects) {
	for kind := range objects {
		p.shown[kind] = p.from + len(p.states) - 1
	}
}
