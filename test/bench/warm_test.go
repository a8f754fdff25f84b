// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"
)

// TestKeepBusy: all workers send again and again until the time is over.
func TestKeepBusy(t *testing.T) {
	const workers = 3
	var sent, together atomic.Int64
	meet := make(chan struct{})
	err := keepBusy(t.Context(), workers, 10*time.Millisecond, func(context.Context) error {
		sent.Add(1)
		if together.Add(1) == workers {
			close(meet)
		}
		<-meet
		return nil
	})
	if err != nil || sent.Load() < workers {
		t.Errorf("%d requests, %v", sent.Load(), err)
	}
}

// TestKeepBusyEnds: it ends with the first failure, and with the whole measurement.
func TestKeepBusyEnds(t *testing.T) {
	gone, stopped := errors.New("gone"), errors.New("stopped")
	if err := keepBusy(t.Context(), 2, time.Hour, func(context.Context) error { return gone }); !errors.Is(err, gone) {
		t.Errorf("after a failure: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	err := keepBusy(ctx, 2, time.Hour, func(context.Context) error { cancel(stopped); return nil })
	if !errors.Is(err, stopped) {
		t.Errorf("after the end: %v", err)
	}
}
