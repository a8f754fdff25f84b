// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/usher-dev/usher/test/cluster/process"
)

const (
	usherStopGrace = 5 * time.Second
	usherLogLines  = 15
)

// usher is the Usher process, which can be killed and restarted.
type usher struct {
	spawner *process.Spawner
	spec    process.Spec

	mu      sync.Mutex
	process *process.Process
	failed  chan error // receives the error of a process that ended on its own
}

func newUsher(binary, kubeconfig, log string) *usher {
	return &usher{
		spawner: process.NewSpawner(),
		failed:  make(chan error, 1),
		spec:    process.Spec{Name: "usher", Path: binary, Args: []string{"--kubeconfig", kubeconfig}, Log: log},
	}
}

// start starts the process.
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
		default: // one failure is enough to end the run
		}
	}()
	return nil
}

// kill ends the process with SIGKILL.
func (u *usher) kill() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.process == nil {
		return nil
	}
	return u.process.Kill()
}

// close ends the process permanently.
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

// logTail are the last lines of Usher's log.
func (u *usher) logTail() []string { return process.TailFile(u.spec.Log, usherLogLines) }
