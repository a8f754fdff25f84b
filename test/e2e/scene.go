// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/test/stage"
	"github.com/usher-dev/usher/test/traffic"
)

const (
	// defaultRate is the number of requests per second in each story.
	defaultRate = 100
	// maxRate is the largest number: two processors can serve no more.
	maxRate = 1000
	// patience bounds every wait of a story.
	patience = 2 * time.Minute
	// lookAgain is how often a condition is checked in addition to cluster events, for changes that no
	// watch reports.
	lookAgain = 100 * time.Millisecond
	// firstRequests must be answered before a story starts.
	firstRequests = 20
	// late is the time after which a request without an answer counts as lost. It is long, because a
	// machine under other load may starve all containers at once for seconds.
	late = 30 * time.Second
)

// Scene is the place of a story: its own namespace with a workload, a Registration and callers. Its
// methods end the story when they fail, like those of testing.T; only the story's own goroutine may
// call them.
type Scene struct {
	ctx     context.Context
	session *session
	story   Story
	step    string // the present step

	object     *unstructured.Unstructured // the workload as last requested
	schema     any                        // its type, which determines how documents are merged into it
	generation int64
	callers    *callers // nil if there are none
	report     traffic.Report
	notes      []string // measurements of the story, for its line
	failure    error

	over          string     // a document to merge into the Registration
	before, noted State      // at the last "open" or "remember", and at the last "note"
	claimed       []string   // the claims before
	streams       *streams   // at the last "stream"
	departure     *departure // since the last "observe"
	others        []*Scene   // of the workloads that "another" has opened
	main          *Scene     // the scene of the story itself; nil in that one
	asked         time.Time  // when it last acted on Usher
	// out is how long a Pod was out of service at most in each timed update.
	out []time.Duration
}

// perform plays a story to its end and returns why it failed.
func (s *Scene) perform() error {
	var playing sync.WaitGroup
	playing.Go(s.play)
	playing.Wait()
	s.stopObserving()
	for _, scene := range s.all() {
		if err := scene.hangUp(); scene.failure == nil {
			scene.failure = err
		}
		if s.failure == nil {
			s.failure = scene.failure
		}
	}
	return s.failure
}

// all returns the scene, and those of the story's other workloads.
func (s *Scene) all() []*Scene { return append([]*Scene{s}, s.others...) }

// fatalf ends the story.
func (s *Scene) fatalf(format string, args ...any) {
	s.failure = fmt.Errorf("%s: %w", s.step, fmt.Errorf(format, args...))
	runtime.Goexit()
}

// check ends the story if err is not nil.
func (s *Scene) check(err error) {
	if err == nil {
		return
	}
	if cause := context.Cause(s.ctx); cause != nil {
		err = cause // the cause says more
	}
	s.fatalf("%w", err)
}

// state returns the present state.
func (s *Scene) state() State {
	now, err := s.session.state(s.ctx, s.story.Name)
	s.check(err)
	if s.object != nil && now.Set == nil {
		kind, err := s.session.Kube.Scheme().New(s.object.GroupVersionKind())
		s.check(err)
		now.Workload, err = present(s.ctx, s.session, client.ObjectKeyFromObject(s.object), kind.(client.Object))
		s.check(err)
	}
	return now
}

// await waits until look returns "", that is, reports no obstacle.
func (s *Scene) await(what string, look func(State) string) State {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for {
		changed := s.session.changes.Next()
		now := s.state()
		wrong := look(now)
		if wrong == "" {
			return now
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-s.ctx.Done():
			s.check(context.Cause(s.ctx))
		case <-deadline.C:
			s.fatalf("waited %s for %s: %s", patience, what, wrong)
		}
	}
}

// hold checks for some time that look finds nothing wrong.
func (s *Scene) hold(what string, during time.Duration, look func(State) string) {
	end := time.Now().Add(during)
	s.await(what, func(now State) string {
		if wrong := look(now); wrong != "" {
			s.fatalf("%s: %s", what, wrong)
		}
		return stage.Unless(time.Now().After(end), "its time is not over")
	})
}

// settle waits until nothing is in progress, neither with Pods nor with requests sent
// to Pods that have left.
func (s *Scene) settle() {
	for _, other := range s.others {
		other.step = s.step
		other.settle()
	}
	s.await("everything to settle", func(now State) string {
		if wrong := now.Unsettled(s.generation); wrong != "" {
			return wrong
		}
		return s.callers.unsettled()
	})
}

// open creates the objects of a story that do not exist yet. For the workload and the
// Registration alike, the first document is a manifest; later ones are merged into it.
func (s *Scene) open(schema any, documents []string, registration ...string) {
	if s.object == nil {
		s.check(stage.OpenNamespace(s.ctx, s.session.Kube, s.story.Name))
	}
	if s.story.uses(Service, LabelledService, KubeProxy) {
		s.make(corev1.Service{}, service(s.story))
	}
	s.make(usherv1alpha1.Registration{}, append(registration, metadata(s.story), registers(s.story))...)
	var err error
	s.schema = schema
	s.object, err = build(schema, append(documents, metadata(s.story))...)
	s.check(err)
	s.generation = s.apply(s.object)
	if s.story.uses(HAProxy, KubeProxy) {
		// A load balancer accepts requests before it has any instance for them.
		s.await("the first Pods", func(now State) string { return now.Unsettled(s.generation) })
	}
	if s.story.uses(KubeProxy) {
		s.await("kube-proxy's rules for the first Pods", func(State) string {
			if err := dial(s.ctx, serviceAddress); err != nil {
				return err.Error()
			}
			return ""
		})
	}
	s.call()
	s.settle()
	s.await("the first requests", func(State) string { return s.callers.silent() })
}
