// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registry"
	"github.com/usher-dev/usher/internal/registry/consul"
	"github.com/usher-dev/usher/internal/registry/dns"
	"github.com/usher-dev/usher/internal/registry/endpointslice"
	"github.com/usher-dev/usher/internal/registry/etcd"
	"github.com/usher-dev/usher/internal/registry/eureka"
	"github.com/usher-dev/usher/internal/registry/haproxy"
	"github.com/usher-dev/usher/internal/registry/nacos"
	"github.com/usher-dev/usher/internal/registry/webhook"
	"github.com/usher-dev/usher/internal/registry/xds"
	"github.com/usher-dev/usher/internal/registry/zookeeper"
)

const (
	// defaultTimeout bounds a call where spec.timeout is absent.
	defaultTimeout = 5 * time.Second
	// defaultRepair is how often entries are compared where spec.repairInterval
	// is absent.
	defaultRepair = 30 * time.Second
	// minBackOff and maxBackOff bound how long a registry that failed is left
	// alone; each failure doubles it.
	minBackOff = time.Second
	maxBackOff = 30 * time.Second
	// maxTTL bounds spec.dns.ttl, in seconds: a day.
	maxTTL = 24 * 60 * 60
	// calm is how long a registry has to work before its back-off starts over.
	calm = time.Minute
)

// Connect makes a connector for a Registry. prefix is where its services are, as
// rootOf says, which may be an earlier one; secret is nil if the Registry names none.
type Connect func(r *usherv1alpha1.Registry, prefix string, secret map[string][]byte) (registry.Connector, error)

// DefaultConnect knows every kind that the API has. reader, past any cache, and
// writer are for what the cluster's own API server keeps; served is what this
// process serves by xDS, nil if it does not.
func DefaultConnect(reader client.Reader, writer client.Writer, served *xds.Store) Connect {
	return func(r *usherv1alpha1.Registry, prefix string, secret map[string][]byte) (registry.Connector, error) {
		switch {
		case r.Spec.EndpointSlice != nil:
			return endpointslice.New(endpointslice.Options{Reader: reader, Writer: writer, Namespace: prefix})
		case r.Spec.XDS != nil:
			return xds.New(xds.Options{Reader: reader, Writer: writer, Namespace: prefix, Store: served})
		}
		return connectOutside(r, prefix, secret)
	}
}

// connectOutside knows the kinds that are not in the cluster's own API server.
func connectOutside(r *usherv1alpha1.Registry, prefix string, secret map[string][]byte) (registry.Connector, error) {
	switch {
	case r.Spec.Consul != nil:
		return consul.New(consul.Options{Address: r.Spec.Consul.Address, Datacenter: prefix, Secret: secret})
	case r.Spec.DNS != nil:
		return dns.New(dns.Options{
			Server: r.Spec.DNS.Server, Zone: prefix, TTL: ttlOf(r.Spec.DNS), Secret: secret,
		})
	case r.Spec.Etcd != nil:
		return etcd.New(etcd.Options{
			Endpoints: r.Spec.Etcd.Endpoints, Prefix: prefix, Secret: secret, Timeout: timeoutOf(r),
		})
	case r.Spec.Eureka != nil:
		return eureka.New(eureka.Options{
			Address: r.Spec.Eureka.Address, Secret: secret, Lease: durationOf(r.Spec.Eureka.Lease, eureka.DefaultLease),
			ResponseCache: durationOf(r.Spec.Eureka.ResponseCache, eureka.DefaultResponseCache),
		})
	case r.Spec.HAProxy != nil:
		return haproxy.New(haproxy.Options{
			Addresses: r.Spec.HAProxy.Addresses, ServerOptions: r.Spec.HAProxy.ServerOptions, Secret: secret,
		})
	case r.Spec.Nacos != nil:
		return nacos.New(nacos.Options{Address: r.Spec.Nacos.Address, Root: nacos.ParseRoot(prefix), Secret: secret})
	case r.Spec.Webhook != nil:
		return webhook.New(webhook.Options{URL: r.Spec.Webhook.URL, Secret: secret})
	case r.Spec.ZooKeeper != nil:
		return zookeeper.New(zookeeper.Options{
			Servers: r.Spec.ZooKeeper.Servers, Layout: layoutOf(r), Path: prefix, Secret: secret,
		})
	}
	return nil, registry.Permanent(fmt.Errorf(
		"registry %s sets no kind: set one of spec.consul, spec.dns, spec.endpointSlice, spec.etcd, spec.eureka, spec.haproxy, spec.nacos, spec.webhook, spec.xds and spec.zookeeper", r.Name))
}

// rootOf is where a Registry keeps its services, for kinds where that can change
// while the Registry stays: what was written under the old one is then removed.
// namespace is the Registration's.
func rootOf(r *usherv1alpha1.Registry, namespace string) string {
	switch {
	case r.Spec.Consul != nil:
		return r.Spec.Consul.Datacenter
	case r.Spec.DNS != nil:
		return r.Spec.DNS.Zone
	case r.Spec.EndpointSlice != nil:
		return cmp.Or(r.Spec.EndpointSlice.Namespace, namespace)
	case r.Spec.Etcd != nil:
		return r.Spec.Etcd.Prefix
	case r.Spec.Nacos != nil:
		n := r.Spec.Nacos
		return nacos.Root{Namespace: n.NamespaceID, Group: n.Group, Cluster: n.Cluster}.String()
	case r.Spec.XDS != nil:
		return cmp.Or(r.Spec.XDS.Namespace, namespace)
	case r.Spec.ZooKeeper != nil:
		return cmp.Or(r.Spec.ZooKeeper.Path, zookeeper.DefaultPath(layoutOf(r)))
	}
	return ""
}

// layoutOf is the layout of a ZooKeeper Registry, Curator's where none is set.
func layoutOf(r *usherv1alpha1.Registry) zookeeper.Layout {
	if r.Spec.ZooKeeper.Layout == usherv1alpha1.LayoutDubbo {
		return zookeeper.Dubbo
	}
	return zookeeper.Curator
}

func kindOf(r *usherv1alpha1.Registry) string {
	switch {
	case r.Spec.Consul != nil:
		return "consul"
	case r.Spec.DNS != nil:
		return "dns"
	case r.Spec.EndpointSlice != nil:
		return "endpointSlice"
	case r.Spec.Etcd != nil:
		return "etcd"
	case r.Spec.Eureka != nil:
		return "eureka"
	case r.Spec.HAProxy != nil:
		return "haproxy"
	case r.Spec.Nacos != nil:
		return "nacos"
	case r.Spec.Webhook != nil:
		return "webhook"
	case r.Spec.XDS != nil:
		return "xds"
	case r.Spec.ZooKeeper != nil:
		return "zookeeper"
	}
	return ""
}

// ttlOf is in whole seconds, as DNS has it; zero stands for the connector's default.
func ttlOf(d *usherv1alpha1.DNSRegistry) uint32 {
	if d.TTL == nil || d.TTL.Duration <= 0 {
		return 0
	}
	return uint32(min(max(int64(d.TTL.Duration/time.Second), 1), maxTTL))
}

// durationOf is a field of the API that has a default.
func durationOf(field *metav1.Duration, absent time.Duration) time.Duration {
	if field == nil || field.Duration < 0 {
		return absent
	}
	return field.Duration
}

func timeoutOf(r *usherv1alpha1.Registry) time.Duration {
	if r.Spec.Timeout == nil || r.Spec.Timeout.Duration <= 0 {
		return defaultTimeout
	}
	return r.Spec.Timeout.Duration
}

func repairOf(r *usherv1alpha1.Registry) time.Duration {
	if r.Spec.RepairInterval == nil || r.Spec.RepairInterval.Duration <= 0 {
		return defaultRepair
	}
	return max(r.Spec.RepairInterval.Duration, time.Second)
}

func secretOf(r *usherv1alpha1.Registry) *usherv1alpha1.SecretReference {
	switch {
	case r.Spec.Consul != nil:
		return r.Spec.Consul.CredentialsSecret
	case r.Spec.DNS != nil:
		return r.Spec.DNS.CredentialsSecret
	case r.Spec.Etcd != nil:
		return r.Spec.Etcd.CredentialsSecret
	case r.Spec.Eureka != nil:
		return r.Spec.Eureka.CredentialsSecret
	case r.Spec.HAProxy != nil:
		return r.Spec.HAProxy.CredentialsSecret
	case r.Spec.Nacos != nil:
		return r.Spec.Nacos.CredentialsSecret
	case r.Spec.Webhook != nil:
		return r.Spec.Webhook.CredentialsSecret
	case r.Spec.ZooKeeper != nil:
		return r.Spec.ZooKeeper.CredentialsSecret
	}
	return nil
}

// holdsBack says whether a kind can keep an entry that gets no callers: what its
// connector calls registry.ValidateHolding for.
func holdsBack(r *usherv1alpha1.Registry) bool {
	return r.Spec.Consul != nil || r.Spec.Eureka != nil || r.Spec.HAProxy != nil || r.Spec.Nacos != nil || r.Spec.XDS != nil
}

// pool keeps one connector for each Registry and prefix, and remembers which
// registries are down, so that a pass does not wait for them.
type pool struct {
	reader  client.Reader
	connect Connect
	clock   clock.PassiveClock

	mu      sync.Mutex
	conns   map[connKey]*conn
	outages map[string]*outage
	sights  map[string]*sight
	// limiters are those of Registries with a rate limit, by name.
	limiters map[string]turns
}

type connKey struct{ name, prefix string }

type conn struct {
	registry.Connector
	version connVersion
	timeout time.Duration
}

// connVersion is what a connector was made from.
type connVersion struct {
	uid           types.UID
	generation    int64
	secretUID     types.UID
	secretVersion string
}

// outage is why passes leave a registry alone that failed.
type outage struct {
	err      error
	last     time.Time
	until    time.Time
	failures int
}

func newPool(reader client.Reader, connect Connect, clock clock.PassiveClock) *pool {
	return &pool{reader: reader, connect: connect, clock: clock,
		conns: map[connKey]*conn{}, outages: map[string]*outage{}, sights: map[string]*sight{}, limiters: map[string]turns{}}
}

// get returns the connector, made anew if the Registry changed. With fresh the
// Secret is read again as well.
func (p *pool) get(ctx context.Context, r *usherv1alpha1.Registry, prefix string, fresh bool) (*conn, error) {
	key := connKey{r.Name, prefix}
	p.mu.Lock()
	have := p.conns[key]
	p.mu.Unlock()
	if have != nil && !fresh && have.version.uid == r.UID && have.version.generation == r.Generation {
		return have, nil
	}
	version := connVersion{uid: r.UID, generation: r.Generation}
	var data map[string][]byte
	if ref := secretOf(r); ref != nil {
		secret, err := p.secret(ctx, *ref)
		if err != nil {
			return nil, err
		}
		data, version.secretUID, version.secretVersion = secret.Data, secret.UID, secret.ResourceVersion
	}
	if have != nil && have.version == version {
		return have, nil
	}
	made, err := p.connect(r, prefix, data)
	if err != nil {
		return nil, cleaned(err, data)
	}
	next := &conn{Connector: scrub(made, data), version: version, timeout: timeoutOf(r)}
	p.mu.Lock()
	old := p.conns[key]
	p.conns[key] = next
	p.mu.Unlock()
	if old != nil {
		// Calls in flight fail as transient and are tried with the new one.
		_ = old.Close()
	}
	return next, nil
}

func (p *pool) secret(ctx context.Context, ref usherv1alpha1.SecretReference) (*corev1.Secret, error) {
	var secret corev1.Secret
	err := p.reader.Get(ctx, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}, &secret)
	switch {
	case apierrors.IsNotFound(err):
		return nil, registry.Permanent(fmt.Errorf(
			"there is no Secret %s/%s: create it, or correct credentialsSecret", ref.Namespace, ref.Name))
	case err != nil:
		return nil, registry.Transient(fmt.Errorf("read Secret %s/%s: %w", ref.Namespace, ref.Name, err))
	}
	return &secret, nil
}

// forget closes what belongs to a Registry that is no more.
func (p *pool) forget(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, c := range p.conns {
		if key.name == name {
			_ = c.Close()
			delete(p.conns, key)
		}
	}
	delete(p.outages, name)
	delete(p.sights, name)
	delete(p.limiters, name)
}

// Close closes all connectors.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, c := range p.conns {
		_ = c.Close()
		delete(p.conns, key)
	}
}

// down returns until when a registry is left alone, and why; nil if it is not.
func (p *pool) down(name string) (until time.Time, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if o := p.outages[name]; o != nil && p.clock.Now().Before(o.until) {
		return o.until, o.err
	}
	return time.Time{}, nil
}

// failed opens an outage, or lengthens it, and returns the back-off. slack is
// how much longer passes stay away than the next probe.
func (p *pool) failed(name string, err error, slack time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	o := p.outages[name]
	if o == nil {
		o = &outage{}
		p.outages[name] = o
	}
	if now.Sub(o.last) > calm+maxBackOff {
		o.failures = 0
	}
	back := min(minBackOff<<min(o.failures, 10), maxBackOff)
	o.failures++
	o.err, o.last, o.until = err, now, now.Add(back+slack)
	return back
}

// recovered ends an outage, and says whether there was one. What failed lately keeps its count, so that a
// registry that fails for one service only is not asked ever faster.
func (p *pool) recovered(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.outages[name]
	if o == nil {
		return false
	}
	ended := !o.until.IsZero()
	o.until = time.Time{}
	if p.clock.Now().Sub(o.last) > calm {
		delete(p.outages, name)
	}
	return ended
}

// outside says whether an error is the registry's as a whole, rather than one
// change's or the pass's own end.
func outside(ctx context.Context, err error) bool {
	return err != nil && ctx.Err() == nil && !errors.Is(err, context.Canceled)
}
