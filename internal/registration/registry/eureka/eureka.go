// SPDX-License-Identifier: Apache-2.0

// Package eureka keeps entries as instances of Eureka, by its REST API.
//
// Eureka removes instances that nobody renews. A connector renews, every half
// minute, what Usher wrote in the services that it lists, and gives instances a
// long lease, so that an operator that is down for less takes none with it. A
// renewal makes nothing anew that is gone: that is for whoever compares the list
// with what it should be.
//
// Eureka answers lists from a cache. A connector asks for what it wrote itself
// past that cache, and lists nothing before the cache must have what others
// wrote before its time. Eureka has no compare-and-set: what others write to an
// entry between the comparison and the write is lost.
package eureka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/rest"
)

// Keys of the credentials Secret, for basic authentication. For https it may
// hold credentials.KeyCA, KeyCertificate and KeyPrivateKey as well.
const (
	KeyUsername = "username"
	KeyPassword = "password"
)

const (
	// DefaultLease is how long Eureka keeps an instance that nobody renews, at
	// least; often it is twice as long.
	DefaultLease = time.Hour
	// DefaultResponseCache is how old lists of a server with default settings are.
	DefaultResponseCache = 30 * time.Second
	// RenewInterval is how often an instance is renewed. Eureka's
	// self-preservation counts on it.
	RenewInterval = 30 * time.Second
	// parallel is how many requests of a call are under way.
	parallel = 16
)

// Options say where Eureka is.
type Options struct {
	// Address is the URL of a server with its path, http://host:8761/eureka.
	Address string
	// Secret holds the credentials by the keys above; it may be nil.
	Secret map[string][]byte
	// ResponseCache is the age that a server's lists may have. 0 says that the
	// server has no such cache.
	ResponseCache time.Duration
	// Lease is DefaultLease if zero; it is sent in whole seconds.
	Lease time.Duration
	// Clock is the real one if nil.
	Clock clock.WithTicker
}

// FromSpec reads the kind's field of a Registry.
func FromSpec(spec *usherv1alpha1.RegistrySpec, _ string) *registry.Settings {
	s := spec.Eureka
	if s == nil {
		return nil
	}
	return &registry.Settings{
		Secret: s.CredentialsSecret, Connect: func(_ string, secret map[string][]byte) (registry.Connector, error) {
			return New(Options{
				Address: s.Address, Secret: secret, Lease: ptr.Deref(s.Lease, metav1.Duration{}).Duration,
				ResponseCache: ptr.Deref(s.ResponseCache, metav1.Duration{Duration: DefaultResponseCache}).Duration,
			})
		},
	}
}

// Registry implements registry.Connector.
type Registry struct {
	username string
	password string
	lease    time.Duration
	fresh    time.Time // From then on lists have all that was written before us.
	clock    clock.WithTicker
	client   *rest.Client
	stop     context.CancelFunc
	stopped  chan struct{}

	mu sync.Mutex
	// written are the instances, by application, that the cache may not know as
	// they are.
	written map[string]map[string]bool
	renewed map[string]renewal
}

var _ registry.Connector = (*Registry)(nil)

// New checks the options, connects to nothing, and starts to renew what will be
// listed, until Close. Errors are permanent and name the field or the Secret's
// key.
func New(options Options) (*Registry, error) {
	client, err := rest.New(rest.Options{
		Field: "eureka.address", Example: "http://host:8761/eureka", Address: options.Address, Secret: options.Secret, Idle: parallel,
	})
	if err != nil {
		return nil, err
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &Registry{
		client:   client,
		username: strings.TrimSpace(string(options.Secret[KeyUsername])),
		password: strings.TrimRight(string(options.Secret[KeyPassword]), "\r\n"),
		lease:    cmp.Or(options.Lease, DefaultLease),
		fresh:    options.Clock.Now().Add(options.ResponseCache),
		clock:    options.Clock,
		stop:     stop, stopped: make(chan struct{}),
		written: map[string]map[string]bool{}, renewed: map[string]renewal{},
	}
	ticker := r.clock.NewTicker(RenewInterval)
	go r.renewUntil(ctx, ticker)
	return r, nil
}

// Ping implements registry.Connector. It fails as List does while lists are not
// to be trusted.
func (r *Registry) Ping(ctx context.Context) error {
	if err := r.isEureka(ctx); err != nil {
		return err
	}
	return r.trusted()
}

// trusted says whether lists have all that was written before us.
func (r *Registry) trusted() error {
	wait := r.fresh.Sub(r.clock.Now())
	if wait <= 0 {
		return nil
	}
	return registry.Transient(fmt.Errorf("what Eureka lists may be older than this connection: it can be trusted in %s",
		wait.Round(time.Second)))
}

// List implements registry.Connector. It is transient that lists are not to be
// trusted yet, which they are not for Options.ResponseCache after New. An entry
// whose status is not UP has the weight 0; one of others has the weight 1, as
// Eureka has none.
func (r *Registry) List(ctx context.Context, service string) ([]registry.Entry, error) {
	if err := r.trusted(); err != nil {
		return nil, err
	}
	app := application(service)
	instances, err := r.cached(ctx, app)
	if err != nil {
		return nil, err
	}
	if instances, err = r.correct(ctx, app, instances); err != nil {
		return nil, err
	}
	entries := make([]registry.Entry, 0, len(instances))
	for _, i := range instances {
		entries = append(entries, i.entry())
	}
	registry.Sort(entries)
	r.keep(app, entries)
	return entries, nil
}

// Close implements registry.Connector. Nothing is renewed from then on.
func (r *Registry) Close() error {
	r.stop()
	<-r.stopped
	r.client.Close()
	return nil
}

// cached is what the server lists, from its cache.
func (r *Registry) cached(ctx context.Context, app string) (map[string]instance, error) {
	var said struct {
		Application *struct {
			Instance several
		}
	}
	found, err := r.get(ctx, pathOf(app), &said)
	if err != nil {
		return nil, err
	}
	instances := map[string]instance{}
	if !found {
		// Other servers know no such path either.
		return instances, r.isEureka(ctx)
	}
	if said.Application == nil {
		return nil, registry.Permanent(fmt.Errorf("%s answered without an application: it is no Eureka", r.client.URL(pathOf(app))))
	}
	for _, i := range said.Application.Instance {
		instances[i.id()] = i
	}
	return instances, nil
}

// correct asks for what we wrote lately, until the cache agrees.
func (r *Registry) correct(ctx context.Context, app string, instances map[string]instance) (map[string]instance, error) {
	ids := r.writtenTo(app)
	actual := make([]*instance, len(ids))
	errs := registry.Each(len(ids), parallel, func(n int) (err error) {
		actual[n], err = r.actual(ctx, app, ids[n])
		return err
	})
	for n, id := range ids {
		listed, found := instances[id]
		switch {
		case errs[n] != nil:
			return nil, errs[n]
		case actual[n] == nil && !found, actual[n] != nil && found && actual[n].version() == listed.version():
			r.agrees(app, id)
		case actual[n] == nil:
			delete(instances, id)
		default:
			instances[id] = *actual[n]
		}
	}
	return instances, nil
}

// actual is an instance past the cache, nil if there is none.
func (r *Registry) actual(ctx context.Context, app, id string) (*instance, error) {
	var said struct {
		Instance *instance
	}
	found, err := r.get(ctx, pathOf(app, id), &said)
	if err != nil || !found {
		return nil, err
	}
	if said.Instance == nil {
		return nil, registry.Permanent(fmt.Errorf("%s answered without an instance: it is no Eureka", r.client.URL(pathOf(app, id))))
	}
	return said.Instance, nil
}

// isEureka makes sure that what knows no application is an Eureka. Servers may
// have no deltas, but all have the whole.
func (r *Registry) isEureka(ctx context.Context) error {
	var said struct {
		Applications *struct{}
	}
	for _, path := range []string{"/apps/delta", "/apps"} {
		found, err := r.get(ctx, path, &said)
		if err == nil && found && said.Applications != nil {
			return nil
		}
		if errors.Is(err, registry.ErrTransient) || errors.Is(err, errDenied) && path == "/apps" {
			return err
		}
	}
	return registry.Permanent(fmt.Errorf("%s is no Eureka: eureka.address needs the server's path, as in http://host:8761/eureka", r.client.URL("")))
}

func (r *Registry) writtenTo(app string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var ids []string
	for id := range r.written[app] {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// writes remembers that the cache may be behind.
func (r *Registry) writes(app, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.written[app] == nil {
		r.written[app] = map[string]bool{}
	}
	r.written[app][id] = true
}

func (r *Registry) agrees(app, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.written[app], id)
}
