// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/usher-dev/usher/test/cluster/filelock"
)

// lockPoll is how often a waiting builder tries the lock.
const lockPoll = 200 * time.Millisecond

// acquire takes the lock. While another process holds it, waiting is called once per
// holder; the wait ends with ctx.
func acquire(ctx context.Context, path, me string, waiting func(holder string)) (*filelock.Lock, error) {
	told := ""
	for {
		lock, err := filelock.Try(path, me)
		var held *filelock.HeldError
		if !errors.As(err, &held) {
			return lock, err
		}
		if held.Holder != told && held.Holder != "" {
			waiting(held.Holder)
			told = held.Holder
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for another build (%s): %w", told, context.Cause(ctx))
		case <-time.After(lockPoll):
		}
	}
}
