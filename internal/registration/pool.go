// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/origin"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/kinds"
)

const (
	// defaultTimeout bounds a call where spec.timeout is absent.
	defaultTimeout = 5 * time.Second
	// defaultRepair is how often entries are compared where spec.repairInterval
	// is absent.
	defaultRepair = 30 * time.Second
	// minBackOff and maxBackOff bound how long a registry that failed is not called; each
	// failure doubles it.
	minBackOff = time.Second
	maxBackOff = 30 * time.Second
	// calm is how long a registry must work before its back-off starts over.
	calm = time.Minute
)

// Connect makes a connector for a Registry. prefix is where its services are, its
// registry.Settings.Root or an earlier one; secret is nil if the Registry names none.
type Connect func(r *usherv1alpha1.Registry, prefix string, secret map[string][]byte) (registry.Connector, error)

func timeoutOf(r *usherv1alpha1.Registry) time.Duration {
	return plan.DurationOf(r.Spec.Timeout, defaultTimeout)
}

func repairOf(r *usherv1alpha1.Registry) time.Duration {
	return plan.DurationOf(r.Spec.RepairInterval, defaultRepair)
}

// pool has one connector for each Registry and prefix, and knows which registries are down,
// so that no pass waits for them.
type pool struct {
	reader  client.Reader
	connect Connect
	clock   clock.PassiveClock
	// workers is how many calls to each registry are in flight at most.
	workers int
	// origin tells this cluster from a copy of it, which must not call registries that both have; nil if nobody does.
	origin *origin.Keeper

	mu sync.Mutex
	// known is what this process knows of the registries, by name.
	known map[string]*registryState
}

// registryState is what this process knows of a registry.
type registryState struct {
	reachability
	backOff
	// conns are its connectors, by prefix.
	conns map[string]*conn
	// turns are the changes that it takes now; nil if it has no limit.
	turns *rate.Limiter
	// workers has room for the calls that may be in flight.
	workers *semaphore.Weighted
	// listings are those that it answers now, if somebody else writes its entries.
	listings *rate.Limiter
}

// open returns what is known of a registry, or begins to know it. The caller holds the lock.
func (p *pool) open(name string) *registryState {
	if p.known[name] == nil {
		p.known[name] = &registryState{conns: map[string]*conn{}, workers: semaphore.NewWeighted(int64(p.workers)),
			listings: rate.NewLimiter(listingsPerSecond, listingsBurst)}
	}
	return p.known[name]
}

// connVersion is what a connector was made from.
type connVersion struct {
	uid           types.UID
	generation    int64
	secretUID     types.UID
	secretVersion string
}

// backOff is why, and until when, passes do not call a registry that failed.
type backOff struct {
	err      error
	last     time.Time
	until    time.Time
	failures int
}

func newPool(reader client.Reader, connect Connect, clock clock.PassiveClock, workers int) *pool {
	return &pool{reader: reader, connect: connect, clock: clock, workers: workers,
		known: map[string]*registryState{}}
}

// get returns the connector, a new one if the Registry has changed. If fresh, it reads the
// Secret again, too.
func (p *pool) get(ctx context.Context, r *usherv1alpha1.Registry, prefix string, fresh bool) (*conn, error) {
	if err := p.mayCall(ctx, r); err != nil {
		return nil, err
	}
	p.mu.Lock()
	have := p.open(r.Name).conns[prefix]
	p.mu.Unlock()
	if have != nil && !fresh && have.version.uid == r.UID && have.version.generation == r.Generation {
		return have, nil
	}
	version := connVersion{uid: r.UID, generation: r.Generation}
	var data map[string][]byte
	kind, settings := kinds.Of(r, "")
	if settings.Secret != nil {
		secret, err := p.secret(ctx, *settings.Secret)
		if err != nil {
			return nil, err
		}
		data, version.secretUID, version.secretVersion = secret.Data, secret.UID, secret.ResourceVersion
	}
	if have != nil && have.version == version {
		return have, nil
	}
	next := &conn{version: version, timeout: timeoutOf(r), secrets: registry.SecretsOf(data), holdsBack: kind.HoldsBack}
	err := recovering(ctx, func(context.Context) (err error) {
		next.Connector, err = p.connect(r, prefix, data)
		return err
	})
	if err != nil {
		return nil, next.secrets.Error(err)
	}
	p.mu.Lock()
	s := p.open(r.Name)
	next.workers = s.workers
	old := s.conns[prefix]
	s.conns[prefix] = next
	p.mu.Unlock()
	if old != nil {
		// Calls in flight fail as transient, and are repeated with the new one.
		_ = old.Close()
	}
	return next, nil
}

// mayCall returns why a registry must not be called: its entries may be those of the cluster that this one is a copy of.
func (p *pool) mayCall(ctx context.Context, r *usherv1alpha1.Registry) error {
	if p.origin == nil || r == nil {
		return nil
	}
	if kind, _ := kinds.Of(r, ""); kind.Inside {
		return nil
	}
	return p.origin.Check(ctx)
}

func (p *pool) secret(ctx context.Context, ref usherv1alpha1.SecretReference) (*corev1.Secret, error) {
	var secret corev1.Secret
	err := p.reader.Get(ctx, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}, &secret)
	switch {
	case apierrors.IsNotFound(err):
		return nil, registry.Permanent(fmt.Errorf(
			"there is no Secret %s/%s: create it, or correct credentialsSecret", ref.Namespace, ref.Name))
	case apierrors.IsForbidden(err):
		return nil, registry.Permanent(fmt.Errorf(
			"not allowed to read Secret %s/%s: move it to a namespace whose Secrets Usher may read (https://usher.dev/registries.html), or add %s to the chart's rbac.secretNamespaces",
			ref.Namespace, ref.Name, ref.Namespace))
	case err != nil:
		return nil, registry.Transient(fmt.Errorf("read Secret %s/%s: %w", ref.Namespace, ref.Name, err))
	}
	return &secret, nil
}

// forget closes the connectors of a Registry that is gone.
func (p *pool) forget(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open(name).close()
	delete(p.known, name)
}

// close closes all connectors.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.known {
		s.close()
	}
}

func (s *registryState) close() {
	for _, c := range s.conns {
		_ = c.Close()
	}
	clear(s.conns)
}

// down returns until when and why a registry is not called; nil if it is.
func (p *pool) down(name string) (until time.Time, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.open(name); p.clock.Now().Before(s.until) {
		return s.until, s.err
	}
	return time.Time{}, nil
}

// beginBackOff begins or lengthens a back-off, and returns it. slack is how much longer passes
// stay away than the next probe.
func (p *pool) beginBackOff(name string, err error, slack time.Duration) (back time.Duration, first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	o := &p.open(name).backOff
	if now.Sub(o.last) > calm+maxBackOff {
		o.failures = 0
	}
	first = o.until.IsZero()
	back = min(minBackOff<<min(o.failures, 10), maxBackOff)
	o.failures++
	o.err, o.last, o.until = err, now, now.Add(back+slack)
	return back, first
}

// endBackOff ends a back-off, and reports whether there was one. A registry that failed
// lately keeps its count, so that one that fails for one service only is not called ever
// faster.
func (p *pool) endBackOff(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := &p.open(name).backOff
	ended := !o.until.IsZero()
	o.until = time.Time{}
	if p.clock.Now().Sub(o.last) > calm {
		*o = backOff{}
	}
	return ended
}

// isOutage reports whether an error concerns the registry as a whole, and is not the end of
// the pass itself.
func isOutage(ctx context.Context, err error) bool {
	return err != nil && ctx.Err() == nil && !errors.Is(err, context.Canceled)
}

// reachability is what this process knows of when a registry answered.
type reachability struct {
	// recalled means that what earlier processes knew is in here.
	recalled bool
	// answered is when it last did; zero if nobody knows.
	answered time.Time
	outage   plan.Outage
}

func (s *reachability) away() bool { return s.outage != (plan.Outage{}) && s.outage.To.IsZero() }

// reachabilityOf is what an earlier process left in the status of a Registry. One that left
// nothing may have met an outage all the same: it began after the Registry was created.
func reachabilityOf(object *usherv1alpha1.Registry) reachability {
	s, status := reachability{recalled: true, answered: object.CreationTimestamp.Time}, object.Status
	if o := status.LastOutage; o != nil {
		s.outage, s.answered = plan.Outage{From: o.From.Time, Recalled: true}, o.From.Time
		if o.To != nil {
			s.outage.To, s.answered = o.To.Time, o.To.Time
		}
	}
	c := meta.FindStatusCondition(status.Conditions, usherv1alpha1.ConditionReachable)
	if c != nil && c.Status == metav1.ConditionTrue && c.LastTransitionTime.After(s.answered) {
		s.answered = c.LastTransitionTime.Time
	}
	s.answered = s.answered.Add(-plan.MaxSkew) // by another clock
	return s
}

// noteCall notes whether a registry answered. One that refuses us answers others.
func (p *pool) noteCall(ctx context.Context, name string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	s := &p.open(name).reachability
	s.recalled = true
	switch {
	case err == nil:
		if s.away() {
			s.outage = s.outage.Ended(now)
		}
		s.answered = now
	case s.away() || errors.Is(err, registry.ErrPermanent) || !isOutage(ctx, err):
	default:
		s.outage = s.outage.Next(cmp.Or(s.answered, now))
	}
}

// outage returns the last outage of a registry.
func (p *pool) outage(name string) plan.Outage {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open(name).outage
}

// recall takes over what earlier processes knew of a registry. It reads from the API server,
// because a cache may not show their last write.
func (r *Reconciler) recall(ctx context.Context, name string) error {
	r.pool.mu.Lock()
	known := r.pool.open(name).recalled
	r.pool.mu.Unlock()
	if known {
		return nil
	}
	live, err := read[usherv1alpha1.Registry](ctx, r.reader, "the last outage of Registry", types.NamespacedName{Name: name})
	if err != nil || live == nil {
		return err
	}
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	if s := r.pool.open(name); !s.recalled {
		s.reachability = reachabilityOf(live)
	}
	return nil
}

// limiter returns the limiter of a Registry, nil if it has no limit. A changed limit starts
// over.
func (p *pool) limiter(r *usherv1alpha1.Registry) *rate.Limiter {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.open(r.Name)
	if r.Spec.RateLimit == nil {
		s.turns = nil
		return nil
	}
	limit, burst := rate.Limit(r.Spec.RateLimit.ChangesPerSecond), int(ptr.Deref(r.Spec.RateLimit.Burst, r.Spec.RateLimit.ChangesPerSecond))
	if s.turns == nil || s.turns.Limit() != limit || s.turns.Burst() != burst {
		s.turns = rate.NewLimiter(limit, burst)
	}
	return s.turns
}

// conn is the connector of one Registry and prefix. Its calls end in time, and a panic is an
// error. No error repeats what the Secret holds, even if the registry's answer does, or is longer than
// statuses and logs want it: whatever connectors and their libraries return passes through here.
type conn struct {
	registry.Connector
	version connVersion
	timeout time.Duration
	secrets registry.Secrets
	// workers bounds the calls to the registry at a time, except for probes.
	workers *semaphore.Weighted
	// holdsBack means that an entry of weight 0 stays and gets no callers.
	holdsBack bool
}

// List implements registry.Connector.
func (c *conn) List(ctx context.Context, service string) (entries []registry.Entry, err error) {
	_, entries, err = c.Choose(ctx, service)
	return entries, err
}

// Choose implements registry.Selecting. Most registries have no selectors.
func (c *conn) Choose(ctx context.Context, service string) (selector map[string]string, entries []registry.Entry, err error) {
	err = c.call(ctx, func(ctx context.Context) (err error) {
		if selecting, ok := c.Connector.(registry.Selecting); ok {
			selector, entries, err = selecting.Choose(ctx, service)
		} else {
			entries, err = c.Connector.List(ctx, service)
		}
		if err != nil {
			return err
		}
		return registry.TakeEntries(ctx, len(entries))
	})
	for i := range entries {
		if entries[i].Unsettled != "" {
			entries[i].Unsettled = c.secrets.Excerpt(entries[i].Unsettled)
		}
		if entries[i].Hidden != "" {
			entries[i].Hidden = c.secrets.Excerpt(entries[i].Hidden)
		}
	}
	return selector, entries, err
}

// Apply implements registry.Connector.
func (c *conn) Apply(ctx context.Context, service string, changes []registry.Change) error {
	if err := registry.Validate(service, changes, c.holdsBack); err != nil {
		return err
	}
	return c.call(ctx, func(ctx context.Context) error { return c.Connector.Apply(ctx, service, changes) })
}

// Ping implements registry.Connector.
func (c *conn) Ping(ctx context.Context) error { return c.bounded(ctx, c.Connector.Ping) }

// call waits in line for the registry. The line is first come, first served, and a pass has a few
// calls there at a time: so none keeps others from the registry for long.
func (c *conn) call(ctx context.Context, do func(context.Context) error) error {
	if err := c.workers.Acquire(ctx, 1); err != nil {
		return registry.Transient(err)
	}
	defer c.workers.Release(1)
	return c.bounded(ctx, do)
}

func (c *conn) bounded(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	ctx, done := registry.Counted(ctx)
	byID, rest := registry.ChangeErrors(recovering(ctx, do))
	done(rest)
	errs := []error{c.secrets.Error(rest)}
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		errs = append(errs, &registry.ChangeError{ID: id, Err: c.secrets.Error(byID[id])})
	}
	return errors.Join(errs...)
}

func recovering(ctx context.Context, do func(context.Context) error) (err error) {
	defer registry.Recover(ctx, &err)
	return do(ctx)
}
