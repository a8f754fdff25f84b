// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/podread"
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
	// Propagation is how long callers may use the Pod after its entries are gone, if it
	// leaves by this gate.
	Propagation time.Duration
	// Free is since when callers no longer choose the Pod, if it is asked since then whether requests are under way, and
	// UnderWay how many were when the Pod's record was last written; nil if that is not known.
	Free     time.Time
	UnderWay *int64
	// Deadline is when the first Registration's deadline passes, or the first timeout while requests may be under way;
	// zero without one. Policy is what happens then.
	Deadline time.Time
	Policy   usherv1alpha1.DeadlinePolicy
	// LetGo is from when on whoever deletes the Pod gets through, since somebody has given it less time than its own
	// grace period; zero if nobody has.
	LetGo time.Time
}

// Shown is what a Pod shows of its Registrations.
type Shown struct {
	// Holds keep it until Registrations release it.
	Holds []Hold
	// Entries are of all registries that its Registrations name, sorted.
	Entries []Shows
}

// Shows is whether a registry lists a Pod, as far as the Pod shows it.
type Shows struct {
	Registry string                 `json:"registry"`
	Listed   corev1.ConditionStatus `json:"listed"`
}

// Show returns what Pods show, by the Pod's name. It is made of the objects alone: no
// registry is asked.
func Show(snapshot Snapshot) map[string]Shown {
	ix := newIndex(snapshot)
	out := map[string]Shown{}
	for _, p := range ix.pods {
		out[p.Name] = Shown{p.holds(snapshot.Now), p.entries()}
	}
	return out
}

// entries takes the condition for what it says of all registries, and the drain's record for
// those that have let go.
func (p *pod) entries() []Shows {
	status, record := podread.Status(p.Pod, usherv1alpha1.ConditionRegistered), ReadRecord(p.Pod)
	names := distinct(slices.Concat(list.Map(p.selectedBy, func(r *registration) []string { return r.Spec.Registries })...))
	return list.Map(names, func(name string) Shows {
		one := Shows{name, status}
		switch {
		case record != nil && record.has(name), p.reportsUnlisted && name == p.missesIt():
			one.Listed = corev1.ConditionFalse
		case status == corev1.ConditionFalse && len(names) > 1:
			one.Listed = corev1.ConditionUnknown // one of them does not list it
		}
		return one
	})
}

// missesIt is the Registry of the Service that does not list the Pod, as its condition says.
func (p *pod) missesIt() string {
	name, _, _ := Reported(podread.Condition(p.Pod, usherv1alpha1.ConditionRegistered))
	return name
}

// has reports whether a registry has let go.
func (r *Record) has(registry string) bool {
	for key := range r.Gone {
		if _, target, _ := strings.Cut(key, "@"); strings.HasPrefix(target, registry+"/") {
			return true
		}
	}
	return false
}

func (p *pod) holds(now time.Time) (out []Hold) {
	out = list.Map(p.hooks, func(h hook) Hold { return p.hold(h.gate, h.key.name, h.answerers, now) })
	if p.DeletionTimestamp != nil && p.hasFinalizer() {
		out = append(out, p.hold(GateDeletion, usherv1alpha1.Finalizer, p.all(), now))
	}
	return out
}

func (p *pod) hold(gate Gate, key string, answerers []*registration, now time.Time) Hold {
	h := Hold{Gate: gate, Key: key, Since: p.waitsSince(gate)}
	if gate == GateRequested {
		h.By = p.request.By
	}
	for _, r := range answerers {
		h.Registrations = append(h.Registrations, r.Name)
		h.Registries = append(h.Registries, r.Spec.Registries...)
		if gate.leaves() {
			h.Propagation = max(h.Propagation, propagation(r.Registration))
		}
		limit := limitOf(r.Registration, gate)
		h.ends(limit.end(h.Since), limit.policy)
	}
	h.Registries = distinct(h.Registries)
	if record := ReadRecord(p.Pod); record != nil && record.Gate == gate {
		h.Until = record.End()
		h.asks(record, answerers)
	}
	if gate == GateRequested {
		h.LetGo = p.letGo(now)
		h.ends(h.LetGo, usherv1alpha1.DeadlineProceed)
	}
	return h
}

// ends notes a deadline, if it is the first one.
func (h *Hold) ends(at time.Time, policy usherv1alpha1.DeadlinePolicy) {
	if !at.IsZero() && (h.Deadline.IsZero() || at.Before(h.Deadline)) {
		h.Deadline, h.Policy = at, policy
	}
}

// asks notes how much is under way, if the Pod is asked for that by now.
func (h *Hold) asks(record *Record, answerers []*registration) {
	asking := list.Only(answerers, func(r *registration) bool { return r.Spec.Drain.Until != nil })
	if record.Free.IsZero() || len(asking) == 0 {
		return
	}
	h.Free, h.UnderWay, h.Deadline = record.Free, record.UnderWay, time.Time{}
	for _, r := range asking {
		h.ends(untilEnd(r.Registration, h.Gate, record.Free))
	}
}

// waitsSince is when the Pod began to wait at a gate.
func (p *pod) waitsSince(gate Gate) time.Time {
	switch record := ReadRecord(p.Pod); {
	case record != nil && record.Gate == gate:
		return record.Began
	case gate == GateDeletion:
		return p.goesSince()
	case gate == GateRequested && p.request != nil:
		return p.request.Since.Time
	case gate.leaves():
		return podread.StateSince(p.Pod)
	}
	return list.Latest(podread.StateSince(p.Pod), podread.Since(p.Pod, corev1.ContainersReady))
}

// goesSince is when a terminating Pod began to leave its registries: when the drain for its deletion began,
// or when somebody deleted it without one. So drain and deletion have one deadline together. It is zero if
// the Pod is not terminating.
func (p *pod) goesSince() time.Time {
	deleted := podread.DeletedSince(p.Pod)
	if record := ReadRecord(p.Pod); record != nil && (record.Gate == GatePreDelete || record.Gate == GateRequested) && record.Began.Before(deleted) {
		return record.Began
	}
	return deleted
}
