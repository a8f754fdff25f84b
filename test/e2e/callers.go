// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/usher-dev/usher/test/stage"
	"github.com/usher-dev/usher/test/traffic"
)

// callers send requests to a story's Pods, some through each of its registries.
type callers struct {
	clients []*traffic.Client
	stop    context.CancelFunc
	flowing *errgroup.Group
}

// call starts the callers.
func (s *Scene) call() {
	// A drain has to be longer than this delay and the longest request together.
	part := s.story.Propagation.Duration / 8
	if part < 0 {
		part = defaultPropagation / 8
	}
	ctx, stop := context.WithCancel(s.ctx)
	s.callers = &callers{stop: stop, flowing: &errgroup.Group{}}
	for _, kind := range s.story.Registries {
		client := traffic.New(traffic.Options{
			Source: s.session.source(s.story, kind), Rate: s.session.rate / len(s.story.Registries), Pauses: s.story.Pauses,
			CacheDelay: 2 * part, SlowMin: 2 * part, SlowMax: 4 * part, Timeout: late,
			// kube-proxy chooses a Pod for each connection.
			NewConnections: kind == KubeProxy,
		})
		s.callers.clients = append(s.callers.clients, client)
		s.callers.flowing.Go(func() error {
			if err := client.Run(ctx); !errors.Is(err, context.Canceled) {
				return err
			}
			return nil
		})
	}
}

// hangUp stops the callers, if there are any, and adds their results to the report.
func (s *Scene) hangUp() error {
	if s.callers == nil {
		return nil
	}
	s.callers.stop()
	err := s.callers.flowing.Wait()
	for _, client := range s.callers.clients {
		s.report = s.report.Add(client.Report())
	}
	s.callers = nil
	if err != nil {
		return fmt.Errorf("the callers: %w", err)
	}
	return nil
}

// endService announces to callers that the service ends, and calls end. When its Pods are gone, the
// callers stop.
func (s *Scene) endService(end func()) {
	for _, client := range s.callers.clients {
		client.EndWhenGone()
	}
	end()
	s.await("all Pods to be gone", func(now State) string {
		return stage.Unless(len(now.Pods) == 0, "%d are there", len(now.Pods))
	})
	s.check(s.hangUp())
}

// unsettled returns why the last change of a registry can still cause losses.
func (c *callers) unsettled() string {
	now := time.Now()
	return stage.Unless(!slices.ContainsFunc(c.clients, func(client *traffic.Client) bool { return !client.Settled(now) }), "callers have old lists or open requests")
}

// silent returns which callers have hardly begun.
func (c *callers) silent() string {
	for _, client := range c.clients {
		if sent := client.Report().Total().Sent; sent < firstRequests {
			return fmt.Sprintf("%d were sent", sent)
		}
	}
	return ""
}
