// SPDX-License-Identifier: Apache-2.0

// Package announce sends events, except to namespaces that refuse them.
//
// A namespace that is being deleted refuses new events. Meanwhile its objects are deleted one after
// another, which causes many events, and client-go logs each refusal. So after the first refusal
// announce drops the events of that namespace.
package announce

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/cache"
	typedeventsv1 "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/usher-dev/usher/internal/printable"
)

// ending is how long a namespace that refused an event gets no more. The time is bounded because
// another namespace of the same name may follow.
const ending = time.Minute

// Recorder returns an event recorder with that reporting controller. It works while the manager runs.
func Recorder(mgr ctrl.Manager, name string) (events.EventRecorder, error) {
	api, err := typedeventsv1.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("create a client for events: %w", err)
	}
	sender := &sender{broadcaster: events.NewBroadcaster(newSink(&events.EventSinkImpl{Interface: api}, clock.RealClock{}))}
	if err := mgr.Add(sender); err != nil {
		return nil, fmt.Errorf("send events with the manager: %w", err)
	}
	return sender.broadcaster.NewRecorder(mgr.GetScheme(), name), nil
}

// sender sends events while the manager runs, whether it leads or not.
type sender struct{ broadcaster events.EventBroadcaster }

// Start implements manager.Runnable.
func (s *sender) Start(ctx context.Context) error {
	// Send the last events too, such as the one for a lost lease.
	sending, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	if err := s.broadcaster.StartRecordingToSinkWithContext(sending); err != nil {
		return fmt.Errorf("send events: %w", err)
	}
	quiet, err := s.broadcaster.StartLogging(log.FromContext(ctx).V(1))
	if err != nil {
		return fmt.Errorf("log events: %w", err)
	}
	<-ctx.Done()
	quiet()
	s.broadcaster.Shutdown()
	return nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (s *sender) NeedLeaderElection() bool { return false }

// sink withholds events from terminating namespaces that refused one.
type sink struct {
	events.EventSink
	// refused has these namespaces, each for a while.
	refused *cache.Expiring
}

func newSink(to events.EventSink, clock clock.Clock) *sink {
	return &sink{EventSink: to, refused: cache.NewExpiringWithClock(clock)}
}

// Create implements events.EventSink. It accepts a refusal if the namespace is terminating or gone:
// here NotFound never means the event itself. It removes characters from the event that a terminal
// would obey.
func (s *sink) Create(ctx context.Context, event *eventsv1.Event) (*eventsv1.Event, error) {
	if s.ends(event.Namespace) {
		return event, nil
	}
	if note := printable.Line(event.Note); note != event.Note {
		said := *event
		said.Note, event = note, &said
	}
	made, err := s.EventSink.Create(ctx, event)
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) || apierrors.IsNotFound(err) {
		s.refused.Set(event.Namespace, nil, ending)
		return event, nil
	}
	return made, err
}

// Patch implements events.EventSink.
func (s *sink) Patch(ctx context.Context, event *eventsv1.Event, data []byte) (*eventsv1.Event, error) {
	if s.ends(event.Namespace) {
		return event, nil
	}
	return s.EventSink.Patch(ctx, event, data)
}

// ends reports whether the namespace has recently refused an event.
func (s *sink) ends(namespace string) bool {
	_, ends := s.refused.Get(namespace)
	return ends
}
