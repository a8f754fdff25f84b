// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/usher-dev/usher/test/cluster/progress"
	"github.com/usher-dev/usher/test/cluster/sandbox"
	"github.com/usher-dev/usher/test/stage"
)

// inside is the program in the sandbox: it starts the node and plays the stories.
func inside(ctx context.Context, place *sandbox.Place, o Options) (err error) {
	// The libraries' own logs are not for the audience.
	ctrllog.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	k, err := readKit(place.Dir)
	if err != nil {
		return err
	}
	began := time.Now()
	s, err := open(ctx, place, k, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	_, _ = fmt.Fprintf(o.Out, "The node and Usher are up after %s.\n\n", seconds(time.Since(began)))
	if o.Shell {
		return s.shell(ctx, o)
	}
	return s.run(ctx, o)
}

func open(ctx context.Context, place *sandbox.Place, k kit, o Options) (*session, error) {
	tell, end := display(o.Out)
	defer end()
	return openStage(ctx, place, k, o, tell)
}

// display shows progress until end is called; later events are dropped.
func display(out *os.File) (tell progress.Sink, end func()) {
	shown := progress.Show(out)
	open := &atomic.Bool{}
	open.Store(true)
	sink := shown.Sink()
	tell = func(event progress.Event) {
		if open.Load() {
			sink(event)
		}
	}
	return tell, func() {
		open.Store(false)
		shown.Close()
	}
}

// run plays the stories and shows their outcomes.
func (s *session) run(ctx context.Context, o Options) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-ctx.Done():
		case err := <-s.node.Failed():
			cancel(err)
		}
	}()
	stories := o.chosen()
	outcomes, err := s.playMeasured(ctx, stories, o)
	if err != nil {
		return err
	}
	if err := writeResult(s.place.Dir, result{Outcomes: outcomes, Footprint: s.footprint}); err != nil {
		return err
	}
	style := stage.StyleOf(o.Out, o.Getenv)
	_, _ = fmt.Fprintf(o.Out, "\n%s\n\n%s\n\n", strings.Join(table(outcomes, style), "\n"), strings.Join(footprintTable(s.footprint, style), "\n"))
	if n := failed(outcomes); n > 0 {
		return fmt.Errorf("%d of %d stories failed", n, len(outcomes))
	}
	return s.awaitEmpty(ctx, stories)
}

// playMeasured plays the stories and measures Usher meanwhile and, if all stories are
// played, before.
func (s *session) playMeasured(ctx context.Context, stories []Story, o Options) ([]Outcome, error) {
	if err := s.measureImage(); err != nil {
		return nil, err
	}
	if o.Run == nil {
		if err := s.measureIdle(ctx); err != nil {
			return nil, err
		}
	}
	used, err := newMeter()
	if err != nil {
		return nil, err
	}
	following, stop := context.WithCancel(ctx)
	defer stop()
	go used.follow(following)
	tell, end := display(o.Out)
	outcomes := s.playAll(ctx, stories, o.Parallel, tell)
	end()
	if cause := context.Cause(ctx); cause != nil {
		return nil, cause
	}
	s.footprint.Loaded, err = used.usage()
	return outcomes, err
}

// shell lets a person explore.
func (s *session) shell(ctx context.Context, o Options) error {
	program := o.Getenv("SHELL")
	if program == "" {
		program = "/bin/sh"
	}
	_, _ = fmt.Fprintf(o.Out, "A shell on the node; KUBECONFIG is set. Its end takes everything down.\n\n")
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.node.Kubeconfig())
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		return fmt.Errorf("run a shell: %w", err)
	}
	return nil
}
