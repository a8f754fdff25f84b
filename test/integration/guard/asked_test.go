// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/internal/scenariotest"
)

// asked are the applications in simulated Pods, which are asked to leave their registry: by PUT /<namespace>/out, and to
// return by POST /<namespace>/in.
var asked = &applications{
	away: map[string]map[string]registry.Entry{}, answers: map[string]string{}, times: map[string]int{},
}

type applications struct {
	inPods

	mu sync.Mutex
	// away are the entries that applications have taken out, by namespace and the Pod's address.
	away map[string]map[string]registry.Entry
	// answers are what those of a namespace answer: "503", "idly" to do nothing, or nothing special.
	answers map[string]string
	// times is how often those of a namespace were asked.
	times map[string]int
}

// ServeHTTP takes the application's entry out, or registers it again.
func (a *applications) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	namespace, verb, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	host, _, _ := net.SplitHostPort(r.Host)
	a.mu.Lock()
	a.times[namespace]++
	how := a.answers[namespace]
	a.mu.Unlock()
	switch {
	case how == "503":
		w.WriteHeader(http.StatusServiceUnavailable)
	case how == "idly":
	case r.Method == http.MethodPut && verb == "out":
		callers.leaveAsAsked(namespace, host)
	case r.Method == http.MethodPost && verb == "in":
		callers.returnAsAsked(namespace, host)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// isAway reports whether the application at an address has taken itself out. A new process has not.
func (a *applications) isAway(namespace, address string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, away := a.away[namespace][address]
	return away
}

// put notes that an application has taken an entry out, or, without one, forgets that it has.
func (a *applications) put(namespace, address string, e *registry.Entry) (before registry.Entry, away bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before, away = a.away[namespace][address]
	delete(a.away[namespace], address)
	if e != nil {
		if a.away[namespace] == nil {
			a.away[namespace] = map[string]registry.Entry{}
		}
		a.away[namespace][address] = *e
	}
	return before, away
}

// leaveAsAsked has the application at an address take its entry out.
func (w *witness) leaveAsAsked(namespace, address string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := list.Find(w.registry.Entries(namespace), func(e *registry.Entry) bool { return e.Address == address })
	if e == nil {
		return
	}
	asked.put(namespace, address, e)
	w.registry.Drop(namespace, e.ID)
	if uid := w.atAddress[namespace+"/"+address]; uid != "" {
		w.left[uid] = time.Now()
	}
}

// returnAsAsked has it register itself again.
func (w *witness) returnAsAsked(namespace, address string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e, away := asked.put(namespace, address, nil); away {
		delete(w.left, w.atAddress[namespace+"/"+address])
		w.registry.Register(namespace, e)
	}
}

// askedWords are the words about applications that are asked to leave their registry.
var askedWords = []scenariotest.Word[*story]{
	{Name: "applications answer", Args: "503 | idly | as they should",
		Does: "has applications that are asked to leave refuse that, say yes and do nothing, or leave",
		Run: func(s *story, how string) {
			asked.mu.Lock()
			defer asked.mu.Unlock()
			asked.answers[s.Namespace] = how
		}},
	{Name: "applications are asked", Args: "N times", Does: "waits until applications have been asked N times or more to leave or to return",
		Run: func(s *story, n string) {
			want := scenariotest.Number(strings.TrimSuffix(n, " times"))
			s.Until(n, func() string {
				asked.mu.Lock()
				defer asked.mu.Unlock()
				have := asked.times[s.Namespace]
				return registrytest.Unless(have >= want, fmt.Sprintf("they were asked %d times", have))
			})
		}},
}
