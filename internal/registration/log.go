// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// Keys of log lines; controller-runtime's lines have them, too.
const (
	keyNamespace    = "namespace"
	keyRegistration = "registration"
	keyRegistry     = "registry"
	keyPod          = "pod"
)

// logConstructor makes the logger of a controller, whose requests are objects of that key.
func logConstructor(mgr ctrl.Manager, key string) func(*ctrl.Request) logr.Logger {
	return func(request *ctrl.Request) logr.Logger {
		logger := mgr.GetLogger().WithName("registration")
		if request != nil {
			logger = logger.WithValues(key, request.Name)
		}
		return logger
	}
}

// logWaits logs each wait that begins or ends. It remembers the open ones, so that a pass
// without changes logs nothing.
func (p *pass) logWaits(ctx context.Context, waits []plan.Waiting) {
	logger, open := log.FromContext(ctx), map[plan.Waiting]time.Time{}
	for _, w := range waits {
		key := plan.Waiting{Registration: w.Registration, Pod: w.Pod, Gate: w.Gate, Key: w.Key, Registry: w.Registry}
		since, known := p.notes.waits[key]
		if !known && w.Reason == plan.ReasonNotAsked {
			continue // The next pass knows more.
		}
		if !known {
			since = cmp.Or(w.Since, p.snapshot.Now)
			aboutWait(logger, w).Info("Wait begins", "reason", w.Reason, "message", w.Message)
		}
		open[key] = since
	}
	for _, w := range slices.SortedFunc(maps.Keys(p.notes.waits), plan.CompareWaiting) {
		if _, still := open[w]; !still {
			waited := max(p.snapshot.Now.Sub(p.notes.waits[w]), 0)
			aboutWait(logger, w).Info("Wait ends", "waited", waited.Round(time.Second).String())
		}
	}
	p.notes.waits = open
}

func aboutWait(logger logr.Logger, w plan.Waiting) logr.Logger {
	logger = logger.WithValues(keyRegistration, w.Registration, keyPod, w.Pod, "gate", w.Gate)
	if w.Key != "" {
		logger = logger.WithValues("key", w.Key)
	}
	if w.Registry != "" {
		logger = logger.WithValues(keyRegistry, w.Registry)
	}
	return logger
}

// logChanges logs each change of an entry, and each Pod that the registry, read back, has in
// or out of service now.
func (p *pass) logChanges(ctx context.Context, c plan.Changes, before []registry.Entry) {
	was, is := inService(before), inService(p.snapshot.Listings[c.Target].Entries)
	failed := p.snapshot.Failed[c.Target]
	for _, change := range slices.Concat(c.Leaves, c.Orphans, c.Joins) {
		e, reason := change.Entry, c.Reasons[change.Entry.ID]
		about := log.FromContext(ctx).WithValues(keyRegistration, e.Owner.Registration, keyRegistry, c.Target.Registry,
			"service", c.Target.Service, keyPod, e.Owner.Pod)
		err := cmp.Or(failed[e.ID], failed[""])
		switch {
		case err == nil:
			about.V(1).Info("Entry written", "operation", change.Op, "weight", e.Weight, "reason", reason)
		case plan.ReasonOf(err) == plan.ReasonRateLimited:
			about.V(1).Info("Entry postponed: rate limit", "operation", change.Op, "reason", reason)
		case plan.ReasonOf(err) == plan.ReasonRegistryUnavailable:
			// The registry's own line reports it once.
			about.V(1).Info("Entry not written", "operation", change.Op, "reason", reason, "cause", err.Error())
		default:
			about.Error(err, "Entry refused", "operation", change.Op, "reason", reason)
		}
		switch {
		case p.snapshot.Listings[c.Target].Err != nil || was[e.ID] == is[e.ID]:
		case is[e.ID]:
			about.Info("Pod is in service", "address", e.Address, "port", e.Port)
		default:
			about.Info("Pod is out of service", "reason", reason)
		}
	}
}

// inService has the IDs of the entries that callers get.
func inService(entries []registry.Entry) map[string]bool {
	ids := make(map[string]bool, len(entries))
	for _, e := range entries {
		ids[e.ID] = e.Weight > 0 && e.Unsettled == ""
	}
	return ids
}

// logPatch logs what a patch of a Pod has done. The pass fails with those that fail.
func logPatch(ctx context.Context, patch *plan.PodPatch) {
	about := log.FromContext(ctx).WithValues(keyPod, patch.Pod.Name)
	for _, r := range patch.Released {
		released := about.WithValues("gate", r.Gate, "key", r.Key)
		if len(r.Forced) > 0 {
			released.Info("Hook released at its deadline", "unconfirmed", r.Forced)
			continue
		}
		released.V(1).Info("Hook released", "reason", "every registry has confirmed")
	}
	about.V(1).Info("Pod patched", "drain", patch.Drain, "drainEnds", patch.DropDrain,
		"finalizersAdded", patch.AddFinalizers, "finalizersRemoved", patch.RemoveFinalizers)
}

// backOff leaves a registry alone that failed, logs when that begins, and returns for how long.
func (r *Reconciler) backOff(ctx context.Context, object *usherv1alpha1.Registry, err error) time.Duration {
	r.metrics.failed(object.Name, err)
	back, first := r.pool.failed(object.Name, err, timeoutOf(object)+probeSlack)
	about := log.FromContext(ctx).WithValues(keyRegistry, object.Name)
	if first {
		about.Error(err, "Registry fails", "reason", plan.ReasonOf(err))
	} else {
		about.V(1).Info("Registry still fails", "reason", plan.ReasonOf(err), "cause", err.Error())
	}
	return back
}
