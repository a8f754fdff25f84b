// SPDX-License-Identifier: Apache-2.0

package process

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

// A process that ignores SIGTERM is killed; another one ends by itself.
func TestStop(t *testing.T) {
	for name, test := range map[string]struct {
		script, status string
		grace          time.Duration
	}{
		"waiter":   {"echo ready; exec sleep 600", "signal: terminated", 20 * time.Second},
		"stubborn": {"trap '' TERM; echo ready; while :; do sleep 1; done", "signal: killed", time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			p := checktest.Must(Start(Spec{
				Name: name, Path: "/bin/sh", Args: []string{"-c", test.script}, Log: filepath.Join(t.TempDir(), "logs", name),
				Failed: func(err error) { t.Error(err) },
			}))(t)
			registrytest.Until(t, "the process waits", func() bool { return len(p.Tail(1)) > 0 })
			if p.ExitError() != nil {
				t.Fatal("a running process has an exit error")
			}
			for range 2 { // the second finds it ended
				checktest.NoError(t, p.Stop(t.Context(), test.grace))
			}
			checktest.Same(t, "how it ended", test.status, p.ExitError().Status)
		})
	}
}
