// SPDX-License-Identifier: Apache-2.0

package nacos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/rest"
)

const (
	// parallel is how many requests run at a time.
	parallel = 16
	// readBack is how often the list is checked for the written instances.
	readBack = 100 * time.Millisecond
	// overlaid is how long the list may take to show what was written. After that,
	// something that Nacos keeps beside the instance is assumed to hide it.
	overlaid = 2 * time.Second
)

// step is a change with what it writes.
type step struct {
	change registry.Change
	// put is the wanted instance, nil to remove.
	put *instance
	// covered means that the address had an instance before, and someone may have set
	// values for it in the console. Those persist until they are replaced.
	covered bool
	// gone are the instances to remove.
	gone []instance
}

// Apply implements registry.Connector. It returns when the list shows the changes,
// after about half a second. If Nacos's own check holds back a correct entry, that is a
// transient error.
func (r *Registry) Apply(ctx context.Context, service string, changes []registry.Change) error {
	instances, err := r.read(ctx, service)
	if err != nil {
		return err
	}
	p := newPlan(instances)
	p.add(changes)
	if len(p.steps) == 0 {
		return errors.Join(p.refused...)
	}
	// Removals come first, because another entry may be waiting for the address.
	for _, removal := range []bool{true, false} {
		if err := r.each(ctx, service, p, removal); err != nil {
			return errors.Join(append(p.refused, err)...)
		}
	}
	return errors.Join(append(p.refused, r.settle(ctx, service, p.steps))...)
}

// each makes the steps that are removals, or the others. Refused steps are skipped from
// then on; any other error stops the writes.
func (r *Registry) each(ctx context.Context, service string, p *plan, removals bool) error {
	errs := registry.Each(ctx, len(p.steps), parallel, func(n int) error {
		if s := p.steps[n]; (s.put == nil) == removals {
			return r.make(ctx, service, s)
		}
		return nil
	})
	var kept []step
	for n, err := range errs {
		switch {
		case err == nil:
			kept = append(kept, p.steps[n])
		case errors.Is(err, registry.ErrTransient), errors.Is(err, rest.ErrDenied):
			return err
		default:
			p.refused = append(p.refused, p.steps[n].change.Refused(err))
		}
	}
	p.steps = kept
	return nil
}

// make puts first, and then removes an entry's former address. It also replaces what the
// console set on an instance.
func (r *Registry) make(ctx context.Context, service string, s step) error {
	if s.put != nil {
		form, err := r.form(service, *s.put)
		if err != nil {
			return err
		}
		if err := r.write(ctx, http.MethodPost, form); err != nil {
			return err
		}
		if s.covered {
			if err := r.write(ctx, http.MethodPut, form); err != nil {
				return err
			}
		}
	}
	for _, old := range s.gone {
		form, err := r.form(service, old)
		if err != nil {
			return err
		}
		form.Del("metadata")
		if err := r.write(ctx, http.MethodDelete, form); err != nil {
			return err
		}
	}
	return nil
}

func (r *Registry) write(ctx context.Context, method string, form url.Values) error {
	var said string
	err := r.call(ctx, method, pathInstance, form, &said)
	if errors.Is(err, errNotFound) {
		// It was deregistered together with its service.
		return nil
	}
	return err
}

// form sets every field, because an update must omit none.
func (r *Registry) form(service string, i instance) (url.Values, error) {
	metadata, err := json.Marshal(i.Metadata)
	if err != nil {
		return nil, registry.Permanent(fmt.Errorf("instance.metadata: %w", err))
	}
	form := r.where(service)
	form.Set("ip", i.IP)
	form.Set("port", strconv.Itoa(int(i.Port)))
	form.Set("weight", strconv.FormatFloat(i.Weight, 'f', -1, 64))
	form.Set("enabled", strconv.FormatBool(i.Enabled))
	form.Set("healthy", "true")
	form.Set("ephemeral", "false")
	form.Set("metadata", string(metadata))
	return form, nil
}

// settle waits until the list shows the steps. If one does not show in time, a leftover
// of an earlier instance with that address hides it, and settle replaces it.
func (r *Registry) settle(ctx context.Context, service string, steps []step) error {
	began := r.now()
	tick := time.NewTicker(readBack)
	defer tick.Stop()
	for {
		instances, err := r.read(ctx, service)
		if err != nil {
			return err
		}
		missing := unseen(steps, instances)
		if len(missing) == 0 {
			return nil
		}
		if r.now().Sub(began) > overlaid {
			began = r.now()
			if err := r.replace(ctx, service, missing); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return registry.Transient(fmt.Errorf("the list does not show %d changes, such as that of %s: %w",
				len(missing), missing[0].change.Entry.ID, context.Cause(ctx)))
		case <-tick.C:
		}
	}
}

func (r *Registry) replace(ctx context.Context, service string, steps []step) error {
	again := &plan{steps: steps}
	for n := range again.steps {
		again.steps[n].covered, again.steps[n].gone = true, nil
	}
	return errors.Join(r.each(ctx, service, again, false), errors.Join(again.refused...))
}

// unseen returns the steps that the list does not show.
func unseen(steps []step, instances []instance) []step {
	have := make(map[string]instance, len(instances))
	for _, i := range instances {
		have[i.at()] = i
	}
	return slices.DeleteFunc(slices.Clone(steps), func(s step) bool { return s.seen(have) })
}

func (s step) seen(have map[string]instance) bool {
	for _, old := range s.gone {
		if i, there := have[old.at()]; there && i.Metadata[metaID] == old.Metadata[metaID] {
			return false
		}
	}
	if s.put == nil {
		return true
	}
	i, there := have[s.put.at()]
	return there && i.shows(*s.put)
}
