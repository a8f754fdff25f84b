// SPDX-License-Identifier: Apache-2.0

// Package eureka keeps entries as instances of Eureka, through its REST API.
//
// Eureka removes instances that nobody renews. Every half minute a connector renews
// what Usher wrote in the services that it lists. Instances have a long lease, so that
// none is lost while the operator is down for less than that. A renewal does not
// recreate an instance that is gone: the comparison of the list with the desired state
// does.
//
// Eureka answers lists from a cache. A connector reads its own writes past that cache,
// and returns no list before the cache must contain what others wrote before the
// connector started. Eureka has no compare-and-set: if another writer changes an entry
// between the comparison and the write, that change is lost.
package eureka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
	"github.com/usher-dev/usher/internal/registration/registry/rest"
)

const (
	// defaultLease is the minimum time that Eureka keeps an instance that nobody
	// renews. Often it keeps it twice as long.
	defaultLease = time.Hour
	// defaultResponseCache is the maximum age of lists from a server with default
	// settings.
	defaultResponseCache = 30 * time.Second
	// RenewInterval is how often an instance is renewed. Eureka's self-preservation
	// assumes this interval.
	RenewInterval = 30 * time.Second
	// parallel is how many requests of a call run at a time.
	parallel = 16
)

// FromSpec says how the kind's field of a Registry is to be carried out.
func FromSpec(s *usherv1alpha1.EurekaRegistry) *registry.Settings {
	return &registry.Settings{
		Secret: s.CredentialsSecret, Fold: application, Connect: func(_ string, secret map[string][]byte) (registry.Connector, error) {
			return New(s, secret, clock.RealClock{})
		},
	}
}

// Registry implements registry.Connector.
type Registry struct {
	lease  time.Duration
	fresh  time.Time // From then on, lists contain everything written before us.
	clock  clock.WithTicker
	client *rest.Client
	stop   context.CancelFunc
	// renewing ends after stop.
	renewing sync.WaitGroup

	// written has as keys the applications and IDs of instances that the cache may not
	// show correctly, each as [2]string.
	written sync.Map

	mu      sync.Mutex
	renewed map[string]renewal
}

// New checks the spec but does not connect. The secret has keys of package credentials, all
// optional, or is nil. New starts to renew what will be listed, until Close. Errors are permanent
// and name the field or the Secret's key.
func New(s *usherv1alpha1.EurekaRegistry, secret map[string][]byte, clock clock.WithTicker) (*Registry, error) {
	username, password := credentials.Login(secret)
	request := http.Request{Header: http.Header{"Accept": {"application/json"}}}
	if username != "" || password != "" {
		request.SetBasicAuth(username, password)
	}
	client, err := rest.New(rest.Options{
		Field: "eureka.address", Example: "http://host:8761/eureka", Address: s.Address, Secret: secret,
		Header: request.Header, Hint: credentials.LoginHint,
	})
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &Registry{
		client: client, clock: clock, stop: stop, renewed: map[string]renewal{},
		lease: ptr.Deref(s.Lease, metav1.Duration{Duration: defaultLease}).Duration,
		fresh: clock.Now().Add(ptr.Deref(s.ResponseCache, metav1.Duration{Duration: defaultResponseCache}).Duration),
	}
	ticker := clock.NewTicker(RenewInterval)
	r.renewing.Go(func() { r.renewUntil(ctx, ticker) })
	return r, nil
}

// Ping implements registry.Connector. Like List, it fails while lists cannot be
// trusted.
func (r *Registry) Ping(ctx context.Context) error { return cmp.Or(r.isEureka(ctx), r.trusted()) }

// trusted reports whether lists contain everything written before us.
func (r *Registry) trusted() error {
	wait := r.fresh.Sub(r.clock.Now())
	if wait <= 0 {
		return nil
	}
	return registry.Transient(fmt.Errorf("the lists of Eureka may be older than this connection: they are read in %s",
		wait.Round(time.Second)))
}

// List implements registry.Connector. For spec.responseCache after New, lists cannot
// be trusted, and List returns a transient error. An entry whose status is not UP has
// the weight 0. An entry of another writer has the weight 1, because Eureka has no
// weights.
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
	entries := registry.Entries(slices.Collect(maps.Values(instances)), instance.entry)
	r.keep(app, entries)
	return entries, nil
}

// Close implements registry.Connector. It stops all renewals.
func (r *Registry) Close() error {
	r.stop()
	r.renewing.Wait()
	return r.client.Close()
}

// cached returns what the server lists from its cache.
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
	if !found {
		// Other servers do not know the path either.
		return map[string]instance{}, r.isEureka(ctx)
	}
	if said.Application == nil {
		return nil, registry.Permanent(fmt.Errorf("%s answered without an application: check eureka.address", r.client.URL(pathOf(app))))
	}
	return list.By(said.Application.Instance, instance.id), nil
}

// correct reads our recent writes one by one, until the cache shows them.
func (r *Registry) correct(ctx context.Context, app string, instances map[string]instance) (map[string]instance, error) {
	ids := r.writtenTo(app)
	actual := make([]*instance, len(ids))
	errs := registry.Each(ctx, len(ids), parallel, func(n int) (err error) {
		actual[n], err = r.actual(ctx, app, ids[n])
		return err
	})
	for n, id := range ids {
		listed, found := instances[id]
		switch {
		case errs[n] != nil:
			return nil, errs[n]
		case actual[n] == nil && !found, actual[n] != nil && found && actual[n].version() == listed.version():
			r.written.Delete([2]string{app, id})
		case actual[n] == nil:
			delete(instances, id)
		default:
			instances[id] = *actual[n]
		}
	}
	return instances, nil
}

// actual returns an instance past the cache, nil if there is none.
func (r *Registry) actual(ctx context.Context, app, id string) (*instance, error) {
	var said struct {
		Instance *instance
	}
	found, err := r.get(ctx, pathOf(app, id), &said)
	if err != nil || !found {
		return nil, err
	}
	if said.Instance == nil {
		return nil, registry.Permanent(fmt.Errorf("%s answered without an instance: check eureka.address", r.client.URL(pathOf(app, id))))
	}
	return said.Instance, nil
}

// isEureka verifies that a server without the application is a Eureka server. Some
// servers offer no deltas, but all offer the full list.
func (r *Registry) isEureka(ctx context.Context) error {
	var said struct {
		Applications *struct{}
	}
	for _, path := range []string{"/apps/delta", "/apps"} {
		found, err := r.get(ctx, path, &said)
		if err == nil && found && said.Applications != nil {
			return nil
		}
		if errors.Is(err, registry.ErrTransient) || errors.Is(err, rest.ErrDenied) && path == "/apps" {
			return err
		}
	}
	return registry.Permanent(fmt.Errorf("%s is not Eureka: eureka.address needs the server's path, as in http://host:8761/eureka", r.client.URL("")))
}

func (r *Registry) writtenTo(app string) []string {
	var ids []string
	for key := range r.written.Range {
		if key := key.([2]string); key[0] == app {
			ids = append(ids, key[1])
		}
	}
	slices.Sort(ids)
	return ids
}

// application returns the name under which Eureka keeps a service.
func application(service string) string { return strings.ToUpper(service) }

// pathOf returns the path, below the address, of an application or one of its
// instances.
func pathOf(parts ...string) string {
	return "/apps/" + strings.Join(list.Map(parts, url.PathEscape), "/")
}

// get reads the path into into. found is false if nothing is there.
func (r *Registry) get(ctx context.Context, path string, into any) (found bool, err error) {
	answer, err := r.client.Send(ctx, rest.Question{Method: http.MethodGet, Path: path})
	switch {
	case err != nil:
		return false, err
	case answer.Code == http.StatusNotFound:
		return false, nil
	case answer.Code != http.StatusOK:
		return false, answer.Refusal()
	}
	err = answer.Decode("Eureka", into)
	return err == nil, err
}

// write changes something. It is no error if that no longer exists.
func (r *Registry) write(ctx context.Context, method, path string, body any) error {
	answer, err := r.client.Send(ctx, rest.Question{Method: method, Path: path, JSON: body})
	switch {
	case err != nil:
		return err
	case answer.Code == http.StatusOK, answer.Code == http.StatusNoContent, answer.Code == http.StatusNotFound && method != http.MethodPost:
		return nil
	}
	return answer.Refusal()
}

const (
	// renewTimeout limits one renewal.
	renewTimeout = 10 * time.Second
	// forgotten is how long an application is renewed after the last request for it:
	// longer than anyone waits between two repairs.
	forgotten = 24 * time.Hour
)

// renewal holds the instances of an application to renew.
type renewal struct {
	ids []string
	// listed is when the application was last listed. Applications that are no longer
	// listed are left to expire.
	listed time.Time
}

// keep starts to renew Usher's listed instances, including those of other clusters: in
// other kinds of registry, they would not expire either.
func (r *Registry) keep(app string, entries []registry.Entry) {
	ours := list.Only(entries, func(e registry.Entry) bool { return e.Owner != registry.Owner{} })
	r.mu.Lock()
	defer r.mu.Unlock()
	r.renewed[app] = renewal{ids: list.Map(ours, func(e registry.Entry) string { return e.ID }), listed: r.clock.Now()}
}

// renewUntil renews at every tick, until the context ends.
func (r *Registry) renewUntil(ctx context.Context, ticker clock.Ticker) {
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
			r.renewAll(ctx)
		}
	}
}

// renewAll renews once. An instance that is gone stays gone. The next tick retries
// failures: the next list reports a server that is down.
func (r *Registry) renewAll(ctx context.Context) {
	paths := r.due()
	_ = registry.Each(ctx, len(paths), parallel, func(n int) error {
		if ctx.Err() != nil {
			return nil
		}
		one, cancel := context.WithTimeout(ctx, renewTimeout)
		defer cancel()
		return r.write(one, http.MethodPut, paths[n], nil)
	})
}

// due returns the paths of what to renew, sorted.
func (r *Registry) due() (paths []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	oldest := r.clock.Now().Add(-forgotten)
	maps.DeleteFunc(r.renewed, func(_ string, of renewal) bool { return of.listed.Before(oldest) })
	for app, of := range r.renewed {
		paths = append(paths, list.Map(of.ids, func(id string) string { return pathOf(app, id) })...)
	}
	slices.Sort(paths)
	return paths
}
