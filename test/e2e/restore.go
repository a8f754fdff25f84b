// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// restoreTime bounds a restore.
const restoreTime = time.Minute

// restore brings back what a failed story left stopped, so that the next stories do not
// fail because of it.
func (s *session) restore(ctx context.Context, story Story) error {
	if !story.Alone {
		return nil // It stopped nothing.
	}
	ctx, cancel := context.WithTimeout(ctx, restoreTime)
	defer cancel()
	err := errors.Join(s.node.Plane().StartAPIServer(ctx), s.node.StartKubelet(ctx), s.freeLease(ctx, stranger))
	if err != nil {
		return fmt.Errorf("after the story: %w", err)
	}
	return nil
}
