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
	// warmSpread how much longer at most: about the time between two of its garbage
	// collections under that load.
	warmAtLeast = time.Second
	warmSpread  = 4 * time.Second
)

// warmUp keeps the API server busy with reads, longer for a larger share from 0 to 1,
// and then returns at once, so that a phase can begin. A garbage collection takes a
// second of CPU, as much as a phase of a hundred Pods. After a rest, no collection
// would be in progress when a phase begins, unlike in the middle of a long phase; and
// identical rounds would meet them in the same phases.
func (s *session) warmUp(ctx context.Context, share float64) error {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	return keepBusy(ctx, rawWorkers, warmAtLeast+time.Duration(share*float64(warmSpread)), func(ctx context.Context) error {
		_, err := s.pods.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
		return err
	})
}

// keepBusy sends requests for some time, with a number of workers. The first error ends
// it.
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
