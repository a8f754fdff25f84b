// SPDX-License-Identifier: Apache-2.0

// Package bench measures the CloneSet half of Usher on a real control plane with
// simulated containers: how fast it brings Pods in and out of service, what it writes
// for that, how long a Pod is out of service, and what it costs.
//
// Usher runs as a separate process, as shipped, with its own user and its own rights.
// It is observed from outside: the API server's audit log counts its writes, /proc
// shows its CPU time and memory, and a watch of the Pods gives the times. Before each
// size a plain client shows what the API server can do on this machine, so that the
// numbers of two machines can be compared.
//
// The pure parts are audit.go, distribution.go, rounds.go, verdict.go and table.go;
// crowd.go and set.go store what watches report; session.go drives the phases of
// phase.go on what stage.go has started, and warm.go makes short phases begin under the
// conditions of a long one.
package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/usher-dev/usher/test/cluster/progress"
	"github.com/usher-dev/usher/test/demo/view"
)

// Options configures a measurement.
type Options struct {
	// Sizes are the numbers of Pods to measure with; at least one.
	Sizes []int
	// Registries are the kinds of registries to measure the hook operator with. Only
	// RunRegistries uses them.
	Registries []string
	// Repair is how often the operator compares a registry's entries with the desired
	// ones; default 30 s, as for a Registry. Only RunRegistries uses it.
	Repair time.Duration
	// PhaseLimit is how long a phase may take; default 10 minutes.
	PhaseLimit time.Duration
	// Out receives the output.
	Out *os.File
	// Getenv reads the environment.
	Getenv func(string) string
}

// DefaultPhaseLimit is how long a phase may take.
const DefaultPhaseLimit = 10 * time.Minute

// maxPods is the largest size: more would not fit into the memory of a usual machine,
// which also runs the API server and the nodes.
const maxPods = 20_000

func (o Options) withDefaults() (Options, error) {
	if len(o.Sizes) == 0 {
		return o, errors.New("no sizes are given: name at least one number of Pods")
	}
	for _, n := range o.Sizes {
		if n < 1 || n > maxPods {
			return o, fmt.Errorf("size %d: give numbers of Pods from 1 to %d", n, maxPods)
		}
	}
	if o.Repair == 0 {
		o.Repair = defaultRepair
	}
	if o.PhaseLimit == 0 {
		o.PhaseLimit = DefaultPhaseLimit
	}
	if o.PhaseLimit < 0 {
		return o, fmt.Errorf("the limit of a phase is %s: give a positive duration", o.PhaseLimit)
	}
	return o, nil
}

// Run measures, and shows the tables at the end. On an error, the report holds the
// sizes finished before. When it returns, no process is left, and no file except the
// logs of a failed measurement.
//
// Errors: the cause of ctx if that ended; otherwise which phase of which size could not
// be measured, and why.
func Run(ctx context.Context, options Options) (*Report, error) {
	o, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	// The libraries' own logs are not for the audience.
	log.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	s, err := open(ctx, o)
	if err != nil {
		return nil, err
	}
	report, err := o.measure(ctx, s)
	if closeErr := s.close(ctx); closeErr != nil {
		err = errors.Join(err, fmt.Errorf("clean up: %w", closeErr))
	}
	if len(report.Sizes) > 0 {
		o.show(report.lines)
	}
	if err != nil && ctx.Err() == nil {
		return report, fmt.Errorf("%w\n\nAll logs are kept in %s", err, s.dir)
	}
	return report, errors.Join(err, s.cleanUp())
}

// open builds and starts everything and shows the progress.
func open(ctx context.Context, o Options) (*stage, error) {
	display := progress.Show(o.Out)
	defer display.Close()
	// The cluster would also report its end, where the tables belong.
	opening := &atomic.Bool{}
	opening.Store(true)
	defer opening.Store(false)
	tell := display.Sink()
	return openStage(ctx, slices.Max(o.Sizes), o.Getenv, func(event progress.Event) {
		if opening.Load() {
			tell(event)
		}
	})
}

// measure runs through the sizes.
func (o Options) measure(ctx context.Context, s *stage) (*Report, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	began := time.Now()
	session, wait := newSession(ctx, s, o.PhaseLimit, cancel, func(format string, args ...any) {
		o.print(fmt.Sprintf("%6.1fs  ", time.Since(began).Seconds()) + fmt.Sprintf(format, args...))
	})
	defer wait()
	defer cancel(nil)
	report := &Report{Taken: began, Machine: s.machine()}
	var err error
	report.Sizes, err = inTurn(o.Sizes, func(n int, t turn) (Size, error) {
		session.say("%s Pods, round %d of %d", group(n), t.round+1, t.of)
		return session.size(ctx, n, float64(t.round)/float64(t.of))
	})
	if cause := context.Cause(ctx); err != nil && ctx.Err() != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w (during %w)", cause, err)
	}
	report.Verdicts = judge(report.Sizes)
	return report, err
}

func (o Options) show(lines func(view.Style) []string) {
	style := view.NewScreen(o.Out, o.Getenv, time.Now).Style()
	style.Width = 0 // a truncated table says less than a wrapped one
	for _, line := range lines(style) {
		o.print(line)
	}
}

func (o Options) print(line string) {
	// There is nobody to report a failed write to.
	_, _ = fmt.Fprintln(o.Out, line)
}
