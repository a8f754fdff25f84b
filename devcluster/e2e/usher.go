// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/usher-dev/usher/devcluster/internal/cluster/process"
)

const usherStopGrace = 5 * time.Second

// usher is Usher's process.
type usher struct {
	spawner *process.Spawner
	spec    process.Spec

	mu      sync.Mutex
	process *process.Process
	failed  chan error
}

func newUsher(binary, kubeconfig, log string) *usher {
	return &usher{
		spawner: process.NewSpawner(), failed: make(chan error, 1),
		spec: process.Spec{Name: "usher", Path: binary, Args: []string{"--kubeconfig", kubeconfig}, Log: log},
	}
}

func (u *usher) start() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	p, err := u.spawner.Start(u.spec)
	if err != nil {
		return err
	}
	u.process = p
	go func() {
		<-p.Done()
		if p.Asked() {
			return
		}
		select {
		case u.failed <- p.ExitError():
		default: // One failure is enough.
		}
	}()
	return nil
}

func (u *usher) kill() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.process.Kill()
}

func (u *usher) close(ctx context.Context) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	var errs []error
	if u.process != nil {
		errs = append(errs, u.process.Stop(ctx, usherStopGrace))
	}
	u.spawner.Close()
	return errors.Join(errs...)
}

// KillUsher kills Usher with SIGKILL. It stays away until StartUsher.
func (s *Scene) KillUsher() {
	s.Step("kill Usher")
	s.Check(s.stage.usher.kill())
}

// StartUsher starts Usher again.
func (s *Scene) StartUsher() {
	s.Step("Usher is back")
	s.Check(s.stage.usher.start())
}
