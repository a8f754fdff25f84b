// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/usher-dev/usher/test/servers"
)

// defaultRepair is the default of a Registry's spec.repairInterval.
const defaultRepair = 30 * time.Second

// RunRegistries measures the hook operator: for each registry and each size both halves
// of Usher, in one process, register the Pods of a CloneSet, fail them over in an
// in-place update, and deregister them; and are killed in between. Everything else is
// as in Run.
func RunRegistries(ctx context.Context, options Options) (*OperatorReport, error) {
	o, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := o.checkRegistries(); err != nil {
		return nil, err
	}
	// The libraries' own logs are not for the audience.
	log.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	s, err := open(ctx, o)
	if err != nil {
		return nil, err
	}
	report, err := o.measureRegistries(ctx, s)
	if closeErr := s.close(ctx); closeErr != nil {
		err = errors.Join(err, fmt.Errorf("clean up: %w", closeErr))
	}
	if len(report.Runs) > 0 {
		o.show(report.lines)
	}
	if err != nil && ctx.Err() == nil {
		return report, fmt.Errorf("%w\n\nAll logs are kept in %s", err, s.dir)
	}
	return report, errors.Join(err, s.cleanUp())
}

func (o Options) checkRegistries() error {
	if len(o.Registries) == 0 {
		return errors.New("no registries are given: name at least one of " + strings.Join(servers.Kinds(), ", "))
	}
	for _, kind := range o.Registries {
		if !slices.Contains(servers.Kinds(), kind) {
			return fmt.Errorf("registry %q: give some of %s", kind, strings.Join(servers.Kinds(), ", "))
		}
	}
	for _, n := range o.Sizes {
		if n < fifth {
			return fmt.Errorf("size %d: with registries give numbers of Pods from %d", n, fifth)
		}
	}
	return nil
}

// measureRegistries runs through the registries and the sizes.
func (o Options) measureRegistries(ctx context.Context, s *stage) (*OperatorReport, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go s.guard(ctx, cancel)
	began := time.Now()
	say := func(format string, args ...any) {
		o.print(fmt.Sprintf("%6.1fs  ", time.Since(began).Seconds()) + fmt.Sprintf(format, args...))
	}
	report := &OperatorReport{Taken: began, Machine: s.machine()}
	audit := &auditLog{path: s.auditLog()}
	for _, kind := range o.Registries {
		for _, n := range o.Sizes {
			run, err := o.runRegistry(ctx, &trial{stage: s, kind: kind, options: o, say: say, fail: cancel, audit: audit}, n)
			if cause := context.Cause(ctx); err != nil && ctx.Err() != nil && !errors.Is(err, cause) {
				err = fmt.Errorf("%w (during %w)", cause, err)
			}
			if err != nil {
				report.Verdicts = judgeOperator(report.Runs)
				return report, err
			}
			report.Runs = append(report.Runs, run)
		}
	}
	report.Verdicts = judgeOperator(report.Runs)
	return report, nil
}

// runRegistry measures with one dedicated registry and one number of Pods.
func (o Options) runRegistry(ctx context.Context, t *trial, n int) (run OperatorRun, err error) {
	// The watches must end before the registry does.
	ctx, cancel := context.WithCancel(ctx)
	wait, err := t.open(ctx)
	if err != nil {
		cancel()
		return run, fmt.Errorf("%s: %w", t.kind, err)
	}
	defer func() {
		cancel()
		wait()
		err = errors.Join(err, t.server.Close())
	}()
	run = OperatorRun{Registry: t.server.Name(), Pods: n}
	if run.Alone, err = t.alone(ctx, n); err != nil {
		return run, err
	}
	if err := t.begin(ctx); err != nil {
		return run, fmt.Errorf("%s, %d Pods: %w", run.Registry, n, err)
	}
	for _, p := range moves(n) {
		done, err := t.move(ctx, p)
		if err != nil {
			return run, fmt.Errorf("%s, %d Pods, %s: %w", run.Registry, n, p.name, err)
		}
		run.Phases = append(run.Phases, done)
	}
	return run, t.end(ctx)
}
