// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
)

// server answers every request with err, and counts them.
type server struct {
	events.EventSink
	err      error
	requests int
}

func (s *server) Create(_ context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	s.requests++
	return e, s.err
}

func (s *server) Patch(_ context.Context, e *eventsv1.Event, _ []byte) (*eventsv1.Event, error) {
	s.requests++
	return e, s.err
}

func event(namespace string) *eventsv1.Event {
	return &eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}}
}

func terminating() error {
	err := apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "a", errors.New("it is being terminated"))
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	return err
}

func TestTerminatingNamespaceGetsNoMoreEvents(t *testing.T) {
	for name, err := range map[string]error{
		"ending": terminating(), "gone": apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "demo"),
	} {
		t.Run(name, func(t *testing.T) {
			api, clock := &server{err: err}, clocktesting.NewFakeClock(time.Unix(0, 0))
			s := newSink(api, clock)
			for range 3 {
				if _, err := s.Create(t.Context(), event("demo")); err != nil {
					t.Errorf("client-go sees it, and would log: %v", err)
				}
			}
			if _, err := s.Patch(t.Context(), event("demo"), nil); err != nil || api.requests != 1 {
				t.Errorf("%v; %d requests, want one", err, api.requests)
			}
			api.err = nil
			if _, err := s.Create(t.Context(), event("other")); err != nil || api.requests != 2 {
				t.Errorf("another namespace: %v, %d requests, want two", err, api.requests)
			}
			clock.SetTime(clock.Now().Add(ending))
			if _, err := s.Create(t.Context(), event("demo")); err != nil || api.requests != 3 {
				t.Errorf("after a while: %v, %d requests, want three", err, api.requests)
			}
		})
	}
}

func TestOtherRefusalsAreReported(t *testing.T) {
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "a", errors.New("quota"))
	for name, want := range map[string]error{
		"forbidden": refused, "down": errors.New("connection refused"), "timeout": apierrors.NewTimeoutError("slow", http.StatusOK),
	} {
		api := &server{err: want}
		s := newSink(api, clocktesting.NewFakeClock(time.Unix(0, 0)))
		for n := range 2 {
			if _, err := s.Create(t.Context(), event("demo")); !errors.Is(err, want) || api.requests != n+1 {
				t.Errorf("%s: %v after %d requests", name, err, api.requests)
			}
		}
	}
	api := &server{err: apierrors.NewNotFound(schema.GroupResource{Resource: "events"}, "a")}
	s := newSink(api, clocktesting.NewFakeClock(time.Unix(0, 0)))
	// client-go recreates an event that it cannot find to patch.
	if _, err := s.Patch(t.Context(), event("demo"), nil); !apierrors.IsNotFound(err) {
		t.Errorf("a patch of an event that is gone: %v, want it not found", err)
	}
}

// TestEventsAreNotObeyed is an attack: a note repeats what others wrote, and kubectl prints it.
func TestEventsAreNotObeyed(t *testing.T) {
	s := newSink(&server{}, clocktesting.NewFakeClock(time.Unix(0, 0)))
	given := event("demo")
	given.Note = "a\x1b[2Jb\nc\u202e"
	sent, err := s.Create(t.Context(), given)
	if err != nil || sent.Note != "a�[2Jb c�" {
		t.Errorf("the event says %q: %v", sent.Note, err)
	}
}
