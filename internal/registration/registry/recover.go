// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/go-logr/logr"
)

// Recover makes a panic of a connector its error, as in "defer registry.Recover(ctx, &err)":
// what one registry answers ends neither the process nor the work for other registries. Each
// goroutine needs its own. The stack is logged.
func Recover(ctx context.Context, err *error) {
	value := recover()
	if value == nil {
		return
	}
	*err = Permanent(fmt.Errorf("this is a bug in Usher, please report it with the stack from its log: %v", value))
	logr.FromContextOrDiscard(ctx).Error(*err, "a connector panicked", "stack", string(debug.Stack()))
}
