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

// Run brings the node up, plays the stories and takes everything down. place is
// what sandbox.Enter returned: the same program is run outside first, and then
// inside. When it returns outside, nothing of the run is left but the logs of one
// that failed; its error is sandbox.ErrFailed when what is wrong was told already.
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
