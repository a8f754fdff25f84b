// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// warmAtLeast is how long the API server is kept busy before a phase, and
	// warmSpread how much longer at most: about as long as it takes then from one
	// collection of its garbage to the next.
	warmAtLeast = time.Second
	warmSpread  = 4 * time.Second
)

// warmUp keeps the API server busy with reads, the longer the larger a share from 0
// to 1 is, and returns at once when that is over, for a phase to begin. A collection
// of its garbage is a second of CPU, as much as a phase of a hundred Pods. After a rest no
// collection would be under way when a phase begins, as one is in the midst of a long
// phase; and rounds that are all alike would meet them in the same phases.
func (s *session) warmUp(ctx context.Context, share float64) error {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	return keepBusy(ctx, rawWorkers, warmAtLeast+time.Duration(share*float64(warmSpread)), func(ctx context.Context) error {
		_, err := s.pods.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
		return err
	})
}

// keepBusy sends requests for some time, so many at once. The first error ends it.
func keepBusy(ctx context.Context, workers int, lasts time.Duration, send func(context.Context) error) error {
	over, stop := context.WithTimeout(ctx, lasts)
	defer stop()
	failures := make([]error, workers)
	var working sync.WaitGroup
	for w := range workers {
		working.Go(func() {
			for over.Err() == nil && failures[w] == nil {
				if failures[w] = send(ctx); failures[w] != nil {
					stop()
				}
			}
		})
	}
	working.Wait()
	if err := errors.Join(failures...); err != nil {
		return fmt.Errorf("keep the API server busy: %w", err)
	}
	return context.Cause(ctx)
}
