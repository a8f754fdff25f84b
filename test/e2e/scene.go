// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
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

// Scene is what a story acts on: its own namespace with a workload, a Registration and
// callers. Its methods end the story when they fail, like those of testing.T; only the
// story's own goroutine may call them.
type Scene struct {
	ctx     context.Context
	session *session
	story   Story
	tell    func(step string)

	object     *unstructured.Unstructured // the workload as last requested
	schema     any                        // its type, which tells how documents are merged into it
	generation int64
	callers    *callers // nil if there are none
	report     traffic.Report
	notes      []string // of what the story measures, for its line
	failure    error
}

// perform plays a story to its end and returns why it failed.
func (s *Scene) perform() error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.story.Play(s)
	}()
	<-done
	if err := s.hangUp(); err != nil && s.failure == nil {
		s.failure = err
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

// Generation is the workload's generation after the story's last change.
func (s *Scene) Generation() int64 { return s.generation }

// State returns the present state.
func (s *Scene) State() State {
	now, err := s.session.state(s.ctx, s.Namespace())
	s.Check(err)
	if s.object != nil && now.Set == nil {
		now.Workload, err = s.session.workload(s.ctx, s.object)
		s.Check(err)
	}
	return now
}

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
		return s.callers.unsettled()
	})
}

// Open creates the namespace, the usual Registration and the usual CloneSet, with YAML
// documents merged into it, and returns when its Pods answer requests.
func (s *Scene) Open(documents ...string) { s.OpenWith("", documents...) }

// OpenWith is Open with a YAML document merged into the usual Registration too.
func (s *Scene) OpenWith(over string, documents ...string) {
	s.open(stage.CloneSet{}, append([]string{cloneSet}, documents...), registration, hooks, over)
}

// OpenWorkload is Open with a workload of Kubernetes' own kinds: a Deployment, a
// StatefulSet or a DaemonSet.
func (s *Scene) OpenWorkload(kind string, documents ...string) {
	schema, manifest := workloadOf(kind)
	s.open(schema, append([]string{manifest}, documents...), registration)
}

// OpenManifest is Open with other manifests. The story replaces the names of objects,
// service and registry, and the drain time.
func (s *Scene) OpenManifest(set, registration string, documents ...string) {
	s.open(stage.CloneSet{}, append([]string{set}, documents...), registration)
}

// open creates what a story needs, unless it is there.
func (s *Scene) open(schema any, documents []string, registration ...string) {
	s.Step("open")
	if s.object == nil {
		s.Check(stage.OpenNamespace(s.ctx, s.Kube(), s.Namespace()))
	}
	if s.story.uses(Service, KubeProxy) {
		made, err := newService(s.story)
		s.Check(err)
		s.apply(made)
	}
	made, err := newRegistration(s.story, registration)
	s.Check(err)
	s.apply(made)
	s.schema = schema
	s.object, err = newWorkload(s.story, schema, documents)
	s.Check(err)
	s.generation = s.apply(s.object)
	if s.story.uses(HAProxy, KubeProxy) {
		// A load balancer accepts requests before it has any instance for them.
		s.Await("the first Pods", func(now State) string { return now.Unsettled(s.generation) })
	}
	if s.story.uses(KubeProxy) {
		s.Await("kube-proxy's rules for the first Pods", func(State) string {
			if err := dial(s.ctx, serviceAddress); err != nil {
				return err.Error()
			}
			return ""
		})
	}
	s.call()
	s.Settle()
	s.Await("the first requests", func(State) string { return s.callers.silent() })
}

// Pause waits for a time that is part of the story.
func (s *Scene) Pause(d time.Duration) { s.Check(stage.Pause(s.ctx, d)) }
