// SPDX-License-Identifier: Apache-2.0

package registries

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
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
)

// Connect makes a connector for a Registry. prefix is where its services are, its
// registry.Settings.Root or an earlier one; secret is nil if the Registry names none.
type Connect func(r *usherv1alpha1.Registry, prefix string, secret map[string][]byte) (registry.Connector, error)

// TimeoutOf is how long a call to a registry may take: its spec.timeout, 5 s by default.
func TimeoutOf(r *usherv1alpha1.Registry) time.Duration {
	return plan.DurationOf(r.Spec.Timeout, defaultTimeout)
}

// RepairOf is how often a registry's entries are compared: its spec.repairInterval, 30 s by default.
func RepairOf(r *usherv1alpha1.Registry) time.Duration {
	return plan.DurationOf(r.Spec.RepairInterval, defaultRepair)
}

// Pool has one connector for each Registry and prefix, and knows which registries are down,
// so that no pass waits for them.
type Pool struct {
	reader  client.Reader
	connect Connect
	clock   clock.PassiveClock
	// workers is how many calls to each registry are in flight at most.
	workers int

	mu sync.Mutex
	// known is what this process knows of the registries, by name.
	known map[string]*state
}

// state is what this process knows of a registry.
type state struct {
	reachability
	backOff
	// conns are its connectors, by prefix.
	conns map[string]*Conn
	// turns are the changes that it takes now; nil if it has no limit.
	turns *rate.Limiter
	// workers has room for the calls that may be in flight.
	workers *semaphore.Weighted
	// listings are those that it answers now, if somebody else writes its entries.
	listings *rate.Limiter
}

// open returns what is known of a registry, or begins to know it. The caller holds the lock.
func (p *Pool) open(name string) *state {
	if p.known[name] == nil {
		p.known[name] = &state{conns: map[string]*Conn{}, workers: semaphore.NewWeighted(int64(p.workers)),
			listings: rate.NewLimiter(ListingsPerSecond, ListingsBurst)}
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

// New returns a Pool. It reads Secrets, and what earlier processes knew, from reader, which must not be a cache. It
// makes connectors with connect, and allows that many calls to each registry at a time.
func New(reader client.Reader, connect Connect, clock clock.PassiveClock, workers int) *Pool {
	return &Pool{reader: reader, connect: connect, clock: clock, workers: workers,
		known: map[string]*state{}}
}

// Get returns the connector, a new one if the Registry has changed. If fresh, it reads the
// Secret again, too.
func (p *Pool) Get(ctx context.Context, r *usherv1alpha1.Registry, prefix string, fresh bool) (*Conn, error) {
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
	next := &Conn{version: version, timeout: TimeoutOf(r), secrets: registry.SecretsOf(data), holdsBack: kind.HoldsBack}
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

func (p *Pool) secret(ctx context.Context, ref usherv1alpha1.SecretReference) (*corev1.Secret, error) {
	var secret corev1.Secret
	err := p.reader.Get(ctx, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}, &secret)
	switch {
	case apierrors.IsNotFound(err):
		return nil, registry.Permanent(fmt.Errorf(
			"there is no Secret %s/%s: create it, or correct credentialsSecret", ref.Namespace, ref.Name))
	case apierrors.IsForbidden(err):
		return nil, registry.Permanent(fmt.Errorf(
			"not allowed to read Secret %s/%s: move it to a namespace whose Secrets Usher may read "+
				"(https://usher.dev/registries.html), or add %s to the chart's rbac.secretNamespaces",
			ref.Namespace, ref.Name, ref.Namespace))
	case err != nil:
		return nil, registry.Transient(fmt.Errorf("read Secret %s/%s: %w", ref.Namespace, ref.Name, err))
	}
	return &secret, nil
}

// Forget closes the connectors of a Registry that is gone.
func (p *Pool) Forget(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open(name).close()
	delete(p.known, name)
}

// Close closes all connectors.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.known {
		s.close()
	}
}

func (s *state) close() {
	for _, c := range s.conns {
		_ = c.Close()
	}
	clear(s.conns)
}
