// SPDX-License-Identifier: Apache-2.0

package awscloudmap

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/registry"
)

const (
	// parallel is how many calls run at a time.
	parallel = 16
	// readBack is how often the list is checked for what was written.
	readBack = 200 * time.Millisecond
)

// step is a change with what it does.
type step struct {
	change registry.Change
	// id is that of the instance in Cloud Map.
	id string
	// put is the wanted instance, nil to remove it.
	put *instance
	// there is what Cloud Map has, nil for nothing.
	there *instance
	// operation is the one that was begun, empty for none.
	operation string
	// announced means that Cloud Map has taken the health that is wanted, which it shows after half a minute.
	announced bool
}

// writes reports whether the instance has to be registered: its health is changed by another call.
func (s *step) writes() bool {
	return s.there == nil || s.there.leaves || !s.there.has(s.put.attributes)
}

// Apply implements registry.Connector. It returns when callers find what was written, and the operations have ended. A
// change that has not come that far when the context ends is refused as transient.
func (r *Registry) Apply(ctx context.Context, name string, changes []registry.Change) error {
	found, err := r.read(ctx, name)
	if err != nil {
		return err
	}
	steps, refused := registry.Decide(found, instance.entry, changes, func(change registry.Change, there *instance) (*step, error) {
		s := &step{change: change, id: idOf(change.Entry.ID), there: there}
		if change.Op == registry.Remove {
			return s, nil
		}
		put, err := wanted(change.Entry, there)
		s.put = &put
		return s, err
	})
	if len(steps) == 0 {
		return refused
	}
	at, err := r.api.find(ctx, r.namespace, name)
	if errors.Is(err, registry.ErrPermanent) { // of the service
		return errors.Join(append(list.Map(steps, func(s *step) error { return s.change.Refused(err) }), refused)...)
	}
	if err != nil {
		return errors.Join(err, refused)
	}
	left, err := r.each(ctx, steps, func(s *step) error { return r.begin(ctx, name, at, s) })
	return errors.Join(refused, err, r.settle(ctx, name, at, left))
}

// each makes a call for each step, and returns those that it did not fail for. What concerns one change refuses that.
func (r *Registry) each(ctx context.Context, steps []*step, call func(*step) error) (well []*step, err error) {
	errs := registry.Each(ctx, len(steps), parallel, func(n int) error { return call(steps[n]) })
	var failed []error
	for n, err := range errs {
		switch {
		case err == nil:
			well = append(well, steps[n])
		case errors.Is(err, registry.ErrTransient) && !errors.Is(err, registry.ErrOneService):
			failed = append(failed, err)
		default:
			failed = append(failed, steps[n].change.Refused(err))
		}
	}
	return well, errors.Join(failed...)
}

// begin makes the calls of a step. Its operation goes on.
func (r *Registry) begin(ctx context.Context, name string, at service, s *step) (err error) {
	defer func() {
		if errors.Is(err, errNoService) {
			r.api.forget(r.namespace, name)
			err = registry.OneService(registry.Transient(fmt.Errorf("service %s of Cloud Map is not there any more", name)))
		}
	}()
	if s.put == nil {
		return r.deregister(ctx, name, at, s)
	}
	if s.put.unhealthy && !at.custom {
		return registry.Permanent(errors.New(noCustomHealth))
	}
	if s.writes() {
		s.operation, err = r.api.register(ctx, at, *s.put)
		return err
	}
	return r.tell(ctx, at, s)
}

// deregister begins to take an instance out, unless that goes on already.
func (r *Registry) deregister(ctx context.Context, name string, at service, s *step) (err error) {
	for _, l := range r.leavingFrom(name) {
		if l.instance.id == s.id && s.there.leaves && l.operation != "" {
			s.operation = l.operation
			return nil
		}
	}
	s.operation, err = r.api.deregister(ctx, at, s.id)
	switch {
	case err != nil:
	case s.operation == "": // there is no such instance
		r.forget(name, s.id)
	case at.dns:
		r.remember(name, leaving{*s.there, s.operation})
	}
	return err
}

// tell tells Cloud Map the health that is wanted, once.
func (r *Registry) tell(ctx context.Context, at service, s *step) error {
	if s.announced {
		return nil
	}
	if !at.custom {
		return registry.Transient(registry.OneService(errors.New("the health check of Route 53 that the service of Cloud Map has finds it unhealthy")))
	}
	s.announced = true
	return r.api.setHealth(ctx, at, s.id, s.put.unhealthy)
}

// settle waits until callers find what was written, and until the operations have ended.
func (r *Registry) settle(ctx context.Context, name string, at service, steps []*step) error {
	var refused []error
	tick := time.NewTicker(readBack)
	defer tick.Stop()
	for len(steps) > 0 {
		found, err := r.read(ctx, name)
		if err != nil {
			return errors.Join(append(refused, late(ctx, steps, err)...)...)
		}
		have := list.By(found, func(i instance) string { return i.id })
		if steps = list.Only(steps, func(s *step) bool { return !s.seen(at, have) }); len(steps) == 0 {
			break
		}
		asked := min(len(steps), parallel) // the others' turn comes as these end
		well, err := r.each(ctx, steps[:asked], func(s *step) error { return r.follow(ctx, at, s, have) })
		steps, refused = append(well, steps[asked:]...), append(refused, err)
		select {
		case <-ctx.Done():
			return errors.Join(append(refused, late(ctx, steps, context.Cause(ctx))...)...)
		case <-tick.C:
		}
	}
	return errors.Join(refused...)
}

// late are the errors of changes that have not come to their end in time. Other changes of the service go on.
func late(ctx context.Context, steps []*step, err error) []error {
	if ctx.Err() == nil && !errors.Is(err, context.DeadlineExceeded) {
		return []error{err}
	}
	return list.Map(steps, func(s *step) error {
		return s.change.Refused(registry.Transient(fmt.Errorf("callers do not find the change in Cloud Map yet, and its operation may go on: %w", err)))
	})
}

// seen reports whether callers find what was written. DNS has it when the operation has ended.
func (s *step) seen(at service, have map[string]instance) bool {
	i, there := have[s.id]
	if s.put == nil {
		return !there
	}
	return there && s.written(i) && i.unhealthy == s.put.unhealthy && (s.operation == "" || !at.dns)
}

// written reports whether an instance is as it was written, but for its health.
func (s *step) written(i instance) bool { return !i.leaves && i.has(s.put.attributes) }

// follow asks what has become of a step's operation, and tells the wanted health if that is missing.
func (r *Registry) follow(ctx context.Context, at service, s *step, have map[string]instance) error {
	if i, there := have[s.id]; s.put != nil && there && s.written(i) && i.unhealthy != s.put.unhealthy {
		return r.tell(ctx, at, s)
	}
	if s.operation == "" {
		return nil
	}
	ended, err := r.api.ended(ctx, s.operation)
	if ended {
		s.operation = ""
	}
	return err
}
