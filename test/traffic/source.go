// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/naming/endpoints"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/servers/run"
)

// pause is how long to wait before a Source starts over.
const pause = 200 * time.Millisecond

// Source is a service in a registry, as callers find it.
type Source interface {
	// Follow reports the service's addresses, host:port, and again all of them after each change. It
	// returns when ctx ends or when it must start over.
	Follow(ctx context.Context, report func(addresses []string)) error
}

// follow follows a source until ctx ends. An error leaves callers with the latest list, as
// an outage does.
func follow(ctx context.Context, source Source, report func(addresses []string), failed func(error)) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := source.Follow(ctx, report); ctx.Err() == nil {
			failed(err)
		}
	}, pause)
}

// Consul is a service in Consul, as callers without an agent query it: the instances
// that pass their checks.
type Consul struct {
	// Address is Consul's HTTP API, for instance "http://127.0.0.1:8500".
	Address string
	// Service is the name that callers query.
	Service string
}

// Follow implements Source with blocking queries.
func (c Consul) Follow(ctx context.Context, report func(addresses []string)) error {
	for index := "0"; ctx.Err() == nil; {
		listed, next, err := run.Passing(ctx, run.HTTP{Address: c.Address}, c.Service, index)
		if err != nil {
			return fmt.Errorf("list service %s in Consul: %w", c.Service, err)
		}
		report(list.Map(listed, run.Instance.HostPort))
		index = next
	}
	return ctx.Err()
}

// Fixed is one constant address: that of a load balancer, which finds the instances
// itself.
type Fixed string

// Follow implements Source.
func (f Fixed) Follow(ctx context.Context, report func(addresses []string)) error {
	report([]string{string(f)})
	<-ctx.Done()
	return ctx.Err()
}

// Service is a Kubernetes Service as gateways, meshes and load balancers follow it: the ready
// endpoints of its EndpointSlices, at the first port of each slice.
type Service struct {
	Client    kubernetes.Interface
	Namespace string
	Name      string
}

// Follow implements Source with a watch.
func (s Service) Follow(ctx context.Context, report func(addresses []string)) error {
	api := s.Client.DiscoveryV1().EndpointSlices(s.Namespace)
	options := metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + s.Name}
	list, err := api.List(ctx, options)
	if err != nil {
		return fmt.Errorf("list the EndpointSlices of Service %s: %w", s.Name, err)
	}
	known := map[types.UID]*discoveryv1.EndpointSlice{}
	for i := range list.Items {
		known[list.Items[i].UID] = &list.Items[i]
	}
	report(ready(known))
	options.ResourceVersion = list.ResourceVersion
	changes, err := api.Watch(ctx, options)
	if err != nil {
		return fmt.Errorf("watch the EndpointSlices of Service %s: %w", s.Name, err)
	}
	defer changes.Stop()
	defer context.AfterFunc(ctx, changes.Stop)()
	for event := range changes.ResultChan() {
		slice, ok := event.Object.(*discoveryv1.EndpointSlice)
		switch {
		case !ok:
			return fmt.Errorf("watch the EndpointSlices of Service %s: %w", s.Name, apierrors.FromObject(event.Object))
		case event.Type == watch.Deleted:
			delete(known, slice.UID)
		default:
			known[slice.UID] = slice
		}
		report(ready(known))
	}
	return ctx.Err()
}

// ready returns the endpoints that callers use. Endpoints that are serving and terminating are a last
// resort, which no caller here uses.
func ready(slices map[types.UID]*discoveryv1.EndpointSlice) (addresses []string) {
	for _, slice := range slices {
		if len(slice.Ports) == 0 || slice.Ports[0].Port == nil {
			continue
		}
		port := strconv.Itoa(int(*slice.Ports[0].Port))
		for _, endpoint := range slice.Endpoints {
			if yes := endpoint.Conditions.Ready; yes == nil || *yes {
				addresses = append(addresses, net.JoinHostPort(endpoint.Addresses[0], port))
			}
		}
	}
	return addresses
}

// listTimeout bounds one listing, which waits for as long as etcd is away.
const listTimeout = 5 * time.Second

// Etcd is a service in etcd in the layout of
// go.etcd.io/etcd/client/v3/naming/endpoints: keys below <prefix>/<service>/.
type Etcd struct {
	Client  *clientv3.Client
	Prefix  string
	Service string
}

// Follow implements Source. The etcd client reconnects by itself after an outage and
// resumes the watch; Follow returns an error if etcd has compacted the history or
// cannot be listed.
func (e Etcd) Follow(ctx context.Context, report func(addresses []string)) error {
	manager, err := endpoints.NewManager(e.Client, strings.Trim(e.Prefix, "/")+"/"+e.Service)
	if err != nil {
		return err
	}
	listing, cancel := context.WithTimeout(ctx, listTimeout)
	known, err := manager.List(listing)
	cancel()
	if err != nil {
		return fmt.Errorf("list service %s in etcd: %w", e.Service, err)
	}
	report(addressesOf(known)) // A watch begins with a list, too, but says nothing if that is empty.
	changes, err := manager.NewWatchChannel(ctx)
	if err != nil {
		return fmt.Errorf("watch service %s in etcd: %w", e.Service, err)
	}
	clear(known)
	for transaction := range changes { // Callers never see part of one.
		for _, change := range transaction {
			if change.Op == endpoints.Delete {
				delete(known, change.Key)
			} else {
				known[change.Key] = change.Endpoint
			}
		}
		report(addressesOf(known))
	}
	return errors.Join(ctx.Err(), fmt.Errorf("the watch of service %s in etcd has ended", e.Service))
}

func addressesOf(known endpoints.Key2EndpointMap) (addresses []string) {
	for _, endpoint := range known {
		addresses = append(addresses, endpoint.Addr)
	}
	return addresses
}

// directory is the history of a service's addresses, as long as the slowest caller needs it. A caller
// knows the addresses that the registry had some time ago, so one history serves callers with any lag.
// While the registry is unreachable, all callers have the last list.
type directory struct {
	keep     time.Duration // how far the slowest caller lags behind
	versions []version     // oldest first; never empty after the first list
}

type version struct {
	at        time.Time
	addresses []string // in order; never changed once stored
}

// replace stores the addresses that the registry lists now, and returns those that have left and
// joined.
func (d *directory) replace(now time.Time, addresses []string) (left, joined []string) {
	next := slices.Compact(slices.Sorted(slices.Values(addresses)))
	before := d.current()
	left, joined = missing(before, next), missing(next, before)
	if len(left)+len(joined) > 0 || len(d.versions) == 0 {
		d.versions = append(d.versions, version{at: now, addresses: next})
		d.forget(now)
	}
	return left, joined
}

// current returns what the registry lists now, as far as known.
func (d *directory) current() []string {
	if len(d.versions) == 0 {
		return nil
	}
	return d.versions[len(d.versions)-1].addresses
}

// view returns what a caller with this lag behind the registry knows.
func (d *directory) view(now time.Time, lag time.Duration) []string {
	seen := now.Add(-lag)
	for _, v := range slices.Backward(d.versions) {
		if !v.at.After(seen) {
			return v.addresses
		}
	}
	return nil
}

// lists reports whether the registry lists an address now.
func (d *directory) lists(address string) bool { return slices.Contains(d.current(), address) }

// caughtUp reports whether every caller knows what the registry knows.
func (d *directory) caughtUp(now time.Time) bool {
	d.forget(now)
	return len(d.versions) <= 1
}

// usable reports whether any caller may still know an address.
func (d *directory) usable(now time.Time, address string) bool {
	d.forget(now)
	return slices.ContainsFunc(d.versions, func(v version) bool { return slices.Contains(v.addresses, address) })
}

// forget drops the versions that no caller can see any more.
func (d *directory) forget(now time.Time) {
	oldest := now.Add(-d.keep)
	for len(d.versions) > 1 && !d.versions[1].at.After(oldest) {
		d.versions = d.versions[1:]
	}
}

// missing lists what one list has and the other lacks.
func missing(have, other []string) []string {
	return slices.DeleteFunc(slices.Clone(have), func(address string) bool { return slices.Contains(other, address) })
}
