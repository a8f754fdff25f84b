// SPDX-License-Identifier: Apache-2.0

// Package hook is for writing your own hook operator: it calls your function at each gate
// of a CloneSet Pod's life, and lets the Pod continue once the function has reported
// success.
//
//	err := hook.New("traffic").
//		OnCreated(hook.Label("example.com/newly-create"), register).
//		OnPreUpdate(hook.Label("example.com/unready-blocker-inplace"), failOver).
//		OnUpdated(hook.Label("example.com/unready-blocker-inplace"), register).
//		OnPreDelete(hook.Label("example.com/unready-blocker-delete"), deregister).
//		SetupWithManager(mgr)
//
// A function may be called several times for one gate: after it failed, after the
// operator restarted, and if the release could not be written because the Pod had changed
// meanwhile. It must be idempotent, and should return nil only after it has read its
// result back from wherever it writes to.
//
// Hooks work with both Usher's CloneSet controller and OpenKruise's. If you only need a
// registry, you need no code: see Registry and Registration.
package hook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	// defaultTimeout bounds one call of a Handler.
	defaultTimeout = 30 * time.Second
	// defaultWorkers is how many Handlers run at a time.
	defaultWorkers = 16
	// retryMin and retryMax bound the back-off of a Handler that failed; each failure
	// doubles it.
	retryMin = 200 * time.Millisecond
	retryMax = 30 * time.Second
)

// Handler does what is needed at a gate. The Pod continues when it returns nil. After an
// error it is called again with back-off, up to 30 s apart; after Wait, when its time is over.
// The context ends after Operator.Timeout. The Pod is a copy from a cache: its address
// and labels are those that it had when it reached the gate.
type Handler func(ctx context.Context, pod *corev1.Pod) error

// Wait is returned by a Handler when nothing is wrong but it is too early: the reason is
// shown to users, and the Handler is called again after d.
func Wait(d time.Duration, reason string) error { return &wait{after: d, reason: reason} }

type wait struct {
	after  time.Duration
	reason string
}

func (w *wait) Error() string { return w.reason }

// AtDeadline says what happens to a Pod whose Handler has not returned nil in time.
type AtDeadline string

const (
	// Block keeps calling the Handler, and reports it in an event.
	Block AtDeadline = "Block"
	// Proceed lets the Pod continue with a warning: requests may be lost.
	Proceed AtDeadline = "Proceed"
)

// Option changes one hook.
type Option func(*hook)

// Deadline bounds how long a Pod stays at the gate, counted from its arrival there.
// Without it, a Pod waits for as long as the Handler fails.
func Deadline(d time.Duration, then AtDeadline) Option {
	return func(h *hook) { h.deadline, h.then = d, then }
}

// hook is what to do at one gate.
type hook struct {
	gate     Gate
	key      Key
	handle   Handler
	deadline time.Duration
	then     AtDeadline
}

// Operator calls Handlers. Create one with New, configure its gates, and add it to a
// manager.
type Operator struct {
	// Selector limits the Pods. Default: every Pod that one of the keys holds.
	Selector labels.Selector
	// Timeout bounds one call of a Handler. Default: 30 s.
	Timeout time.Duration
	// Workers is how many Handlers run at a time. Default: 16.
	Workers int
	// Condition is the type of a Pod condition that reports what the Pod waits for, such
	// as example.com/traffic: False while a Handler has not returned nil, otherwise True.
	// It is written when that changes. Default: none.
	Condition corev1.PodConditionType
	// Clock tells the time. Default: the machine's clock.
	Clock clock.PassiveClock

	name   string
	guard  string
	hooks  map[Gate]hook
	faults []error
}

// New begins an operator. The name is used for its controller and as the source of its events.
func New(name string) *Operator {
	o := &Operator{name: name, hooks: map[Gate]hook{}}
	if name == "" {
		o.faults = append(o.faults, errors.New("the operator has no name: pass one to hook.New"))
	}
	return o
}

// OnPreNormal is called for a new Ready Pod, before it counts as available.
func (o *Operator) OnPreNormal(key Key, do Handler, options ...Option) *Operator {
	return o.on(PreNormal, key, do, options)
}

// OnCreated is called once for a Pod that is Normal and Ready and still has the key, a
// label of the Pod template. It holds nothing.
func (o *Operator) OnCreated(key Key, do Handler, options ...Option) *Operator {
	return o.on(Created, key, do, options)
}

// OnPreUpdate is called before a Pod is updated in place.
func (o *Operator) OnPreUpdate(key Key, do Handler, options ...Option) *Operator {
	return o.on(PreUpdate, key, do, options)
}

// OnUpdated is called when a Pod that was updated in place is Ready. Its key is that of
// OnPreUpdate.
func (o *Operator) OnUpdated(key Key, do Handler, options ...Option) *Operator {
	return o.on(Updated, key, do, options)
}

// OnPreDelete is called before a Pod is deleted. With a finalizer, or a Guard, it is also
// called for a Pod that someone other than the controller has deleted.
func (o *Operator) OnPreDelete(key Key, do Handler, options ...Option) *Operator {
	return o.on(PreDelete, key, do, options)
}

// Guard adds your own finalizer to a Pod before the first Handler of OnPreNormal or OnCreated is
// called, and removes it when the Handler of OnPreDelete has returned nil for a terminating Pod:
// nothing that the Handlers made outlives the Pod, even if somebody else deletes it.
func (o *Operator) Guard(finalizer string) *Operator {
	o.guard = finalizer
	return o
}

func (o *Operator) on(gate Gate, key Key, do Handler, options []Option) *Operator {
	if _, twice := o.hooks[gate]; twice {
		o.faults = append(o.faults, fmt.Errorf("gate %s: it has a Handler already: call both from one", gate))
	}
	if do == nil {
		o.faults = append(o.faults, fmt.Errorf("gate %s: the Handler is nil: pass a function", gate))
	}
	for _, text := range validation.IsQualifiedName(key.name) {
		o.faults = append(o.faults, fmt.Errorf("gate %s: key %q: %s", gate, key.name, text))
	}
	if !key.finalizer && key.holds == key.released {
		o.faults = append(o.faults, fmt.Errorf("gate %s: label %s holds and releases with the same value %q: choose two", gate, key.name, key.holds))
	}
	h := hook{gate: gate, key: key, handle: do}
	for _, option := range options {
		option(&h)
	}
	o.hooks[gate] = h
	return o
}

// check finds mistakes of the program that built the operator.
func (o *Operator) check() error {
	faults := o.faults
	if len(o.hooks) == 0 {
		faults = append(faults, errors.New("no gate has a Handler: call OnCreated, OnPreUpdate, OnUpdated or OnPreDelete"))
	}
	if created, ok := o.hooks[Created]; ok && created.key.finalizer {
		faults = append(faults, fmt.Errorf("gate %s: %s is a finalizer: a template cannot set one, use a label", Created, created.key))
	}
	if o.guard != "" {
		if _, ok := o.hooks[PreDelete]; !ok {
			faults = append(faults, errors.New("a Guard needs OnPreDelete: without it, nothing undoes what the Handlers made"))
		}
		if !strings.Contains(o.guard, "/") {
			faults = append(faults, fmt.Errorf("the Guard %q needs a domain, such as example.com/%s", o.guard, o.guard))
		}
	}
	if len(faults) == 0 {
		return nil
	}
	return fmt.Errorf("hook operator %q: %w", o.name, errors.Join(faults...))
}

// SetupWithManager adds the operator to a manager. It needs permission to get, list,
// watch and patch pods, to patch pods/status if Condition is set, and to create and patch
// events of events.k8s.io. Errors are mistakes in how the operator was built, all
// reported at once.
func (o *Operator) SetupWithManager(mgr ctrl.Manager) error {
	if err := o.check(); err != nil {
		return err
	}
	o.Clock = cmp.Or[clock.PassiveClock](o.Clock, clock.RealClock{})
	o.Timeout, o.Workers = cmp.Or(o.Timeout, defaultTimeout), cmp.Or(o.Workers, defaultWorkers)
	r := &reconciler{Operator: o, client: mgr.GetClient(), events: mgr.GetEventRecorder(o.name)}
	err := ctrl.NewControllerManagedBy(mgr).Named(o.name).
		For(&corev1.Pod{}, builder.WithPredicates(predicate.NewPredicateFuncs(o.concerns))).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: o.Workers,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](retryMin, retryMax),
		}).Complete(r)
	if err != nil {
		return fmt.Errorf("hook operator %q: %w", o.name, err)
	}
	return nil
}

// concerns reports whether the Pod of an event waits for this operator; others are dropped.
func (o *Operator) concerns(object client.Object) bool {
	pod, ok := object.(*corev1.Pod)
	if !ok || o.Selector != nil && !o.Selector.Matches(labels.Set(pod.Labels)) && !o.guards(pod) {
		return false
	}
	_, waits := o.pending(pod)
	return waits || o.reported(pod)
}

// guards reports whether our finalizer is on the Pod.
func (o *Operator) guards(pod *corev1.Pod) bool {
	return o.guard != "" && Finalizer(o.guard).on(pod)
}

// reported reports whether the Pod's condition still shows that it waits.
func (o *Operator) reported(pod *corev1.Pod) bool {
	c := condition(pod, o.Condition) // nil if there is no type, too
	return c != nil && c.Status == corev1.ConditionFalse
}
