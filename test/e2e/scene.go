// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/test/cluster/realnode"
	"github.com/usher-dev/usher/test/stage"
	"github.com/usher-dev/usher/test/traffic"
)

const (
	// rate is the number of requests per second in each story.
	rate = 100
	// patience bounds every wait of a story.
	patience = 2 * time.Minute
	// lookAgain is how often a condition is checked in addition to cluster events, for
	// what no watch reports.
	lookAgain = 100 * time.Millisecond
	// firstRequests must be answered before a story starts.
	firstRequests = 20
	// late is when a request without an answer is lost. It is long, because a machine
	// under other load may starve all containers at once for seconds.
	late = 30 * time.Second
)

// Scene is what a story acts on: its own namespace with a CloneSet, a Registration and
// callers. Its methods end the story when they fail, like those of testing.T; only the
// story's own goroutine may call them.
type Scene struct {
	ctx     context.Context
	session *session
	story   Story
	tell    func(step string)

	set         *unstructured.Unstructured // as last requested
	generation  int64
	client      *traffic.Client
	stopTraffic context.CancelFunc
	flowing     chan error
	failure     error
}

// perform plays a story to its end and returns why it failed.
func (s *Scene) perform() error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.story.Play(s)
	}()
	<-done
	if s.stopTraffic != nil {
		s.stopTraffic()
		if err := <-s.flowing; err != nil && s.failure == nil {
			s.failure = fmt.Errorf("the callers: %w", err)
		}
	}
	return s.failure
}

// Fatalf ends the story.
func (s *Scene) Fatalf(format string, args ...any) {
	s.failure = fmt.Errorf(format, args...)
	runtime.Goexit()
}

// Check ends the story if err is not nil.
func (s *Scene) Check(err error) {
	if err == nil {
		return
	}
	if cause := context.Cause(s.ctx); cause != nil {
		err = cause // It says more than what was interrupted.
	}
	s.Fatalf("%w", err)
}

// Step announces the next step.
func (s *Scene) Step(format string, args ...any) { s.tell(fmt.Sprintf(format, args...)) }

// Context ends when the run is interrupted.
func (s *Scene) Context() context.Context { return s.ctx }

// Namespace is the story's own namespace.
func (s *Scene) Namespace() string { return s.story.Name }

// Kube is the administrator's client.
func (s *Scene) Kube() client.Client { return s.session.Kube }

// Node is the node.
func (s *Scene) Node() *realnode.Node { return s.session.node }

// Generation is the set's generation after the story's last change.
func (s *Scene) Generation() int64 { return s.generation }

// State returns the present state.
func (s *Scene) State() State {
	now, err := s.session.state(s.ctx, s.Namespace())
	s.Check(err)
	return now
}

// Stats are the callers' counters.
func (s *Scene) Stats() traffic.Stats { return s.client.Stats(time.Now()) }

// Await waits until look returns "", that is, reports no obstacle.
func (s *Scene) Await(what string, look func(State) string) State {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for {
		changed := s.session.changes.Next()
		now := s.State()
		wrong := look(now)
		if wrong == "" {
			return now
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-s.ctx.Done():
			s.Check(context.Cause(s.ctx))
		case <-deadline.C:
			s.Fatalf("waited %s for %s: %s", patience, what, wrong)
		}
	}
}

// Hold checks for some time that look finds nothing wrong.
func (s *Scene) Hold(what string, during time.Duration, look func(State) string) {
	end := time.Now().Add(during)
	s.Await(what, func(now State) string {
		if wrong := look(now); wrong != "" {
			s.Fatalf("%s: %s", what, wrong)
		}
		if time.Now().Before(end) {
			return "its time is not over"
		}
		return ""
	})
}

// Settle waits until nothing is in progress, neither with Pods nor with requests sent
// to Pods that have left.
func (s *Scene) Settle() State {
	return s.Await("everything to settle", func(now State) string {
		if wrong := now.Unsettled(s.generation); wrong != "" {
			return wrong
		}
		if !s.client.Settled(time.Now()) {
			return "callers have old lists or open requests"
		}
		return ""
	})
}

// Open creates the namespace, the usual Registration and the usual CloneSet, with YAML
// documents merged into it, and returns when its Pods answer requests.
func (s *Scene) Open(documents ...string) { s.open(cloneSet, []string{registration}, documents) }

// OpenWith is Open with a YAML document merged into the usual Registration too.
func (s *Scene) OpenWith(over string, documents ...string) {
	s.open(cloneSet, []string{registration, over}, documents)
}

// OpenManifest is Open with other manifests. The story replaces the names of objects,
// service and registry, and the drain time.
func (s *Scene) OpenManifest(set, registration string, documents ...string) {
	s.open(set, []string{registration}, documents)
}

func (s *Scene) open(set string, registration, documents []string) {
	s.Step("open")
	s.Check(stage.OpenNamespace(s.ctx, s.Kube(), s.Namespace()))
	made, err := newRegistration(s.story, registration)
	s.Check(err)
	s.apply(made)
	s.set, err = newCloneSet(s.story, set, documents)
	s.Check(err)
	s.generation = s.apply(s.set)
	if s.story.Registry == HAProxy {
		// A load balancer accepts requests before it has any instance for them.
		s.Await("the first Pods", func(now State) string { return now.Unsettled(s.generation) })
	}
	s.call()
	s.Settle()
	s.Await("the first requests", func(State) string {
		if sent := s.Stats().Sent; sent < firstRequests {
			return fmt.Sprintf("%d were sent", sent)
		}
		return ""
	})
}

// Pause waits for a time that is part of the story.
func (s *Scene) Pause(d time.Duration) { s.Check(stage.Pause(s.ctx, d)) }

// call starts the callers.
func (s *Scene) call() {
	var err error
	// A drain has to be longer than this delay and the longest request together.
	part := s.story.Propagation / 8
	if part < 0 {
		part = defaultPropagation / 8
	}
	s.client, err = traffic.New(traffic.Options{
		Source: s.session.source(s.story), Rate: rate, CacheDelay: 2 * part, SlowMin: 2 * part, SlowMax: 4 * part,
		Timeout: late,
	})
	s.Check(err)
	ctx, stop := context.WithCancel(s.ctx)
	s.stopTraffic, s.flowing = stop, make(chan error, 1)
	go func() {
		err := s.client.Run(ctx)
		if errors.Is(err, context.Canceled) {
			err = nil
		}
		s.flowing <- err
	}()
}
