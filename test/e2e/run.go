// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/cluster/sandbox"
)

// Run starts the node, plays the stories and removes everything. place is what
// sandbox.Enter returned: the same program runs outside first, and then inside. When it
// returns outside, only the logs of a failed run are left; its error is
// sandbox.ErrFailed if the failure has already been reported.
func Run(ctx context.Context, place *sandbox.Place, options Options) error {
	o, err := options.withDefaults()
	if err != nil {
		return err
	}
	if place != nil {
		return inside(ctx, place, o)
	}
	meter, err := newLoadMeter()
	if err != nil {
		return err
	}
	session := sandbox.Session{
		Prefix: "usher-e2e-", Args: o.Args, Out: o.Out,
		Prepare: func(ctx context.Context, dir string) error {
			tell, end := display(o.Out)
			defer end()
			return prepare(ctx, o, dir, tell)
		},
		Logs: []string{"logs", "node/logs", "node/cluster/logs", "etcd/etcd.log", "own-etcd/etcd.log", "varlog/pods", resultFile},
	}
	session.Done = func(dir string) error {
		took, err := meter.read()
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintln(o.Out, took)
		if !o.Report {
			return nil
		}
		return report(dir, o, took)
	}
	return session.Run(ctx)
}

func report(dir string, o Options, took load) error {
	found, err := readResult(dir)
	if err != nil {
		return err
	}
	root, err := checkout.Find(o.Getenv)
	if err != nil {
		return err
	}
	now := time.Now()
	return errors.Join(
		writeReport(root, reportFile, reportBegin, reportEnd, markdown(found.Outcomes, now, took)),
		writeReport(root, footprintFile, footprintBegin, footprintEnd, found.Footprint.markdown(now)))
}
