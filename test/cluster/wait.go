// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/usher-dev/usher/test/cluster/process"
)

// pollEvery is how often a condition is checked during a start.
const pollEvery = 30 * time.Millisecond

// waitFor returns nil as soon as ready does. It fails if the process ends, with its
// *process.ExitError, and when ctx ends: with the last answer or, if ctx ended because
// another process did, with the *process.ExitError of that one.
func waitFor(ctx context.Context, p *process.Process, what string, ready func(context.Context) error) error {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		// After the process has ended, another one may answer in its place.
		answer := ready(ctx)
		if exit := p.ExitError(); exit != nil {
			return exit
		}
		if answer == nil {
			return nil
		}
		select {
		case <-p.Done():
		case <-ticker.C:
		case <-ctx.Done():
			return notReady(ctx, p, what, answer)
		}
	}
}

func notReady(ctx context.Context, p *process.Process, what string, answer error) error {
	cause := context.Cause(ctx)
	var exit *process.ExitError
	if errors.As(cause, &exit) {
		return exit
	}
	if errors.Is(cause, context.Canceled) {
		return fmt.Errorf("waiting for %s: %w", what, cause)
	}
	return fmt.Errorf("%s is not there in time (%w); the last answer was: %w\n  log: %s", what, cause, answer, p.Log())
}
