// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/usher-dev/usher/test/cluster/progress"
	"github.com/usher-dev/usher/test/demo/view"
)

// Run takes the CloneSets through their life, with hooks, without, or both one after
// the other, shows it, and ends with a table. When it returns, no process is left, and
// no file except the logs of a failed run.
//
// Errors: *WaitError if something did not happen in time; the cause of ctx if that
// ended first; otherwise what prevented the demonstration. Lost requests are not an
// error: see Result.Failed.
func Run(ctx context.Context, options Options) (Result, error) {
	o, err := options.withDefaults()
	if err != nil {
		return Result{}, err
	}
	// The libraries' own logs are not for the audience.
	log.SetLogger(logr.Discard())
	s, err := open(ctx, o)
	if err != nil {
		return Result{}, err
	}
	screen := view.NewScreen(o.Out, o.Getenv, time.Now)
	d := &demonstration{options: o, stage: s, screen: screen}
	result, err := d.play(ctx)
	screen.Hide()
	if ctx.Err() != nil {
		screen.Log("", "Interrupted: everything is being stopped.")
	}
	if o.Keep && ctx.Err() == nil {
		err = errors.Join(err, d.keep(ctx))
	}
	if closeErr := s.close(ctx); closeErr != nil {
		err = errors.Join(err, fmt.Errorf("clean up: %w", closeErr))
	}
	if err != nil && ctx.Err() == nil {
		return result, fmt.Errorf("%w\n\nAll logs are kept in %s", err, s.dir)
	}
	return result, errors.Join(err, s.cleanUp())
}

// open builds and starts everything and shows the progress.
func open(ctx context.Context, o Options) (*stage, error) {
	display := progress.Show(o.Out)
	defer display.Close()
	// The cluster would also report its end, when the display is gone and the outcome
	// must come last.
	opening := &atomic.Bool{}
	opening.Store(true)
	defer opening.Store(false)
	tell := display.Sink()
	return openStage(ctx, o, func(event progress.Event) {
		if opening.Load() {
			tell(event)
		}
	})
}

// demonstration is a demo on its stage.
type demonstration struct {
	options Options
	stage   *stage
	screen  *view.Screen
}

func (d *demonstration) play(ctx context.Context) (Result, error) {
	var result Result
	if d.options.Hooks != HooksOff {
		on, err := d.run(ctx, true)
		if err != nil {
			return result, err
		}
		result.On = on
	}
	if d.options.Hooks != HooksOn {
		off, err := d.run(ctx, false)
		if err != nil {
			return result, err
		}
		result.Off = off
	}
	d.screen.Hide()
	d.screen.Log(result.write(d.screen.Style())...)
	return result, d.screen.Err()
}

func (d *demonstration) run(ctx context.Context, hooks bool) (*RunResult, error) {
	r, err := newRun(d.options, d.stage, d.screen, hooks)
	if err != nil {
		return nil, err
	}
	result, err := r.play(ctx)
	var late *WaitError
	if errors.As(err, &late) {
		late.State, late.Waiting = r.lastState(), r.board.waitingFor()
		late.Log, late.LogFile = d.stage.usher.logTail(), d.stage.usher.spec.Log
	}
	return result, err
}

// keep brings the first CloneSet back and leaves everything running until ctx ends.
func (d *demonstration) keep(ctx context.Context) error {
	web := stories(true)[0]
	set, registration, err := web.objects(true, d.options)
	if err != nil {
		return err
	}
	if _, err := d.stage.kube.apply(ctx, registration); err != nil {
		return err
	}
	if _, err := d.stage.kube.apply(ctx, set); err != nil {
		return err
	}
	d.screen.Log(strings.Split(fmt.Sprintf(`
The cluster stays up, with CloneSet %[1]s/%[2]s and its Registration:

    export KUBECONFIG=%[3]s
    kubectl -n %[1]s get cloneset,registration,pods
    etcdctl --endpoints %[4]s get --prefix %[5]s/

Usher's log:  %[6]s
Stop it:      Ctrl-C here, or kill %[7]d`,
		namespace, web.name, d.stage.cluster.Kubeconfig(), d.stage.registry.Endpoint(), prefix,
		d.stage.usher.spec.Log, os.Getpid()), "\n")...)
	select {
	case <-ctx.Done():
		return nil
	case err := <-d.stage.usher.failed:
		return err
	case <-d.stage.cluster.Done():
		return d.stage.cluster.Err()
	}
}
