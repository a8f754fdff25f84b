// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/filelock"
	"github.com/usher-dev/usher/test/cluster/process"
	"github.com/usher-dev/usher/test/cluster/progress"
	"github.com/usher-dev/usher/test/cluster/state"
)

// stopTimeout bounds the stop of a cluster. All data is discarded, so there is nothing
// to wait for.
const stopTimeout = 20 * time.Second

// supervisor runs one cluster from its start to its end, in the background or in the
// foreground.
type supervisor struct {
	settings settings
	tell     progress.Sink
	logger   *log.Logger
	ready    func(state.State) // called once, when the cluster is usable
}

// run runs the cluster until ctx ends, which is not an error, or a component does.
func (s *supervisor) run(ctx context.Context) (err error) {
	// 1. The directory, for us alone.
	dir := s.settings.dir
	if err := cluster.ClaimDir(dir); err != nil {
		return err
	}
	lock, err := filelock.Try(filepath.Join(dir, "supervisor.lock"), fmt.Sprintf("process %d", os.Getpid()))
	var held *filelock.HeldError
	if errors.As(err, &held) {
		return &cluster.InUseError{Dir: dir, Holder: held.Holder}
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	// 2. A state from the start: status and down must find us.
	self, err := process.Table{}.Identify(os.Getpid())
	if err != nil {
		return err
	}
	record := state.State{Supervisor: self, Phase: state.Starting, Since: time.Now()}
	if err := state.Write(dir, record); err != nil {
		return err
	}
	// 3. The cluster, until its end.
	err = s.keep(ctx, &record)
	// 4. The final state: status and the next up have to report why a usable cluster
	//    ended. Its own up has already reported a failed start.
	if err != nil && ctx.Err() == nil && record.Phase == state.Ready {
		record.Phase, record.Since, record.Message = state.Failed, time.Now(), err.Error()
		return errors.Join(err, state.Write(dir, record))
	}
	return errors.Join(err, state.Remove(dir))
}

// errStopped means that a start was ended from outside.
var errStopped = errors.New("the cluster was stopped while it was starting")

// keep starts the cluster, waits for its end and cleans up. It keeps the record up to
// date.
func (s *supervisor) keep(ctx context.Context, record *state.State) (err error) {
	c, err := cluster.Start(ctx, cluster.Options{Dir: s.settings.dir, Port: s.settings.port, Tell: s.tell})
	if err != nil {
		return startError(ctx, err)
	}
	defer func() { err = errors.Join(err, bounded(ctx, c.Stop)) }()
	nodes, err := startNodes(ctx, c, s.settings, s.tell, s.logger)
	if err != nil {
		return startError(ctx, err)
	}
	defer func() { err = errors.Join(err, bounded(ctx, nodes.stop)) }()
	if err := describeCluster(record, c, nodes.names); err != nil {
		return err
	}
	if err := state.Write(s.settings.dir, *record); err != nil {
		return err
	}
	s.ready(*record)
	select {
	case <-c.Done():
		return c.Err()
	case <-ctx.Done():
	}
	stopping := *record
	stopping.Phase = state.Stopping
	return state.Write(s.settings.dir, stopping)
}

func startError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errStopped
	}
	return err
}

// bounded gives a stop its own timeout: the end of ctx is why we stop, and must not cut
// the stop short.
func bounded(ctx context.Context, stop func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	return stop(ctx)
}

func describeCluster(record *state.State, c *cluster.Cluster, nodes []string) error {
	components, err := c.Components()
	if err != nil {
		return err
	}
	record.Phase = state.Ready
	record.Version, record.Server, record.Kubeconfig = c.Version(), c.Server(), c.Kubeconfig()
	record.Components, record.Nodes = components, nodes
	return nil
}
