// SPDX-License-Identifier: Apache-2.0

package targets

import (
	"strings"
	"sync"

	"github.com/usher-dev/usher/internal/registration/registry"
)

// Shared are clients that connectors share: those with the same settings and credentials have one, so that their calls
// are bounded together. The zero value has none.
type Shared[T Client] struct {
	mu    sync.Mutex
	byKey map[string]*used[T]
}

// Client is closed when no connector uses it any more.
type Client interface{ Close() error }

type used[T any] struct {
	client T
	users  int
}

// Acquire returns the client of these settings and credentials, which makes it unless it is there, and what releases
// it, to be called once.
func (s *Shared[T]) Acquire(settings []string, makes func() (T, error)) (client T, release func() error, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := registry.Digest([]byte(strings.Join(settings, "\x00")))
	one := s.byKey[key]
	if one == nil {
		if client, err = makes(); err != nil {
			return client, nil, err
		}
		if one = (&used[T]{client: client}); s.byKey == nil {
			s.byKey = map[string]*used[T]{}
		}
		s.byKey[key] = one
	}
	one.users++
	return one.client, func() error { return s.release(key) }, nil
}

// Len is how many clients there are.
func (s *Shared[T]) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byKey)
}

func (s *Shared[T]) release(key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.byKey[key]
	if one.users--; one.users > 0 {
		return nil
	}
	delete(s.byKey, key)
	return one.client.Close()
}
