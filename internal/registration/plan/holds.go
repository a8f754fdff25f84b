// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"time"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// Hold is a label or finalizer that keeps a Pod until Registrations release it.
type Hold struct {
	// Gate and Key are what holds the Pod.
	Gate Gate
	Key  string
	// Registrations have to agree, and Registries to confirm; both are sorted.
	Registrations, Registries []string
	// By is who asked for the Pod's deletion; empty at other gates.
	By string
	// Since is when the wait began; zero if the Pod does not show it.
	Since time.Time
	// Until is when callers no longer use the Pod, if its drain goes on as it is; zero if
	// that is not known.
	Until time.Time
	// Deadline is when the first Registration's deadline passes; zero without one. Policy
	// is what happens then.
	Deadline time.Time
	Policy   usherv1alpha1.DeadlinePolicy
}

// Holds returns what Registrations hold each Pod for, by the Pod's name. It is made of
// the objects alone: no registry is asked.
func Holds(snapshot Snapshot) map[string][]Hold {
	ix := newIndex(snapshot)
	out := map[string][]Hold{}
	for _, p := range ix.pods {
		for _, h := range p.hooks {
			out[p.Name] = append(out[p.Name], p.hold(h.gate, h.key.name, h.answerers))
		}
		if p.DeletionTimestamp != nil && p.hasFinalizer() {
			out[p.Name] = append(out[p.Name], p.hold(GateDeletion, usherv1alpha1.Finalizer, p.all()))
		}
	}
	return out
}

func (p *pod) hold(gate Gate, key string, answerers []*registration) Hold {
	h := Hold{Gate: gate, Key: key, Since: p.waitsSince(gate)}
	if gate == GateRequested {
		h.By = p.request.By
	}
	for _, r := range answerers {
		h.Registrations = append(h.Registrations, r.Name)
		h.Registries = append(h.Registries, r.Spec.Registries...)
		limit := limitOf(r.Registration, gate)
		if end := limit.end(h.Since); !end.IsZero() && (h.Deadline.IsZero() || end.Before(h.Deadline)) {
			h.Deadline, h.Policy = end, usherv1alpha1.DeadlineBlock
			if limit.proceed {
				h.Policy = usherv1alpha1.DeadlineProceed
			}
		}
	}
	slices.Sort(h.Registries)
	h.Registries = slices.Compact(h.Registries)
	if record := ReadRecord(p.Pod); record != nil && record.Gate == gate {
		h.Until = record.End()
	}
	return h
}

// waitsSince is when the Pod began to wait at a gate.
func (p *pod) waitsSince(gate Gate) time.Time {
	switch record := ReadRecord(p.Pod); {
	case record != nil && record.Gate == gate:
		return record.Began
	case gate == GateDeletion && p.DeletionTimestamp != nil:
		return p.DeletionTimestamp.Time
	case gate == GateRequested && p.request != nil:
		return p.request.Since.Time
	case gate.leaves():
		return p.stateSince()
	}
	since := p.stateSince()
	if at := readySince(p.Pod); at.After(since) {
		since = at
	}
	return since
}
